"""`Client` in Spark: one ValueState per client id, one lazy timer in event time, events in the order of the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from spark_streaming.presence.client import Change, Client, Happening, Rules

STATE_SCHEMA = "state string"
OUTPUT_SCHEMA = "client_id string, state string, id string, until_ms long, body string"


class PresenceProcessor(StatefulProcessor):
    """Groups are client ids; rows are those of `transforms.presence.happenings`.

    The timer only forgets clients of whom nothing has been heard for long. It is set once and, when it rings too early,
    set anew: one call per client and `forget_ms` instead of two per event.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("client", STATE_SCHEMA)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Events of one client in this batch."""
        stored = self._state.get()
        client = Client.from_json(key[0], stored[0]) if stored else Client(key[0])
        ordered = sorted(rows, key=lambda row: (row.partition, row.offset))
        changes = [change for row in ordered for change in client.happened(_happening(row), self._rules)]
        if client.timer_ms is None:
            self._set_timer(client)
        self._state.update((client.to_json(),))
        return map(_row, changes)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        """The watermark has passed the client's timer."""
        stored = self._state.get()
        if stored:
            client = Client.from_json(key[0], stored[0])
            if client.is_forgotten(timerValues.getCurrentWatermarkInMs(), self._rules):
                self._state.clear()
            else:
                self._set_timer(client)
                self._state.update((client.to_json(),))
        return iter(())

    def close(self) -> None:
        pass

    def _set_timer(self, client: Client) -> None:
        client.timer_ms = client.last_ms + self._rules.forget_ms
        self._handle.registerTimer(client.timer_ms)


def _happening(row: Any) -> Happening:
    position = f"{row.partition}/{row.offset}"
    return Happening(row.kind, row.node_id, row.at_ms, position, row.action, row.peer, row.reason)


def _row(change: Change) -> Row:
    return Row(
        client_id=change.client_id,
        state=change.state,
        id=change.id,
        until_ms=change.until_ms,
        body=change.to_json(),
    )
