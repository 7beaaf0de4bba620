"""What the bridge needs of a log: append batches, read partitions from a position, commit positions for the tools.

Two things implement it: ``bridge.kafka_log`` (Kafka, what runs in production) and ``bridge.memory_log`` (unit tests and
simulation). One suite, ``tests/bridge/test_log_conformance.py``, holds both to the promises written here.

Errors::

    HeadwaterError
    └── LogError                 something about the log
        ├── LogUnavailable       not reachable now: nothing is known about what was asked; ask again
        ├── ProducerPoisoned     the producer can append nothing more: renew it, then submit again what is pending
        ├── LogTruncated         a position lies outside of what the log still (or yet) holds
        ├── RecordRefused        definite: these records are not in the log and never will be
        ├── TransactionAborted   definite: nothing of the transaction is in the log; submit it again
        │   └── MarksRefused     definite: a group does not know the member that wanted to store marks with it
        ├── ProducerFenced       definite, too; another process has taken over the transactional id
        └── CommitUnknown        the commit was asked for and not answered
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from schemas.errors import HeadwaterError

if TYPE_CHECKING:
    from bridge.shared.lease import Leases

Position: TypeAlias = tuple[str, int]
"""A partition: (kafka_topic, partition)."""

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

PendingRecord: TypeAlias = tuple[bytes | None, bytes | None, Headers]
"""A record to append: (key, value, headers). A plain tuple: one is made per published message."""


class Mark(NamedTuple):
    """How far a group has come in a partition: all before `offset`, and what `beyond` names (`bridge.shared.marks`)."""

    offset: int
    beyond: str = ""


@dataclass(frozen=True, slots=True)
class GroupMarks:
    """Low-water marks that a member of a Kafka group stores; refused when it is not (in this generation) a member."""

    group_id: str
    member_id: str
    generation: int
    marks: Mapping[Position, Mark]


class LogError(HeadwaterError):
    """Something about the log went wrong."""


class LogUnavailable(LogError):  # noqa: N818
    """The log could not be reached, or gave no answer in time; what was asked may or may not have happened."""


class ProducerPoisoned(LogError):  # noqa: N818
    """The idempotent producer is broken for good; what it had in flight may or may not be in the log."""


class LogTruncated(LogError):  # noqa: N818
    """A reader's position is outside of the log: the records were deleted under it (or the log was cut at its end)."""

    def __init__(self, partition: Position, position: int, start: int) -> None:
        super().__init__(f"{partition[0]}[{partition[1]}]: position {position} is gone, reading goes on at {start}")
        self.partition = partition
        self.position = position
        self.start = start


class RecordRefused(LogError):  # noqa: N818
    """The log refused these records for good: too large, malformed, or not authorised.

    ``divisible`` says that it may be the fault of one record: its companions in the batch deserve a try of their own.
    """

    def __init__(self, reason: str, *, divisible: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.divisible = divisible


class TransactionAborted(LogError):  # noqa: N818
    """Definite: nothing of this transaction is, or ever will be, in the log for read-committed readers; submit again.

    The producer stays usable: its next ``commit`` first does away with what is left of this transaction.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class MarksRefused(TransactionAborted):
    """Definite, too: these groups do not know the member in that generation; try again without their marks."""

    def __init__(self, group_ids: Set[str], reason: str) -> None:
        super().__init__(f"{', '.join(sorted(group_ids))}: {reason}")
        self.group_ids = group_ids


class ProducerFenced(LogError):  # noqa: N818
    """Another process took over this transactional id (or Kafka ended a transaction that had lasted too long).

    Definite: nothing of the transaction that failed is ever read as committed, and nothing more is written.
    """


class CommitUnknown(LogError):  # noqa: N818
    """The commit was asked for and not answered: ``start`` again settles it; the log knows whether it happened."""


class Record(Protocol):
    """A record as it was read; its Kafka topic and partition stand beside the sequence it came in."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...


class UnreadableRecord:
    """Stands for bytes in the log that could not be decoded (checksum, framing): one record or a whole batch."""

    __slots__ = ("headers", "key", "offset", "reason", "timestamp", "value")

    def __init__(self, offset: int, timestamp: int, raw: bytes, reason: str) -> None:
        self.offset = offset
        self.timestamp = timestamp
        self.key: bytes | None = None
        self.value: bytes | None = raw
        self.headers: Headers = ()
        self.reason = reason


class LogConsumer(Protocol):
    """Reads a changing set of partitions. One task at a time waits in ``fetch``; ``assign`` may be called meanwhile."""

    def assign(self, positions: Mapping[Position, int]) -> None:
        """Read exactly these partitions from these offsets on.

        A partition that was assigned before and whose offset is the next one anyway (or follows the last record that
        was handed out) goes on undisturbed. A waiting ``fetch`` goes on with the new set, too.
        """
        ...

    async def fetch(self, timeout_s: float) -> list[tuple[Position, Sequence[Record]]]:
        """The next records, in offset order within a partition; an empty list when ``timeout_s`` passed without any.

        Returns at once when records are there. Every record of an assigned partition comes exactly once. The list is
        also empty, early, when a position has moved past transaction markers or aborted records and nothing else came.

        Raises:
            LogTruncated: an assigned position is outside of the log; assign another one for that partition.
            LogUnavailable: the reader was stopped.
        """
        ...

    async def commit(self, positions: Mapping[Position, int]) -> None:
        """Store the positions under the group, for Kafka's group tools.

        Raises:
            LogUnavailable: perhaps stored, perhaps not.
        """
        ...

    async def forget(self, partitions: Set[Position]) -> None:
        """Delete the stored positions, so that Kafka's group tools no longer show the partitions under the group.

        Raises:
            LogUnavailable: perhaps deleted, perhaps not.
        """
        ...

    async def committed(self) -> dict[Position, int]:
        """Every position that is stored under the group.

        Raises:
            LogUnavailable: no answer.
        """
        ...

    def end_of(self, partition: Position) -> int | None:
        """The end of the partition as of the last answer that spoke of it; None when nothing is known. For who reads
        committed: where the first open transaction begins."""
        ...

    def position_of(self, partition: Position) -> int | None:
        """The next offset to be read; None when the partition is not assigned.

        It moves past transaction markers and aborted records, too, while a task waits in ``fetch``: it reaches the end
        of a partition without open transactions, whatever the last records are. Those before it have been handed out.
        """
        ...

    def statistics(self) -> dict[str, Any]: ...

    async def stop(self) -> None: ...


class TransactionalProducer(Protocol):
    """Appends to several partitions, all or nothing. One ``start`` or ``commit`` at a time.

    One producer holds a transactional id: the one that started last.
    """

    async def start(self) -> None:
        """Take the transactional id: its former holder is fenced, and its open transaction aborted.

        A transaction whose commit the log had accepted is completed. Either is done when this returns.

        Raises:
            LogUnavailable: the id may or may not have been taken.
        """
        ...

    async def commit(
        self, records: Sequence[tuple[Position, PendingRecord]], marks: Sequence[GroupMarks] = ()
    ) -> list[int]:
        """One transaction; the offsets are in the order of the records. Those of a partition keep their order.

        The groups' marks are stored with it or not at all; who asks for them meanwhile waits for its outcome (KIP-447).

        Read-committed readers see all of it or nothing. When this is cancelled, ``start`` again, too.

        Raises:
            RecordRefused: definite, nothing is stored; ``commit`` something else.
            TransactionAborted: definite, nothing is stored; ``commit`` again.
            MarksRefused: definite, nothing is stored; ``commit`` again without these groups' marks.
            ProducerFenced: definite, nothing is stored; only ``start`` makes the producer usable again.
            CommitUnknown: stored as a whole or not at all; only ``start`` makes the producer usable again, and after
                it that is settled: an end offset asked for then covers the transaction.
        """
        ...

    async def stop(self) -> None:
        """Let go of the connections. The id stays fenced for those before; nothing is aborted or committed."""
        ...


class Log(Protocol):
    """An ordered, partitioned, durable log."""

    async def start(self) -> None:
        """
        Raises:
            LogUnavailable: it cannot be reached.
        """
        ...

    async def stop(self) -> None: ...

    def submit(self, kafka_topic: str, partition: int, records: list[PendingRecord]) -> asyncio.Future[int]:
        """Append the records as one batch, in order, on all in-sync replicas; the future is the first one's offset.

        Batches of a partition keep the order of the calls. The future may fail with RecordRefused (definite),
        ProducerPoisoned or LogUnavailable (unknown). It may also stay open as long as the log does not answer.
        """
        ...

    async def renew_producer(self) -> None:
        """Replace the producer. Every open future of ``submit`` has failed with ProducerPoisoned when this returns.

        Raises:
            LogUnavailable: no new producer could be made; try again.
        """
        ...

    async def end_offsets(self, partitions: Set[Position]) -> dict[Position, int]:
        """Where the next record of each partition will go: a record appended after this call has at least that offset.

        Raises:
            LogUnavailable: no answer.
        """
        ...

    async def start_offsets(self, partitions: Set[Position]) -> dict[Position, int]:
        """Where each partition begins: the first offset that can be read.

        Raises:
            LogUnavailable: no answer.
        """
        ...

    async def offsets_for_times(self, times_ms: Mapping[Position, int]) -> dict[Position, int]:
        """The first record of each partition whose timestamp is that time or later; its end when there is none yet.

        Raises:
            LogUnavailable: no answer.
        """
        ...

    def consumer(self, group_id: str | None, *, read_committed: bool = False) -> LogConsumer:
        """A new reader; ``group_id`` names the group under which it commits (None: it never does).

        ``read_committed``: it stops before the first record of a transaction that is still open, and passes over the
        records of aborted ones.
        """
        ...

    def transactional_producer(self, transactional_id: str) -> TransactionalProducer:
        """A new producer, to be started; starting and stopping it is all that fencing another process takes."""
        ...

    def leases(self) -> Leases:
        """How the node takes its part of shared subscriptions' partitions (`bridge.shared`)."""
        ...

    def statistics(self) -> dict[str, Any]: ...
