"""One edge node: its parts, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Set
from typing import Any

import orjson
from aiohttp import web

from bridge.catch_up import CatchUp
from bridge.control import Control
from bridge.delayed import DelayedMessages
from bridge.deliverer import Deliverer
from bridge.event_log import EventLog
from bridge.exclusive import ExclusiveFilters
from bridge.history.feeds import ReplayFeeds
from bridge.log import Log, LogError, LogUnavailable, Position
from bridge.membership import Membership
from bridge.ownership import EXCLUSIVE_KEY, Ownership
from bridge.partitioning import Destination, RouteTable
from bridge.point_reads import PointReader
from bridge.publisher import Publisher
from bridge.resize_follower import ResizeFollower
from bridge.retained import RetainedMessages
from bridge.retained_view import RetainedView
from bridge.session_keeper import SessionKeeper
from bridge.session_store import SessionStore
from bridge.shared.shared_subscriptions import SharedSubscriptions
from bridge.subscriptions import SubscriptionTable
from bridge.twins import TwinCatchUp, TwinDeliverer
from edge.handler.exclusive import lose_exclusive
from edge.handler.protocol import EdgeProtocolHandler
from edge.handler.retaining import RetainedPacer
from edge.handler.services import EdgeServices
from edge.node.access import build_access
from edge.node.config import EdgeConfig
from edge.node.decisions import Decisions
from edge.node.draining import Drain
from edge.node.http import start_http
from edge.node.http_api import StateApi
from edge.node.listeners import Listener, address_text, bound_address, open_listener
from edge.node.statistics import node_statistics
from edge.node.sys_topics import CLIENT_EVENTS, SysTopics
from edge.rules.selectors import Selectors
from edge.session.connect import Capabilities
from edge.wire import ReasonCode
from schemas.catalogue import CONTROL, DAY_MS, MESSAGE_RETENTION_MS
from schemas.nodes import HEARTBEAT_STALE_S, STATE_DRAINING, STATE_UP, NodeHeartbeat
from schemas.records import HEADER_CONTENT_TYPE, HEADER_QOS, HEADER_TOPIC
from schemas.routes import Q2_SUFFIX
from schemas.sampling import threshold
from schemas.sessions import SessionState
from schemas.topics import SHARE_PREFIX

log = logging.getLogger(__name__)

STATS_INTERVAL_S = 2.0  # as often as heartbeats
EXCLUSIVE_INTERVAL_S = 2.0  # until a filter is free whose holder died with its edge, after that has been noticed
CHECKPOINT_INTERVAL_S = 5.0  # what a client may get twice (QoS 1) when its edge dies
CHECKPOINTS_AT_ONCE = 50  # a step of the loop of about a millisecond
SESSION_EXPIRY_S_MAX = (MESSAGE_RETENTION_MS - DAY_MS) // 1000  # an offline session's queue is the log (design 6)
NOT_READY_AFTER_S = 5.0  # without Kafka: new clients are sent elsewhere (design section 6)
WRITE_LEASE_S = HEARTBEAT_STALE_S - 1.0  # from a heartbeat on: others cannot take us for dead before
CLOSE_CLIENTS_AFTER_S = 20.0  # without Kafka: the clients that are here move, too
SHUT_DOWN_S = 10.0  # from SIGTERM to the end, if Kafka is there
DRAIN_SHARE = 0.6  # of that time is for clients to move one by one; those that are left go all at once
FLUSH_TIMEOUT_S = 10.0  # what is in flight at the stop is given this long to be acknowledged and stored, all in all
FLUSH_TIMEOUT_S_MIN = 0.5  # for each of its steps
STEPS_TIMEOUT_S = 1.0  # for what their last packets have begun
GOODBYE_TIMEOUT_S = 2.0  # for clients to take their last bytes


class EdgeNode:
    """Devices on one side, the log on the other.

    `start` raises ConfigurationError or LogUnavailable and leaves nothing running then; `stop` finishes what is in
    flight, says goodbye to every client and ends.
    """

    def __init__(self, config: EdgeConfig, backbone: Log) -> None:
        self.config = config
        self._log = backbone
        self._servers: list[Listener] = []
        self._http: web.AppRunner | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._membership: Membership | None = None
        self._keeper: SessionKeeper | None = None
        self._draining = False
        self._drain_task: asyncio.Task[None] | None = None
        self._stop_by = 0.0  # on the loop's clock
        self._turn = 0  # of the other nodes' addresses: each client that has to go gets another one first
        self.drained = asyncio.Event()  # a drain that was asked for is done: nothing is left but to stop
        self.control: Control | None = None
        self._decisions: Decisions | None = None
        self._follower: ResizeFollower | None = None
        self._beaten_s = 0.0  # when the last heartbeat that is in the log was sent
        self._lease_task: asyncio.Task[None] | None = None
        self._is_up_to_date = False  # all decisions are in force that were made before this node was to be seen
        self._started_ms = int(time.time() * 1000)
        self._incarnation = f"{os.getpid()}-{self._started_ms}"  # `_started_ms` reads it
        self.services: EdgeServices = _NOT_STARTED
        self._sys_topics = SysTopics(
            lambda: self.services,
            config.node_id,
            self._live_heartbeats,
            self._started_ms,
            interval_s=config.sys.interval_s,
            client_events=config.sys.client_events,
        )

    async def start(self) -> None:
        """1. the log, 2. access and what operators have decided, deliverer, sessions, the retained messages,
        3. listeners and HTTP, 4. membership, 5. `$SYS`."""
        await self._log.start()
        try:
            await self._start_parts()
        except BaseException:
            await self.stop()
            raise

    async def stop(self, within_s: float = FLUSH_TIMEOUT_S) -> None:
        """The reverse: no new clients, goodbye to the old ones, flush, tombstone, close. What Kafka does not
        acknowledge in this time is given up."""
        self._stop_by = asyncio.get_running_loop().time() + within_s
        self._draining = True
        if self._drain_task is not None:
            self._drain_task.cancel()
            await asyncio.gather(self._drain_task, return_exceptions=True)
        for server in self._servers:
            server.close()
        if self.services is not _NOT_STARTED:
            await self._say_goodbye()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._lease_task is not None:
            self._lease_task.cancel()
            await asyncio.gather(self._lease_task, return_exceptions=True)
        if self._http is not None:
            await self._http.cleanup()
        if self._membership is not None:
            await self._membership.leave()
        if self._decisions is not None:
            await self._decisions.stop()
        if self.control is not None:
            await self.control.stop()
        if self._follower is not None:
            await self._follower.stop()
        if self.services is not _NOT_STARTED:
            await self.services.access.authenticator.stop()
            if self.services.access.enhanced is not None:
                await self.services.access.enhanced.stop()
            if self.services.pacer is not None:
                self.services.pacer.stop()
            await self._end_sessions()
            self._take_command_back()
            await self.services.shared.stop()
            await self.services.history.stop()
            await self.services.sessions.stop(self._left_s())
            await self.services.publisher.stop(self._left_s())
            await self.services.ownership.stop()
            if self.services.delayed is not None:
                await self.services.delayed.stop()
            if self.services.retained is not None:
                await self.services.retained.stop()
            await self.services.catch_up.stop()
            await self.services.deliverer.stop()
        await self._log.stop()

    async def shut_down(self, within_s: float = SHUT_DOWN_S) -> None:
        """Drain for a part of the time, then `stop`: what SIGTERM does. Without another node there is nobody to move
        clients to: they are told at once."""
        stop_by = asyncio.get_running_loop().time() + within_s
        if self.services is not _NOT_STARTED and self._other_addresses():
            self._begin_to_drain(self.config.drain_clients_per_s, within_s * DRAIN_SHARE)
            assert self._drain_task is not None
            await asyncio.wait({self._drain_task}, timeout=within_s * DRAIN_SHARE)
        await self.stop(stop_by - asyncio.get_running_loop().time())

    def drain(self, clients_per_s: float | None = None) -> None:
        """Take no new clients and move those that are here to the other nodes; `drained` is set when it is done.
        Asking again changes the rate."""
        self._begin_to_drain(clients_per_s or self.config.drain_clients_per_s, None)

    def _begin_to_drain(self, clients_per_s: float, within_s: float | None) -> None:
        self._draining = self.services.is_draining = True
        if self.config.reuse_port:  # the kernel gives new connections to the other workers
            for server in self._servers:
                server.close()
        if self._drain_task is not None:
            self._drain_task.cancel()
        self._drain_task = asyncio.create_task(self._drain(clients_per_s, within_s))

    async def _drain(self, clients_per_s: float, within_s: float | None) -> None:
        drain = Drain(self.services, self._server_reference)
        log.info("%d clients move to other nodes", len(self.services.clients))
        try:
            if self._other_addresses():
                await drain.run(clients_per_s, within_s)
        finally:
            log.info("%d clients have moved, %d are left", drain.moved, len(self.services.clients))
        self.drained.set()

    @property
    def mqtt_addresses(self) -> list[tuple[str, int]]:
        """Where devices connect, in the order of the configuration."""
        return [bound_address(server) for server in self._servers]

    @property
    def http_address(self) -> tuple[str, int] | None:
        """Where HTTP and WebSocket are served."""
        if self._http is None:
            return None
        host, port = self._http.addresses[0][:2]
        return str(host), int(port)

    def is_ready(self) -> bool:
        """Whether new clients are served: not draining, and Kafka has answered within the last 5 s."""
        return not self._draining and self._is_up_to_date and self._silence_s() < NOT_READY_AFTER_S

    def heartbeat(self) -> NodeHeartbeat:
        """What this node says of itself every 2 s."""
        services = self.services
        mqtt = self.config.advertised_mqtt or (address_text(self.mqtt_addresses[0]) if self._servers else "")
        http = self.config.advertised_http or (address_text(self.http_address) if self.http_address else "")
        return NodeHeartbeat(
            node_id=self.config.node_id,
            incarnation=self._incarnation,
            started_ms=self._started_ms,
            sent_ms=services.wall_ms(),
            mqtt_address=mqtt,
            http_address=http,
            state=STATE_DRAINING if self._draining else STATE_UP,
            connections=len(services.connections),
            sessions=len(services.clients),
            subscriptions=services.table.statistics()["subscriptions"],
            consumed=_consumed(services.deliverer.plain),
            consumed_exactly_once=_consumed(services.deliverer.exactly_once),
            lag_records=services.deliverer.statistics()["lag_records"],
            routes_version=services.routes.version,
            layouts=self._follower.told() if self._follower is not None else (),
        )

    def _told_time(self, offset_ms: float) -> None:
        """All edges go by Kafka's clock."""
        self.services.wall_clock_offset_ms = offset_ms

    # The parts -------------------------------------------------------------------------------------------------------

    async def _start_parts(self) -> None:
        config = self.config
        self.services = services = self._build_services()
        decisions = self._decisions = Decisions(services, self._incarnation, self.drain)
        follower = self._follower = self._build_follower(services)
        self.control = Control(
            self._log, services.publisher.append_future, decisions.take, decisions.tick, taken=follower.take
        )
        await self.control.start()
        await services.access.authenticator.start()
        if services.access.enhanced is not None:
            await services.access.enhanced.start()
        await services.deliverer.start()
        await services.ownership.start()
        await services.sessions.start()
        if services.capabilities.retain_available:
            await self._start_retained(services)
        if config.delayed.enabled:
            await self._start_delayed(services)
        if config.exclusive_subscriptions:
            services.exclusive = ExclusiveFilters(services.ownership, services.sessions, self._live_nodes)
        self._membership = Membership(
            self._log,
            services.publisher.append_future,
            self.heartbeat,
            on_clock=self._told_time,
            on_beat=self._has_beaten,
        )
        for listener in config.listeners:
            self._servers.append(await open_listener(services, listener, config.reuse_port))
        if config.http is not None:
            api = StateApi(services, config.http, config.dev, self.control, self._membership)
            self._http = await start_http(services, config.http, config.reuse_port, api)
        await self._membership.start()
        await self.control.caught_up()
        follower.has_clients = self._is_up_to_date = True
        self._has_beaten(time.monotonic())
        keeper = self._keeper = self._build_keeper(services)
        self._tasks = [
            asyncio.create_task(keeper.run()),
            asyncio.create_task(self._watch_kafka()),
            asyncio.create_task(self._publish_statistics()),
            *([asyncio.create_task(self._sys_topics.run())] if config.sys.interval_s else ()),
            asyncio.create_task(self._checkpoint_sessions()),
            asyncio.create_task(self._settle_exclusive()),
            *([asyncio.create_task(services.delayed.run())] if services.delayed is not None else ()),
        ]
        log.info("edge %s serves MQTT on %s", config.node_id, self.mqtt_addresses)

    def _build_services(self) -> EdgeServices:
        config = self.config
        loop = asyncio.get_running_loop()
        limits = config.effective_limits()
        routes = RouteTable(config.effective_routes())
        table = SubscriptionTable()
        publisher = Publisher(self._log, lambda: self.services.flush_soon())
        deliverer, catch_up = self._build_ways_out(routes, table, publisher)
        ownership = Ownership(
            self._log,
            publisher.append_future,
            config.node_id,
            self._incarnation,
            is_live=self._is_live,
            on_lost=self._session_lost,
            is_replaced=self._is_replaced,
        )
        access = build_access(config, limits)
        events = EventLog(publisher.append, config.node_id, clock_ms=lambda: self.services.wall_ms())
        sessions = SessionStore(
            self._log,
            config.node_id,
            ownership,
            after_batch=lambda: self.services.flush_soon(),
            place=self._place,
        )
        return EdgeServices(
            node_id=config.node_id,
            loop=loop,
            limits=limits,
            capabilities=Capabilities(
                qos_max=2,
                retain_available=True,
                shared_subscription_available=True,
                session_expiry_s_max=SESSION_EXPIRY_S_MAX,
                authentication_methods=access.enhanced.methods if access.enhanced is not None else frozenset(),
            ),
            access=access,
            routes=routes,
            table=table,
            publisher=publisher,
            deliverer=deliverer,
            catch_up=catch_up,
            ownership=ownership,
            sessions=sessions,
            point_reader=PointReader(self._log, routes),
            shared=SharedSubscriptions(
                self._log,
                routes,
                self._log.leases(),
                after_batch=lambda: self.services.flush(),
                is_held=lambda share_filter: self.services.sessions.view.holds_filter(share_filter),
                dead_letter=deliverer.plain.dead_letter,
                writer=sessions,
                clock_ms=lambda: self.services.wall_ms(),
            ),
            history=self._build_history(routes, limits.replay_messages_per_s),
            start_offsets=self._log.start_offsets,
            plugins=None,
            event=self._event_of(events),
            wall_clock_offset_ms=(time.time() - loop.time()) * 1000,
            ready=self.is_ready,
            ledger_below=threshold(config.events.delivery_sample),
            server_reference=self._server_reference,
            rules=config.effective_rules(),
            selectors=Selectors(loop.time, config.selector_payload_bytes_max),
        )

    def _build_history(self, routes: RouteTable, per_s: float) -> ReplayFeeds:
        return ReplayFeeds(
            self._log,
            routes,
            per_s=per_s,
            after_batch=lambda: self.services.flush(),
            dead_letter=lambda *_: None,  # who reads live has written one; another per replay nobody needs
            clock_ms=lambda: self.services.wall_ms(),
        )

    def _event_of(self, events: EventLog) -> Callable[..., None]:
        def record(kind: str, client_id: str, **detail: Any) -> None:
            events.record(kind, client_id, **detail)
            if kind in CLIENT_EVENTS:
                self._sys_topics.client(kind, client_id, detail)

        return record

    def _live_heartbeats(self) -> list[NodeHeartbeat]:
        live = self._membership.live() if self._membership is not None else ()
        return [self.heartbeat(), *(each for each in live if each.node_id != self.config.node_id)]

    def _build_ways_out(
        self, routes: RouteTable, table: SubscriptionTable, publisher: Publisher
    ) -> tuple[TwinDeliverer, TwinCatchUp]:
        def deliverer(exactly_once: bool) -> Deliverer:
            return Deliverer(
                self._log,
                routes,
                table,
                self.config.node_id,
                lambda: self.services.flush(),
                publisher=publisher,
                exactly_once=exactly_once,
                clock_ms=lambda: self.services.wall_ms(),
            )

        def catch_up(of: Deliverer, exactly_once: bool) -> CatchUp:
            return CatchUp(
                self._log,
                table,
                routes,
                of,
                lambda: self.services.flush_soon(),
                exactly_once=exactly_once,
                clock_ms=lambda: self.services.wall_ms(),
            )

        plain, twin = deliverer(False), deliverer(True)
        return TwinDeliverer(plain, twin), TwinCatchUp(catch_up(plain, False), catch_up(twin, True))

    def _build_follower(self, services: EdgeServices) -> ResizeFollower:
        async def control_caught_up() -> None:
            assert self.control is not None
            await self.control.caught_up()

        return ResizeFollower(
            services.routes,
            services.publisher,
            services.sessions,
            services.deliverer,
            services.catch_up,
            services.shared,
            control_caught_up,
            moved=self._names_moved,
            missed=self._resize_missed,
            announce=self._announce,
            others=lambda: () if services.delayed is None else (services.delayed,),
        )

    def _names_moved(self, kafka_topic: str) -> None:
        """The Kafka topic was resized: its names are resolved anew. Replays that go on live come again, from where they
        are, as their partitions are fixed when they begin."""
        for handler in list(self.services.connections):
            if handler.engine.incoming is not None:
                handler.engine.incoming.forget_targets()
            if handler.replaying is not None and handler.replaying.goes_on_in(kafka_topic):
                handler.disconnect(ReasonCode.SERVER_BUSY, "partitions were resized; connect again to go on replaying")

    def _resize_missed(self) -> None:
        for handler in list(self.services.connections):
            handler.disconnect(ReasonCode.SERVER_BUSY, "this edge was cut off for a while; connect again")

    def _has_beaten(self, sent_s: float) -> None:
        """A heartbeat is in the log: until the others can take this node for dead it may write messages. After a pause
        only when it knows what has been decided meanwhile: it may have missed a resize."""
        self._beaten_s = sent_s
        if not self._is_up_to_date:
            return
        if self.services.publisher.has_lease:
            self._extend_lease(sent_s)
        elif self._lease_task is None or self._lease_task.done():
            self._lease_task = asyncio.create_task(self._take_lease_again())

    async def _take_lease_again(self) -> None:
        assert self.control is not None
        sent_s = 0.0
        while sent_s != self._beaten_s:
            sent_s = self._beaten_s
            try:
                await self.control.caught_up()
            except LogError as error:
                log.warning("nothing is published until the next heartbeat: %s", error)
                return
            self._extend_lease(sent_s)
        if not self.services.publisher.has_lease:  # that heartbeat came late: the next one need not
            self._announce()

    def _extend_lease(self, sent_s: float) -> None:
        routes = self.services.routes
        names = frozenset(routes.kafka_topics) | {name + Q2_SUFFIX for name in routes.kafka_topics}
        self.services.publisher.lease(names, sent_s + WRITE_LEASE_S)

    def _place(self, position: Position, key: bytes | None) -> Position:
        """Where a QoS 2 message goes, right before it does. Raises LogUnavailable while this node may not write."""
        publisher = self.services.publisher
        if not publisher.has_lease and position[0].removesuffix(Q2_SUFFIX) in self.services.routes.kafka_topics:
            raise LogUnavailable("this edge stood still; it publishes again when it knows what it has missed")
        return self.services.routes.place(position, key)

    def _announce(self) -> None:
        if self._membership is not None:
            self._membership.announce()

    def _build_keeper(self, services: EdgeServices) -> SessionKeeper:
        return SessionKeeper(
            services.ownership,
            services.sessions,
            services.routes,
            services.publisher,
            services.retained,
            self._live_nodes,
            services.wall_ms,
            on_over=self._session_over,
            on_adopted=self._connection_lost,
        )

    async def _start_retained(self, services: EdgeServices) -> None:
        """Nobody is served before the view of the retained messages is whole."""
        limits = services.limits
        view = RetainedView(limits.retained_messages_max, limits.retained_bytes_max)
        retained = RetainedMessages(
            self._log, services.publisher, self.config.node_id, view=view, clock_ms=services.wall_ms
        )
        await retained.start()
        services.retained, services.pacer = retained, RetainedPacer(services, retained)

    async def _start_delayed(self, services: EdgeServices) -> None:
        config = self.config
        services.delayed = DelayedMessages(
            self._log,
            services.routes,
            services.retained,
            config.node_id,
            self._incarnation,
            self._live_nodes,
            messages_max=config.delayed.messages_max,
            bytes_max=config.delayed.bytes_max,
            clock_ms=services.wall_ms,
        )
        await services.delayed.start()

    async def _say_goodbye(self) -> None:
        services = self.services
        for handler in list(services.connections):
            handler.stop_reading()
        services.waiting_for_room.clear()
        await services.publisher.flush(self._left_s())  # what was received is acknowledged before the goodbye
        for handler in list(services.connections):
            elsewhere = self._server_reference(handler)
            code = ReasonCode.USE_ANOTHER_SERVER if elsewhere else ReasonCode.SERVER_SHUTTING_DOWN
            handler.disconnect(code, "this edge is shutting down; use another one", elsewhere)
        if services.connections:
            services.emptied.clear()
            try:
                async with asyncio.timeout(GOODBYE_TIMEOUT_S):
                    await services.emptied.wait()
            except TimeoutError:
                log.warning("%d clients do not take their last bytes", len(services.connections))
        for handler in list(services.connections):
            if handler.transport is not None:
                handler.transport.abort()

    async def _end_sessions(self) -> None:
        """What sessions keep is stored and their claims are released before the log goes. A CONNECT or SUBSCRIBE that
        still waits for Kafka has nobody to answer any more."""
        await _finished(self.services.steps, min(STEPS_TIMEOUT_S, self._left_s()))
        await _finished(self.services.endings, self._left_s())

    def _left_s(self) -> float:
        """Of the time that `stop` has."""
        return max(FLUSH_TIMEOUT_S_MIN, self._stop_by - asyncio.get_running_loop().time())

    def _take_command_back(self) -> None:
        """A drain command has done its work with this process; in the log it would only take room."""
        command = self.control.view.command(self.config.node_id) if self.control is not None else None
        if command is not None and command.incarnation == self._incarnation:
            self.services.publisher.append(Destination(CONTROL, 0, command.key.encode()), None, (), None, None)

    def _live_nodes(self) -> set[str]:
        live = self._membership.live() if self._membership is not None else ()
        return {self.config.node_id} | {heartbeat.node_id for heartbeat in live}

    def _server_reference(self, handler: EdgeProtocolHandler) -> str | None:
        """Where a client that has to go finds the other edges that are up, apart by spaces (MQTT 5.0 4.11), in the way
        in which it has come; each client another one first, so that they spread."""
        others = self._other_addresses(over_websocket=handler.is_websocket)
        if not others:
            return None
        self._turn += 1
        first = self._turn % len(others)
        return " ".join(others[first:] + others[:first])

    def _other_addresses(self, *, over_websocket: bool = False) -> list[str]:
        live = self._membership.live() if self._membership is not None else ()
        others = [each for each in live if each.node_id != self.config.node_id and each.state == STATE_UP]
        addresses = (each.http_address if over_websocket else each.mqtt_address for each in others)
        return [address for address in addresses if address]

    def _is_live(self, node_id: str, incarnation: str) -> bool:
        """Whether an owner can still release its sessions: it is this process, or its heartbeat is fresh."""
        if node_id == self.config.node_id:
            return incarnation == self._incarnation
        if self._membership is None:
            return True
        heartbeat = self._membership.view.get(node_id)
        return heartbeat is not None and heartbeat.incarnation == incarnation and self._membership.is_live(node_id)

    def _is_replaced(self, node_id: str, incarnation: str) -> bool:
        """Whether a later process runs under the node id: it has fenced the earlier one when it started."""
        if node_id == self.config.node_id:
            return incarnation != self._incarnation
        heartbeat = self._membership.view.get(node_id) if self._membership is not None else None
        return heartbeat is not None and _started_ms(incarnation) < heartbeat.started_ms

    def _session_over(self, state: SessionState) -> None:
        """Nobody comes back to the session."""
        filters = (each.topic_filter for each in state.subscriptions)
        self.services.forget_shared(each for each in filters if each.startswith(SHARE_PREFIX))

    def _connection_lost(self, client_id: str, node_id: str) -> None:
        """Nobody else can say so: the edge that had the connection is gone."""
        self.services.event("disconnected", client_id, reason="its edge is gone", of_node=node_id)

    def _session_lost(self, client_id: str, epoch: int) -> None:
        """A later claim: the connection that has the session here ends, and with it its ownership."""
        if client_id.startswith(EXCLUSIVE_KEY):
            lose_exclusive(self.services, client_id, epoch)
            return
        handler = self.services.clients.get(client_id)
        if handler is not None and handler.durable is not None and handler.durable.epoch == epoch:
            handler.taken_over()

    # What runs beside ------------------------------------------------------------------------------------------------

    def _silence_s(self) -> float:
        """For how long our own heartbeat has not come back from Kafka: appending and reading both work if it does."""
        return self._membership.silence_s(time.monotonic()) if self._membership is not None else float("inf")

    async def _watch_kafka(self) -> None:
        """Kafka's last answer decides about readiness; 20 s without one, and the clients move to another edge."""
        while True:
            await asyncio.sleep(0.5)
            if self._silence_s() > CLOSE_CLIENTS_AFTER_S:
                self._close_clients()

    def _close_clients(self) -> None:  # no task's frame keeps the last of them
        for handler in list(self.services.connections):
            handler.disconnect(ReasonCode.SERVER_BUSY, "this edge has lost Kafka; use another one")

    async def _checkpoint_sessions(self) -> None:
        """Where the stored sessions of connected clients have come."""
        while True:
            await asyncio.sleep(CHECKPOINT_INTERVAL_S)
            client_ids = list(self.services.clients)
            for first in range(0, len(client_ids), CHECKPOINTS_AT_ONCE):
                self._checkpoint(client_ids[first : first + CHECKPOINTS_AT_ONCE])
                await asyncio.sleep(0)  # others have their turn

    def _checkpoint(self, client_ids: list[str]) -> None:
        for client_id in client_ids:
            handler = self.services.clients.get(client_id)
            if handler is not None and handler.durable is not None and handler.durable.is_stored:
                handler.durable.checkpoint()

    async def _settle_exclusive(self) -> None:
        """What was exclusive to sessions that nobody has ended in an orderly way."""
        while self.services.exclusive is not None:
            await asyncio.sleep(EXCLUSIVE_INTERVAL_S)
            await self.services.exclusive.settle_due()

    async def _publish_statistics(self) -> None:
        """`$SYS/brokers/<node>/stats`, every 2 s, QoS 0: seen by subscribers of every edge."""
        topic_name = f"$SYS/brokers/{self.config.node_id}/stats"
        headers = [
            (HEADER_TOPIC, topic_name.encode()),
            (HEADER_QOS, b"0"),
            (HEADER_CONTENT_TYPE, b"application/json"),
        ]
        while True:
            figures: dict[str, Any] = {"node": self.config.node_id, "at_ms": self.services.wall_ms()}
            figures |= node_statistics(self.services)
            destination = self.services.routes.destination(topic_name)  # a resize may have moved it
            self.services.publisher.append(destination, orjson.dumps(figures), headers, None, None)
            await asyncio.sleep(STATS_INTERVAL_S)


async def _finished(tasks: Set[asyncio.Task[None]], timeout_s: float) -> None:
    """Wait for them, and cancel those that take longer; none is left."""
    if tasks:
        _, pending = await asyncio.wait(tasks, timeout=timeout_s)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


def _started_ms(incarnation: str) -> int:
    started_ms = incarnation.rpartition("-")[2]
    return int(started_ms) if started_ms.isdecimal() else 0


def _consumed(deliverer: Deliverer) -> tuple[tuple[str, int, int], ...]:
    return tuple(sorted((*position, at) for position, at in deliverer.positions().items()))


_NOT_STARTED: Any = object()
