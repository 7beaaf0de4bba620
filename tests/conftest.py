"""Fixtures for every test, and the line that says which Kafka was used."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from support.kafka import BOOTSTRAP_VARIABLE, chosen, kafka, kafka_bootstrap, kafka_server
from support.peers import without_absent_peers

__all__ = ["kafka", "kafka_bootstrap", "kafka_server"]

# How fast the machine is decides nothing
settings.register_profile("headwater", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headwater")

KAFKA_FIXTURES = {"kafka", "kafka_bootstrap", "kafka_server"}
LEFT_OUT = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "tests/conformance: which broker is tested")
    group.addoption("--host", default="127.0.0.1", help="where it listens, together with --port")
    group.addoption("--port", type=int, help="without it a Headwater edge on a log in memory is started")
    group.addoption("--websocket-port", type=int, help="where it serves WebSocket under /mqtt")
    group.addoption("--scram", metavar="USER:PASSWORD", help="a user whom it knows for SCRAM-SHA-256")


def pytest_report_header() -> str:
    return (
        f"kafka: {BOOTSTRAP_VARIABLE}, else a container, else the embedded one; started by the first test that needs it"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test that asks for a Kafka is one, marked or not: `-m "not kafka"` leaves it out. Peers: see support.peers."""
    for item in items:
        if KAFKA_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("kafka")
    items[:], left_out, config.stash[LEFT_OUT] = without_absent_peers(items)
    if left_out:
        config.hook.pytest_deselected(items=left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if said := config.stash.get(LEFT_OUT, ""):
        terminalreporter.write_line(said)
    if (why := chosen()) is not None:
        terminalreporter.write_line(f"kafka: {why}")
