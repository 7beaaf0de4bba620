"""Fixtures for every test, and the line that says which Kafka was used."""

from __future__ import annotations

import pytest
from support.kafka import BOOTSTRAP_VARIABLE, chosen, kafka, kafka_bootstrap, kafka_server

__all__ = ["kafka", "kafka_bootstrap", "kafka_server"]

KAFKA_FIXTURES = {"kafka", "kafka_bootstrap", "kafka_server"}


def pytest_report_header() -> str:
    return (
        f"kafka: {BOOTSTRAP_VARIABLE}, else a container, else the embedded one; started by the first test that needs it"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that asks for a Kafka is one, marked or not: `-m "not kafka"` leaves it out."""
    for item in items:
        if KAFKA_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("kafka")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if (why := chosen()) is not None:
        terminalreporter.write_line(f"kafka: {why}")
