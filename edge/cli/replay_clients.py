"""`headwater replay --as-clients`: a recorded window played by real MQTT clients, and a report of what arrived."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from bridge.partitioning import RouteTable
from bridge.replay.arrivals import Arrivals
from bridge.replay.bounds import partitions_of, resolve
from bridge.replay.jsonl import read_file
from bridge.replay.pacing import Pacer, Speed
from bridge.replay.reader import ReplayReader
from bridge.replay.selection import Item, PayloadTest, Selection
from bridge.resize_layouts import read_layouts
from edge.cli.console import Cluster, output, print_json
from edge.cli.replay_output import printable
from edge.cli.replay_request import checked_filters, connected
from edge.client import MqttClient, MqttClientError, Properties, Publish, SubscriptionRequest
from schemas.errors import ConfigurationError, RecordError
from schemas.message import Message
from schemas.records import decode_headers
from schemas.replay_range import ReplayRange

CONNECTS_AT_A_TIME = 50  # an edge takes some thousands a second; this many wait for their CONNACK together
UNACKNOWLEDGED_MAX = 5_000  # of all clients: then the oldest is waited for
PORTION = 500  # records that are read from a file before others have a turn
SETTLE_S = 5.0  # nothing has arrived for so long: nothing more will
ANSWER_S = 30.0  # for the last acknowledgements
NAMES_SHOWN = 20
NAMELESS = "headwater-replay"  # plays what no MQTT client has published


@dataclass(slots=True)
class PlayReport:
    """What was played and what became of it."""

    clients: int = 0
    connect_errors: int = 0
    refused: int = 0  # by the server, or lost with a connection: QoS 1 and 2
    unplayable: int = 0  # records that are no MQTT message


class ClientPlayer:
    """Publishes records as the clients that published them. A client that is connected stays so until its place is
    needed for another one."""

    def __init__(
        self, host: str, port: int, clients_max: int, user: tuple[str, str] | None, arrivals: Arrivals
    ) -> None:
        self._host = host
        self._port = port
        self._clients_max = clients_max
        self._user = user
        self._arrivals = arrivals
        self._clients: OrderedDict[str, MqttClient] = OrderedDict()
        self._seen: set[str] = set()
        self._open: deque[asyncio.Future[Any]] = deque()
        self._arrived = asyncio.Event()
        self._checker: MqttClient | None = None
        self.report = PlayReport()

    async def watch(self, topic_filters: Sequence[str]) -> None:
        """Subscribe, to see what arrives. Raises MqttClientError, ConfigurationError."""
        self._checker = self._client(f"headwater-replay-check-{secrets.token_hex(4)}", receive_maximum=10_000)
        self._checker.on_message(self._take)
        await self._checker.connect()
        requests = [SubscriptionRequest(each, 2, retain_as_published=True, retain_handling=2) for each in topic_filters]
        for topic_filter, reason_code in zip(topic_filters, await self._checker.subscribe(requests), strict=True):
            if reason_code >= 0x80:
                raise ConfigurationError(f"{topic_filter!r} cannot be subscribed to there: {reason_code.name}")

    async def play(self, items: Sequence[Item]) -> None:
        """Publish these now, each client's in its order."""
        messages: list[Message] = []
        client_ids: set[str] = set()
        for _, _, record, name in items:
            try:
                message = decode_headers(record.headers)
            except RecordError:
                self.report.unplayable += 1
                continue
            message.topic_name, message.payload = name.decode(), record.value or b""
            message.client_id = message.client_id or NAMELESS
            if message.client_id not in client_ids and len(client_ids) == self._clients_max:
                await self._publish(messages)
                messages, client_ids = [], set()
            client_ids.add(message.client_id)
            messages.append(message)
        await self._publish(messages)

    async def finish(self) -> None:
        """Until everything is acknowledged and has arrived, or nothing comes any more; then everybody goes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await self._settle(0)
        with suppress(TimeoutError):
            while self._arrivals.waiting_total:
                self._arrived.clear()
                async with asyncio.timeout(SETTLE_S):
                    await self._arrived.wait()

    async def close(self) -> None:
        """Disconnect all."""
        clients = [*self._clients.values(), *([self._checker] if self._checker is not None else [])]
        self._clients.clear()
        for first in range(0, len(clients), CONNECTS_AT_A_TIME):
            await asyncio.gather(*(client.disconnect() for client in clients[first : first + CONNECTS_AT_A_TIME]))

    async def _publish(self, messages: Sequence[Message]) -> None:
        """Of no more clients than there may be."""
        await self._connect([each.client_id for each in messages])
        for message in messages:
            client = self._clients.get(message.client_id)
            properties = Properties(
                payload_format_indicator=message.payload_format,
                message_expiry_interval_s=message.expiry_s,
                content_type=message.content_type,
                response_topic=message.response_topic,
                correlation_data=message.correlation_data,
                user_properties=message.user_properties,
            )
            self._arrivals.sent(message.topic_name.encode(), message.qos, message.payload)
            try:
                if client is None:
                    continue  # it could not connect: what it had to say is missing
                future = client.publish(message.topic_name, message.payload, message.qos, message.retain, properties)
            except MqttClientError:
                self.report.refused += 1
                continue
            if future is not None:
                self._open.append(future)
        await self._settle(UNACKNOWLEDGED_MAX)

    def _take(self, message: Publish) -> None:
        self._arrivals.arrived(message.topic_name_utf8, message.qos, message.payload)
        self._arrived.set()

    def _client(self, client_id: str, **more: Any) -> MqttClient:
        name, password = self._user if self._user is not None else (None, None)
        return MqttClient(self._host, self._port, client_id, user_name=name, password=password, **more)

    async def _connect(self, client_ids: Sequence[str]) -> None:
        wanted = dict.fromkeys(client_ids)
        missing = [each for each in wanted if each not in self._clients or not self._clients[each].is_connected]
        for client_id in wanted:
            if client_id in self._clients:
                self._clients.move_to_end(client_id)
        for first in range(0, len(missing), CONNECTS_AT_A_TIME):
            some = missing[first : first + CONNECTS_AT_A_TIME]
            await self._make_room(len(some), keep=wanted)
            await asyncio.gather(*map(self._connect_one, some))

    async def _connect_one(self, client_id: str) -> None:
        client = self._client(client_id)
        try:
            await client.connect()
        except MqttClientError:
            self.report.connect_errors += 1
            return
        self._clients[client_id] = client
        self._seen.add(client_id)
        self.report.clients = len(self._seen)

    async def _make_room(self, count: int, keep: dict[str, None]) -> None:
        """Those who have been silent for longest go, when their messages are acknowledged."""
        going = [each for each in self._clients if each not in keep]
        excess = len(self._clients) + count - self._clients_max
        leaving = [self._clients.pop(each) for each in going[: max(0, excess)]]
        if leaving:
            await self._settle(0)
            await asyncio.gather(*(client.disconnect() for client in leaving))

    async def _settle(self, left: int) -> None:
        while len(self._open) > left:
            try:
                await self._open.popleft()
            except MqttClientError:
                self.report.refused += 1


@dataclass(frozen=True, slots=True)
class Cast:
    """Who plays where, as the command line says it."""

    address: str
    speed: Speed
    clients_max: int
    user: str | None
    from_file: Path | None
    as_json: bool

    def player(self, arrivals: Arrivals) -> ClientPlayer:
        """Raises ConfigurationError."""
        host, _, port = self.address.rpartition(":")
        if not host or not port.isascii() or not port.isdigit():
            raise ConfigurationError(f"--as-clients {self.address}: write HOST:PORT, where MQTT is spoken")
        name, colon, password = (self.user or "").partition(":")
        if self.user is not None and not colon:
            raise ConfigurationError("--user: write NAME:PASSWORD")
        user = (name, password) if self.user is not None else None
        return ClientPlayer(host.strip("[]"), int(port), self.clients_max, user, arrivals)


def play(
    cast: Cast,
    filters: Sequence[str] | None,
    wanted: ReplayRange,
    tests: Sequence[PayloadTest],
    target: Callable[[], Cluster],
) -> None:
    """The command; exit code 1 when something arrived otherwise than it was sent."""
    topic_filters = checked_filters(filters or (["#"] if cast.from_file is not None else None))
    arrivals = Arrivals()
    player = cast.player(arrivals)
    begun_s = time.monotonic()

    async def run() -> None:
        source = target()
        table = RouteTable(source.routes)
        chosen = Selection(topic_filters, table.topic_name_from_key, tests)
        async with AsyncExitStack() as stack:
            if cast.from_file is not None:
                batches = file_batches(cast.from_file, chosen)
            else:
                log = await stack.enter_async_context(connected(source))
                await read_layouts(log, table)
                bounds, _ = await resolve(log, partitions_of(table, topic_filters), wanted)
                reader = ReplayReader(log, bounds, chosen)
                stack.push_async_callback(reader.stop)
                batches = reader.batches()
            await play_all(player, batches, topic_filters, Pacer(cast.speed))

    try:
        asyncio.run(run())
    except MqttClientError as error:
        raise ConfigurationError(f"--as-clients {cast.address}: {error}") from None
    _tell(player, arrivals, time.monotonic() - begun_s, cast.as_json)


async def play_all(
    player: ClientPlayer, batches: AsyncIterator[list[Item]], filters: Sequence[str], pacer: Pacer
) -> None:
    """Watch, play at the pacer's speed, wait for what is under way. Raises MqttClientError."""
    loop = asyncio.get_running_loop()
    try:
        await player.watch(filters)
        async for batch in batches:
            while batch:
                count, wait_s = pacer.due(batch, loop.time())
                await player.play(batch[:count])
                batch = batch[count:]
                if batch:
                    await asyncio.sleep(wait_s)
        await player.finish()
    finally:
        await player.close()


async def file_batches(path: Path, chosen: Selection) -> AsyncIterator[list[Item]]:
    """The records of a file that are wanted. Raises ConfigurationError, RecordError."""
    portion: list[Item] = []
    for each in read_file(path):
        if not isinstance(each, dict):
            portion += chosen.take(each[1], [each[2]], each[0])[0]
        if len(portion) >= PORTION:
            yield portion
            portion = []
            await asyncio.sleep(0)
    if portion:
        yield portion


def _tell(player: ClientPlayer, arrivals: Arrivals, elapsed_s: float, as_json: bool) -> None:
    played, figures, differences = player.report, arrivals.report(), arrivals.differences()
    if as_json:
        names = {name: _counts(each) for name, each in differences.items()}
        told = {name: getattr(played, name) for name in PlayReport.__slots__}
        print_json({**told, **figures, "seconds": round(elapsed_s, 1), "differences": names})
    else:
        console = output()
        console.print(f"{figures['sent']:,} messages by {played.clients:,} clients in {elapsed_s:,.1f} s")
        console.print(
            f"{figures['arrived']:,} arrived; " + ", ".join(f"{figures[each]:,} {what}" for each, what in _WORDS)
        )
        if played.connect_errors or played.refused or played.unplayable:
            console.print(
                f"{played.connect_errors:,} connections failed, {played.refused:,} messages were refused or lost with "
                f"their connection, {played.unplayable:,} records are no MQTT message"
            )
        if differences:
            console.print(_table(differences))
    if differences:
        raise typer.Exit(1)


_WORDS = (("missing", "missing"), ("extra", "extra"), ("reordered", "reordered"), ("payload", "with another payload"))


def _counts(each: Any) -> dict[str, int]:
    return {name: getattr(each, name) for name, _ in _WORDS}


def _table(differences: dict[str, Any]) -> Table:
    table = Table("Topic Name", *(name for name, _ in _WORDS))
    for name, each in list(differences.items())[:NAMES_SHOWN]:
        table.add_row(escape(printable(name)), *(f"{number:,}" for number in _counts(each).values()))
    if len(differences) > NAMES_SHOWN:
        table.add_row(f"and {len(differences) - NAMES_SHOWN:,} more")
    return table
