"""What all connections of one edge share. The node builds it; handlers and their helpers use it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from amqtt.plugins.manager import PluginManager

from bridge.delayed import DelayedMessages
from bridge.delivery import Delivery
from bridge.exclusive import ExclusiveFilters
from bridge.history.feeds import ReplayFeeds
from bridge.log import Position
from bridge.ownership import Ownership
from bridge.partitioning import RouteTable
from bridge.point_reads import PointReader
from bridge.publisher import Publisher
from bridge.retained import RetainedMessages
from bridge.session_store import SessionStore
from bridge.shared.shared_subscriptions import SharedSubscriptions
from bridge.subscriptions import Grant, SubscriptionTable, narrowed
from bridge.twins import TwinCatchUp, TwinDeliverer
from edge.access.acl import Authorizer
from edge.access.authentication import Authenticator
from edge.access.bans import BanList
from edge.access.enhanced import EnhancedAuthenticator
from edge.access.limits import ConnectionGate, FailureTracker, FlappingTracker, Limits
from edge.rules.rules import Rules
from edge.rules.selectors import Selectors
from edge.session.connect import Capabilities

if TYPE_CHECKING:
    from edge.handler.protocol import EdgeProtocolHandler
    from edge.handler.retaining import RetainedPacer


@dataclass(slots=True)
class Access:
    """Who may connect, what they may do, and how often (`edge.access`)."""

    authenticator: Authenticator
    authorizer: Authorizer
    gate: ConnectionGate
    failures: FailureTracker
    flapping: FlappingTracker
    bans: BanList
    enhanced: EnhancedAuthenticator | None = None


@dataclass(slots=True)
class Counters:
    """Totals since the start of the node."""

    connections_total: int = 0
    refused_total: int = 0
    taken_over_total: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    messages_received: int = 0
    messages_qos1_received: int = 0
    messages_qos2_received: int = 0
    messages_dropped: int = 0
    payloads_refused: int = 0  # by the schema of their route
    wills_published: int = 0


@dataclass(slots=True)
class EdgeServices:
    """One edge's shared parts. `ready` says whether new CONNECTs are served; `event` (kind, client id,
    details) appends to `headwater.events`; `wall_clock_offset_ms` turns the loop's clock into milliseconds since the
    epoch; `retained` and `pacer` are None where retained messages are not available."""

    node_id: str
    loop: asyncio.AbstractEventLoop
    limits: Limits
    capabilities: Capabilities
    access: Access
    routes: RouteTable
    table: SubscriptionTable
    publisher: Publisher
    deliverer: TwinDeliverer
    catch_up: TwinCatchUp
    ownership: Ownership
    sessions: SessionStore
    point_reader: PointReader
    shared: SharedSubscriptions
    history: ReplayFeeds
    start_offsets: Callable[[Set[Position]], Awaitable[dict[Position, int]]]
    plugins: PluginManager[Any] | None
    event: Callable[..., None]
    wall_clock_offset_ms: float
    ready: Callable[[], bool] = lambda: True
    ledger_below: int = 0  # messages whose deliveries are noted: `schemas.sampling`
    server_reference: Callable[[EdgeProtocolHandler], str | None] = lambda _: None  # for a client that has to go
    is_draining: bool = False
    counters: Counters = field(default_factory=Counters)
    rules: Rules = field(default_factory=Rules)
    exclusive: ExclusiveFilters | None = None  # None: `$exclusive/` is refused
    selectors: Selectors = field(default_factory=lambda: Selectors(time.monotonic))
    delayed: DelayedMessages | None = None  # None: `$delayed/` is refused
    clients: dict[str, EdgeProtocolHandler] = field(default_factory=dict)
    connections: set[EdgeProtocolHandler] = field(default_factory=set)
    retained: RetainedMessages | None = None
    pacer: RetainedPacer | None = None
    steps: set[asyncio.Task[None]] = field(default_factory=set)  # CONNECT, SUBSCRIBE and the like that have to wait
    endings: set[asyncio.Task[None]] = field(default_factory=set)
    emptied: asyncio.Event = field(default_factory=asyncio.Event)
    dirty: list[EdgeProtocolHandler] = field(default_factory=list)
    waiting_for_room: set[EdgeProtocolHandler] = field(default_factory=set)
    _flush_handle: asyncio.Handle | None = None

    def flush_soon(self) -> None:
        """Flush at the end of this turn of the loop, for answers: batches of several partitions become known in one
        turn, and a connection that has something in all of them still gets one write. Deliveries are flushed at once,
        before the next fetch is sent: a system call may take longer than all the rest."""
        if self._flush_handle is None:
            self._flush_handle = self.loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush_handle = None
        self.flush()

    def flush(self) -> None:
        """One write per connection that has something to send."""
        dirty = self.dirty
        if dirty:
            self.dirty = []
            for handler in dirty:
                handler.flush()
        if self.pacer is not None and self.pacer.is_waiting:
            self.pacer.live_came()
        if self.waiting_for_room and not self.is_full:
            waiting, self.waiting_for_room = self.waiting_for_room, set()
            for handler in waiting:
                handler.backbone_has_room()

    @property
    def is_full(self) -> bool:
        """What waits for Kafka is so much that no client is read any further."""
        return self.publisher.is_full or self.sessions.is_full

    def forget_shared(self, share_filters: Iterable[str]) -> None:
        """A session with these shared subscriptions is over: their Kafka groups go with the last one."""
        for share_filter in share_filters:
            task = self.loop.create_task(self.shared.forget(share_filter), name="headwater-share-forget")
            self.endings.add(task)
            task.add_done_callback(self.endings.discard)

    def select(self, delivery: Delivery, grant: Grant) -> Grant | None:
        """What is left of the grant for this message, as its selectors say; None: no subscription takes it."""
        return narrowed(grant, lambda selector: self.selectors.takes(selector, delivery))

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        return int(self.loop.time() * 1000 + self.wall_clock_offset_ms)
