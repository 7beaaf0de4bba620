"""What issue 4 has to show of sessions, on real edge processes and a real Kafka: `python -m benchmarks.sessions`."""
