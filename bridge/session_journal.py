"""The steps of QoS 2 flows to a client, as records between two progress records. Pure.

Compaction keeps one record per packet id, and packet ids are used again: a record that says where the second message
was would take with it where the first one was, and the first one would be sent again. So each record also says how far
the earlier ones under its packet id had come, per partition.
"""

from __future__ import annotations

from bridge.log import Position
from schemas.sessions import OutgoingEntry, SessionRecord, outgoing_record


class OutgoingJournal:
    """Makes the ``o`` records of one client and epoch."""

    __slots__ = ("_client_id", "_epoch", "_sent_to")

    def __init__(self, client_id: str, epoch: int) -> None:
        self._client_id = client_id
        self._epoch = epoch
        self._sent_to: dict[int, dict[Position, int]] = {}  # by packet id

    def record(self, packet_id: int, entry: OutgoingEntry) -> SessionRecord:
        """The record that says what became of the message under this packet id; to be written in the order of calls."""
        sent_to = self._sent_to.setdefault(packet_id, {})
        position = (entry.kafka_topic, entry.partition)
        others = {at: offset for at, offset in sent_to.items() if at != position or not entry.moves_position}
        if entry.moves_position:
            sent_to[position] = max(entry.offset + 1, sent_to.get(position, 0))
        return outgoing_record(self._client_id, self._epoch, packet_id, entry, others)

    def clear(self) -> None:
        """A progress record is written behind all of these: it says it all."""
        self._sent_to.clear()

    def __len__(self) -> int:
        return len(self._sent_to)
