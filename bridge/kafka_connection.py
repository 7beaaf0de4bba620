"""One aiokafka client for the bridge's own requests: who leads a partition, where it ends, whom a group belongs to.

Kafka answers the requests of one connection one after another, and a fetch may wait half a second for data. So each
purpose has its own connection: aiokafka keeps one per (Kafka broker, group number), and ``new_lane`` gives out numbers.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

import aiokafka.errors as errors
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.errors import KafkaError
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.structs import TopicPartition

from bridge.log import LogUnavailable, Position

LATEST, EARLIEST = -1, -2
RETRY_S = 0.05
_COORDINATOR_CODES = frozenset((14, 15, 16))  # loading, not available, not the coordinator: try again
ANSWER_S = 10.0  # how long a question is repeated before it fails with LogUnavailable


class KafkaConnection:
    """Metadata, ends of partitions, group coordinators; raises LogUnavailable when Kafka gives no answer."""

    def __init__(
        self, bootstrap_servers: str, client_id: str, request_timeout_ms: int, options: Mapping[str, Any]
    ) -> None:
        self.client = AIOKafkaClient(
            bootstrap_servers=bootstrap_servers,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            **options,
        )
        self._lanes = itertools.count(100)  # far from aiokafka's own numbers
        self._coordinators: dict[str, int] = {}

    async def start(self) -> None:
        try:
            await self.client.bootstrap()
        except (KafkaError, OSError, TimeoutError) as error:
            await self.client.close()
            raise LogUnavailable(f"Kafka cannot be reached: {error}") from error

    async def stop(self) -> None:
        await self.client.close()

    def new_lane(self) -> int:
        """A number for a connection of one's own."""
        return next(self._lanes)

    def close_lanes(self, lanes: Set[int]) -> None:
        for node, lane in list(self.client._conns):
            if lane in lanes:
                self.client._conns.pop((node, lane)).close()

    def leader(self, position: Position) -> int | None:
        """The Kafka broker that leads the partition; None as long as that is not known (then metadata is asked for)."""
        node: int | None = self.client.cluster.leader_for_partition(TopicPartition(*position))
        if node is None or node == -1:
            self.client.add_topic(position[0])
            return None
        return node

    def refresh(self) -> asyncio.Future[Any]:
        """Ask for new metadata; the future is done when it came (or could not be had)."""
        future: asyncio.Future[Any] = self.client.force_metadata_update()
        return future

    async def offsets(self, positions: Iterable[Position], which: int) -> dict[Position, int]:
        """The first or the next offset of each partition; or, for a time in milliseconds, that of the first record
        which is not older (-1: there is none)."""
        wanted = set(positions)
        found: dict[Position, int] = {}
        trouble: object = "no leader"
        try:
            async with asyncio.timeout(ANSWER_S):
                while True:
                    try:
                        found.update(await self._offsets_once(wanted - found.keys(), which))
                    except (KafkaError, OSError) as error:
                        trouble = error
                    if len(found) == len(wanted):
                        return found
                    await self.refresh()
                    await asyncio.sleep(RETRY_S)
        except TimeoutError:
            missing = sorted(wanted - found.keys())
            raise LogUnavailable(f"Kafka did not say where {missing[:5]} end: {trouble!r}") from None

    async def _offsets_once(self, positions: Set[Position], which: int) -> dict[Position, int]:
        by_node: dict[int, dict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
        for position in positions:
            node = self.leader(position)
            if node is not None:
                by_node[node][position[0]].append((position[1], which))
        found: dict[Position, int] = {}
        requests = [
            self.client.send(node, OffsetRequest(-1, 0, list(kafka_topics.items())))
            for node, kafka_topics in by_node.items()
        ]
        failed: BaseException | None = None
        for answer in await asyncio.gather(*requests, return_exceptions=True):
            if isinstance(answer, BaseException):
                failed = answer
                continue
            for kafka_topic, partitions in answer.topics:
                for partition, error_code, _timestamp, offset in partitions:
                    if error_code == 0:
                        found[kafka_topic, partition] = offset
        if failed is not None and not found:
            raise failed
        return found

    async def ask_coordinator(
        self, group_id: str, what: str, request: Any, codes_of: Callable[[Any], Iterable[int]]
    ) -> Any:
        """The answer of the Kafka broker that coordinates the group; what is asked may be asked twice.

        Raises LogUnavailable when there is none in time, or one with an error that another try does not mend.
        """
        trouble: object = None
        try:
            async with asyncio.timeout(ANSWER_S):
                while True:
                    try:
                        answer = await self._ask_coordinator_once(group_id, request)
                    except (KafkaError, OSError) as error:
                        trouble = error
                    else:
                        codes = {code for code in codes_of(answer) if code}
                        if not codes:
                            return answer
                        trouble = ", ".join(sorted(errors.for_code(code).__name__ for code in codes))
                        if codes - _COORDINATOR_CODES:
                            break
                    self._coordinators.pop(group_id, None)
                    await asyncio.sleep(RETRY_S)
        except TimeoutError:
            self._coordinators.pop(group_id, None)
        raise LogUnavailable(f"{what} of group {group_id}: {trouble!r}")

    async def _ask_coordinator_once(self, group_id: str, request: Any) -> Any:
        node = await self.group_coordinator(group_id)
        return await self.client.send(node, request, group=ConnectionGroup.COORDINATION)

    async def group_coordinator(self, group_id: str) -> int:
        """The Kafka broker that coordinates the group, as far as is known; raises KafkaError."""
        node = self._coordinators.get(group_id)
        if node is None:
            node = self._coordinators[group_id] = await self.client.coordinator_lookup(CoordinationType.GROUP, group_id)
        return node

    def forget_group_coordinator(self, group_id: str) -> None:
        """It is another one now, perhaps."""
        self._coordinators.pop(group_id, None)
