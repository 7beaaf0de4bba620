"""Reads a whole compacted Kafka topic, then follows it: what every view of such a topic stands on.

`caught_up` is how a caller is sure that the view has what was in the log before the call. Many callers share one
question to Kafka.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Generic, TypeVar

from bridge.log import Log, LogConsumer, LogError, LogTruncated, LogUnavailable, Position, Record

logger = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 120.0  # a million records are read in about 25 s
TICK_S = 1.0  # how often an idle view is looked after
RETRY_S = 0.5
GAP_S = 1.0  # nothing came for that long while loading: is there anything left before the end?

T = TypeVar("T")


class SharedAnswer(Generic[T]):
    """One question at a time; who asks while one is under way gets the next answer, for it must not be older."""

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._next: asyncio.Future[T] | None = None
        self._task: asyncio.Task[None] | None = None

    async def get(self) -> T:
        """The answer to a question that is asked after this call. Raises what the question raises."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._run(), name="headwater-question")
        return await asyncio.shield(self._next)

    @property
    def is_busy(self) -> bool:
        """Whether a question is under way or about to be asked."""
        return self._task is not None

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._next is not None:
            self._next.cancel()

    async def _run(self) -> None:
        try:
            while self._next is not None:
                waiter, self._next = self._next, None
                try:
                    answer = await self._ask()
                except LogError as error:
                    waiter.set_exception(error)
                    waiter.exception()  # nobody may be left to look at it
                except BaseException:
                    waiter.cancel()
                    raise
                else:
                    if not waiter.done():
                        waiter.set_result(answer)
        finally:
            self._task = None


class TopicTail:
    """Belongs to one event loop.

    Args:
        take: called with each record and its partition, in the order of the log.
        tick: called after each fetch, at the latest when the seconds have passed that it returned before.
        on_truncated: the partition begins anew: it was deleted and made again, or cut.
    """

    def __init__(
        self,
        source: Log,
        kafka_topic: str,
        partitions: int,
        take: Callable[[int, Record], None],
        *,
        tick: Callable[[], float] = lambda: TICK_S,
        on_truncated: Callable[[int], None] = lambda _: None,
        read_committed: bool = False,
    ) -> None:
        self._log = source
        self._kafka_topic = kafka_topic
        self._take = take
        self._tick = tick
        self._on_truncated = on_truncated
        self._read_committed = read_committed
        self._at: dict[Position, int] = {(kafka_topic, partition): 0 for partition in range(partitions)}
        self._ends = SharedAnswer(lambda: self._log.end_offsets(frozenset(self._at)))
        self._waiters: list[tuple[dict[Position, int], asyncio.Future[None]]] = []
        self._consumer: LogConsumer | None = None
        self._task: asyncio.Task[None] | None = None
        self.errors = 0

    async def start(self, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        """Read to the ends as of now, then go on by itself.

        Raises:
            LogUnavailable: the ends could not be reached in time.
        """
        assert self._consumer is None, "started once"
        self._consumer = self._log.consumer(None, read_committed=self._read_committed)
        self._consumer.assign(self._at)
        try:
            async with asyncio.timeout(timeout_s):
                await self._load(await self._log.end_offsets(frozenset(self._at)))
        except BaseException as error:
            await self.stop()
            if isinstance(error, TimeoutError):
                raise LogUnavailable(f"{self._kafka_topic} could not be read within {timeout_s:.0f} s") from None
            raise
        self._task = asyncio.get_running_loop().create_task(self._follow(), name=f"tail-{self._kafka_topic}")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._ends.stop()
        for _, waiter in self._waiters:
            waiter.cancel()
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await consumer.stop()

    async def caught_up(self, partitions: Collection[int] | None = None) -> None:
        """Until the records of these partitions (None: of all) that were in the log before this call are taken.

        Raises:
            LogUnavailable: Kafka does not answer.
        """
        ends = await self._ends.get()
        missing = {
            position: end
            for position, end in ends.items()
            if self._at[position] < end and (partitions is None or position[1] in partitions)
        }
        if missing:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((missing, waiter))
            await waiter

    async def _load(self, ends: dict[Position, int]) -> None:
        while any(self._at[position] < end for position, end in ends.items()):
            if not await self._read(GAP_S):
                await self._skip_gaps(ends)

    async def _skip_gaps(self, ends: dict[Position, int]) -> None:
        """Compaction may leave nothing between our position and the end. Asked anew, Kafka tells the end without a
        record: then there is none."""
        assert self._consumer is not None
        self._consumer.assign({})  # forgets the ends that it knows
        self._consumer.assign(self._at)
        if await self._read(GAP_S):
            return
        for position, end in ends.items():
            if self._at[position] < end and (self._consumer.end_of(position) or 0) >= end:
                self._at[position] = end
        self._consumer.assign(self._at)

    async def _follow(self) -> None:
        wait_s = TICK_S
        while True:
            try:
                await self._read(wait_s)
                wait_s = self._tick()
            except LogError as error:
                self.errors += 1
                logger.warning("%s cannot be read now: %s", self._kafka_topic, error)
                await asyncio.sleep(RETRY_S)

    async def _read(self, timeout_s: float) -> bool:
        """Take what comes within the time; whether a position has moved."""
        consumer = self._consumer
        assert consumer is not None
        try:
            fetched = await consumer.fetch(timeout_s)
        except LogTruncated as error:
            logger.warning("%s", error)
            self._at[error.partition] = error.start
            consumer.assign(self._at)
            self._on_truncated(error.partition[1])
            return True
        for (_, partition), records in fetched:
            for record in records:
                self._take(partition, record)
        has_moved = False
        for position, at in self._at.items():
            now_at = consumer.position_of(position)
            if now_at is not None and now_at > at:
                self._at[position] = now_at
                has_moved = True
        if has_moved and self._waiters:
            self._wake_waiters()
        await asyncio.sleep(0)  # what is fetched already comes without waiting: others have their turn
        return has_moved

    def _wake_waiters(self) -> None:
        still = []
        for missing, waiter in self._waiters:
            if waiter.done():
                continue
            if all(self._at[position] >= end for position, end in missing.items()):
                waiter.set_result(None)
            else:
                still.append((missing, waiter))
        self._waiters = still
