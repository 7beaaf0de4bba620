"""`Device` in Spark: one ValueState per device, one lazy timer, messages in the order of the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from spark_streaming.anomaly.device import Device
from spark_streaming.anomaly.rules import Alert, Arrival, Rules

STATE_SCHEMA = "state string"
OUTPUT_SCHEMA = "device string, kind string, state string, id string, body string"


class AnomalyProcessor(StatefulProcessor):
    """Groups are devices; rows are those of `transforms.anomaly.arrivals`.

    With timers (processing time) silence is raised when it happens; without (a backfill has no clock) when the next
    message shows it. Only one timer per device is ever set: when it rings too early it is set anew.
    """

    def __init__(self, rules: Rules, *, timers: bool) -> None:
        self._rules = rules
        self._timers = timers

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("device", STATE_SCHEMA)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Messages of one device in this batch."""
        device = self._load(key[0])
        alerts = [alert for arrival in in_log_order(rows) for alert in device.arrived(arrival)]
        if self._timers:
            self._set_timer(device)
        self._state.update((device.to_json(),))
        return map(_row, alerts)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        """The clock has passed a device's timer."""
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        device = self._load(key[0])
        device.timer_ms = None  # Spark removes the one that rang
        alerts = device.time_passed(now_ms)
        if device.is_forgotten(now_ms):
            self._state.clear()
        else:
            self._set_timer(device)
            self._state.update((device.to_json(),))
        return map(_row, alerts)

    def close(self) -> None:
        pass

    def _load(self, name: str) -> Device:
        stored = self._state.get()
        return Device.from_json(name, self._rules, stored[0]) if stored else Device(name, self._rules)

    def _set_timer(self, device: Device) -> None:
        """Unless one is set that rings in time."""
        wanted_ms = device.timer_wanted_ms()
        if wanted_ms is None or (device.timer_ms is not None and device.timer_ms <= wanted_ms):
            return
        if device.timer_ms is not None:
            self._handle.deleteTimer(device.timer_ms)
        self._handle.registerTimer(wanted_ms)
        device.timer_ms = wanted_ms


def in_log_order(rows: Iterable[Any]) -> list[Arrival]:
    """By time of append, then by place in Kafka: Spark promises no order within a group."""
    ordered = sorted(rows, key=lambda row: (row.ingest_ms, row.kafka_topic, row.partition, row.offset))
    return [
        Arrival(
            f"{row.kafka_topic}/{row.partition}/{row.offset}",
            row.ingest_ms,
            row.event_ms,
            tuple((one["metric"], one["value"]) for one in row.metrics),
        )
        for row in ordered
    ]


def _row(alert: Alert) -> Row:
    return Row(device=alert.device, kind=alert.kind, state=alert.state, id=alert.id, body=alert.to_json())
