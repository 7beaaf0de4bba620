"""What is measured, and the table that the figures are held against. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

HEADWATER = "headwater"
MOSQUITTO = "mosquitto"
AMQTT = "amqtt"
BROKERS = (HEADWATER, MOSQUITTO, AMQTT)


@dataclass(frozen=True, slots=True)
class Load:
    """What the clients do. `{i}` in a name or filter is the client's number.

    `window` bounds the undelivered messages over all publishers (0: nothing does), `in_flight` the unacknowledged ones
    of each publisher, `batch` the packets in one write. `rate_per_s` 0: as fast as these allow. `fan` is the number of
    deliveries of each message.
    """

    qos: int = 1
    publishers: int = 1
    subscribers: int = 1
    topic_name: str = "bench/{i}"
    topic_filter: str = "bench/{i}"
    fan: int = 1
    in_flight: int = 100
    window: int = 500
    batch: int = 16
    rate_per_s: int = 0
    payload_bytes: int = 256


@dataclass(frozen=True, slots=True)
class Scenario:
    """One line of the result. `connections` > 0: idle ones, and no `load`; each run then has a fresh broker process."""

    name: str
    title: str
    load: Load = Load()
    connections: int = 0
    brokers: tuple[str, ...] = BROKERS
    note: str = ""

    def with_connections(self, connections: int) -> Scenario:
        """The same with another number of idle connections."""
        return replace(self, connections=connections)


SCENARIOS = (
    Scenario("one-to-one-qos0", "1:1 QoS 0", Load(qos=0)),
    Scenario("one-to-one-qos1", "1:1 QoS 1", Load()),
    Scenario("pairs-saturated", "50:50 QoS 1, saturated", Load(publishers=50, subscribers=50, in_flight=20)),
    Scenario(
        "fan-in",
        "fan-in 50:1 QoS 1",
        Load(publishers=50, topic_name="bench/in/{i}", topic_filter="bench/in/+", in_flight=10),
    ),
    Scenario(
        "fan-out",
        "fan-out 1:500 QoS 0",
        Load(qos=0, subscribers=500, topic_name="bench/out", topic_filter="bench/out", fan=500, window=10, batch=1),
    ),
    Scenario(
        "pairs-20k",
        "20,000 msg/s over 50 pairs, QoS 1",
        Load(publishers=50, subscribers=50, in_flight=1_000, window=0, rate_per_s=20_000),
        brokers=(HEADWATER, MOSQUITTO),
        note="amqtt's broker is left out: it does not reach this rate",
    ),
    Scenario(
        "latency-500",
        "500 msg/s over 5 pairs, QoS 1",
        Load(publishers=5, subscribers=5, in_flight=1_000, window=0, rate_per_s=500),
    ),
    Scenario("idle", "idle connections", connections=5_000),
)

Metric = Literal["cpu_us", "p50_ms", "memory_kb", "connects_per_core_s"]


@dataclass(frozen=True, slots=True)
class Target:
    """One line of "What to reach". `against` None: the figure itself is held to the limits, else its ratio."""

    title: str
    scenario: str
    metric: Metric
    must: float
    aim: float
    against: str | None = None
    unit: str = "x"
    at_least: bool = False


TARGETS = (
    Target("50:50 QoS 1 saturated: CPU against mosquitto", "pairs-saturated", "cpu_us", 0.7, 0.4, MOSQUITTO),
    Target("1:1 QoS 1: CPU against amqtt's broker", "one-to-one-qos1", "cpu_us", 0.10, 0.05, AMQTT),
    Target("50:1 QoS 1: CPU against amqtt's broker", "fan-in", "cpu_us", 0.10, 0.05, AMQTT),
    Target("1:500 QoS 0: CPU against mosquitto", "fan-out", "cpu_us", 0.5, 0.2, MOSQUITTO),
    Target("20,000 msg/s over 50 pairs: CPU against mosquitto", "pairs-20k", "cpu_us", 2.0, 1.3, MOSQUITTO),
    Target("publish to deliver at 500 msg/s: p50", "latency-500", "p50_ms", 2.0, 1.0, unit="ms"),
    Target("memory per idle connection", "idle", "memory_kb", 12, 5, unit="KB"),
    Target("connects per second per core", "idle", "connects_per_core_s", 1_500, 4_000, unit="/s", at_least=True),
)
