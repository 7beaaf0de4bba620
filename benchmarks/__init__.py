"""Measurements: Headwater through a real Kafka beside mosquitto and amqtt's own broker, in one run on one machine.

`python benchmarks/run.py` (or `python -m benchmarks` from the repository root) measures, prints and stores; figures
are reported and never tested, only a lost or repeated message fails the command. docs/benchmarks.md explains each line.
"""
