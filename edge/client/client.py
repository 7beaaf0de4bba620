"""``MqttClient``: the engine on asyncio. No task and no timer per message; thousands in one process are cheap."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl as tls
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Literal, Self

from edge.client.engine import ERROR, ClientEngine, State
from edge.client.errors import (
    ConnectFailed,
    ConnectionLost,
    ConnectRefused,
    MqttClientError,
    NotConnected,
    PublishRefused,
    SessionLost,
)
from edge.client.events import Acknowledged, Answered, Closed, Connected, Event, Lost, Refused, Token
from edge.client.inbox import Inbox
from edge.client.links import TcpLink, WebSocketLink
from edge.client.settings import RECEIVE_MAXIMUM_DEFAULT, ClientSettings, Counters, ReconnectPolicy
from edge.wire.packets import Connack, Publish, SubscriptionRequest, Will
from edge.wire.properties import Properties
from edge.wire.reason_codes import ReasonCode

CLOSE_TIMEOUT_S = 5.0
Transport = Literal["tcp", "websocket"]
FilterLike = str | tuple[str, int] | SubscriptionRequest

# Answers to CONNECT that asking again does not change.
FINAL_REFUSALS = frozenset(
    {
        ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
        ReasonCode.BAD_USER_NAME_OR_PASSWORD,
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.BANNED,
        ReasonCode.BAD_AUTHENTICATION_METHOD,
    }
)


class MqttClient:
    """One MQTT client: ``await connect()``, then ``publish`` and ``await subscribe``; ``await disconnect()`` ends it.

    With ``reconnect`` it comes back by itself after a lost connection: subscriptions are there again, and messages of
    QoS 1 and 2 that were not acknowledged are sent again (see ``ClientSettings.republish_lost_session``). Without, the
    end of the connection fails what is open with ``ConnectionLost``.
    """

    __slots__ = (
        "_addresses",
        "_close_callback",
        "_closed",
        "_closing",
        "_connect_callback",
        "_connect_timeout_s",
        "_connected",
        "_drained",
        "_engine",
        "_flush_scheduled",
        "_last_error",
        "_link",
        "_loop",
        "_message_callback",
        "_path",
        "_reconnect",
        "_reconnecting",
        "_ssl",
        "_timer",
        "_transport",
        "connack",
    )

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str = "",
        *,
        protocol_version: int = 5,
        clean_start: bool = True,
        session_expiry_s: int = 0,
        user_name: str | None = None,
        password: str | bytes | None = None,
        keep_alive_s: int = 60,
        will: Will | None = None,
        ssl: tls.SSLContext | None = None,
        transport: Transport = "tcp",
        path: str = "/mqtt",
        receive_maximum: int = 1_000,
        topic_alias_maximum: int = 0,
        packet_bytes_max: int = 1 << 20,
        in_flight_max: int = RECEIVE_MAXIMUM_DEFAULT,
        queue_messages_max: int = 100_000,
        connect_timeout_s: float = 10.0,
        reconnect: ReconnectPolicy | None = None,
        republish_lost_session: bool = True,
    ) -> None:
        self._engine = ClientEngine(
            ClientSettings(
                client_id=client_id,
                protocol_version=protocol_version,
                clean_start=clean_start,
                session_expiry_s=session_expiry_s,
                user_name=user_name,
                password=password.encode() if isinstance(password, str) else password,
                keep_alive_s=keep_alive_s,
                will=will,
                receive_maximum=receive_maximum,
                topic_alias_maximum=topic_alias_maximum,
                packet_bytes_max=packet_bytes_max,
                in_flight_max=in_flight_max,
                queue_messages_max=queue_messages_max,
                republish_lost_session=republish_lost_session,
            )
        )
        self._addresses = ((host, port), *(reconnect.addresses if reconnect else ()))
        self._transport: Transport = transport
        self._path = path
        self._ssl = ssl
        self._reconnect = reconnect
        self._connect_timeout_s = connect_timeout_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._link: TcpLink | None = None
        self._connected: asyncio.Future[Connack] | None = None
        self._closed: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._flush_scheduled = False
        self._closing = False
        self._last_error: Exception | None = None
        self._message_callback: Callable[[Publish], None] = _ignore
        self._close_callback: Callable[[Exception | None], None] = _ignore
        self._connect_callback: Callable[[Connack], None] = _ignore
        self.connack: Connack | None = None

    # -- what a user calls -------------------------------------------------------------------------------------------

    async def connect(self) -> Connack:
        """Connect; with ``reconnect`` keep trying as its policy says.

        Raises:
            ConnectRefused: the server said no. ConnectFailed: there is no server, or it does not answer.
        """
        self._loop = asyncio.get_running_loop()
        self._closing = False
        if self._reconnect is None:
            return await self._attempt(*self._addresses[0])
        return await self._attempts(self._reconnect, wait_first=False)

    def publish(
        self,
        topic_name: str,
        payload: bytes | str = b"",
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> asyncio.Future[ReasonCode] | None:
        """Send a message. QoS 0: None, gone at once. QoS 1 and 2: a future of the reason code; it need not be awaited.

        The future fails with ``PublishRefused``, ``ConnectionLost`` or ``SessionLost``.

        Raises:
            NotConnected, QueueFull, PublishRefused (known before sending).
        """
        if self._closing or (self._engine.state is not State.CONNECTED and self._reconnect is None):
            raise NotConnected("connect first")
        data = payload.encode() if isinstance(payload, str) else payload
        packet = Publish(topic_name.encode(), data, qos, retain, False, 0, properties)
        if qos == 0:
            self._engine.publish(packet)
            self._flush_soon()
            return None
        future: asyncio.Future[ReasonCode] = self._running_loop().create_future()
        self._engine.publish(packet, future)
        self._flush_soon()
        return future

    async def subscribe(
        self, filters: FilterLike | Iterable[FilterLike], qos: int = 0, subscription_id: int = 0
    ) -> tuple[ReasonCode, ...]:
        """Subscribe to one or more filters: ``"a/#"``, ``("a/#", 1)`` or a ``SubscriptionRequest`` with all options.

        Raises:
            NotConnected, ConnectionLost. A filter that is not granted raises nothing: look at its reason code.
        """
        many = [filters] if isinstance(filters, str | tuple | SubscriptionRequest) else list(filters)
        requests = [_request(each, qos) for each in many]
        future: asyncio.Future[tuple[ReasonCode, ...]] = self._running_loop().create_future()
        self._engine.subscribe(requests, future, subscription_id)
        self._flush_soon()
        return await future

    async def unsubscribe(self, topic_filters: str | Sequence[str]) -> tuple[ReasonCode, ...]:
        """Unsubscribe; the reason codes are empty in 3.1.1.

        Raises:
            NotConnected, ConnectionLost.
        """
        future: asyncio.Future[tuple[ReasonCode, ...]] = self._running_loop().create_future()
        self._engine.unsubscribe([topic_filters] if isinstance(topic_filters, str) else topic_filters, future)
        self._flush_soon()
        return await future

    def on_message(self, callback: Callable[[Publish], None]) -> None:
        """Call back with every message, in order, on the loop; it must not block."""
        self._message_callback = callback

    def on_close(self, callback: Callable[[Exception | None], None]) -> None:
        """Call back once per lost or closed connection; None after our own ``disconnect``."""
        self._close_callback = callback

    def on_connect(self, callback: Callable[[Connack], None]) -> None:
        """Call back with each CONNACK of success: the first and those of reconnects."""
        self._connect_callback = callback

    def inbox(self, messages_max: int = 100_000) -> Inbox:
        """Collect messages from now on in a queue (instead of ``on_message``)."""
        inbox = Inbox(messages_max)
        self._message_callback = inbox.put
        return inbox

    async def drain(self) -> None:
        """Wait while the transport's write buffer is over its limit: for a publisher of QoS 0 in a loop."""
        self._flush()
        if self._drained is not None:
            await asyncio.shield(self._drained)

    async def disconnect(self, reason_code: ReasonCode = ReasonCode.NORMAL_DISCONNECTION) -> None:
        """Say goodbye and close; open futures fail with ``ConnectionLost``. Also ends reconnecting. Idempotent."""
        self._closing = True
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.gather(self._reconnecting, return_exceptions=True)
            self._reconnecting = None
        self._engine.disconnect(reason_code)
        self._flush()
        link, closed = self._link, self._closed
        if link is not None and closed is not None:
            link.close()
            if not await _finishes(asyncio.shield(closed), CLOSE_TIMEOUT_S):
                link.abort()
        self._abandon(ConnectionLost("disconnected"))

    def abort(self) -> None:
        """Drop the connection without a DISCONNECT, as a device does that loses its power; no reconnecting."""
        self._closing = True
        if self._reconnecting is not None:
            self._reconnecting.cancel()
        if self._link is not None:
            self._link.abort()

    def drop_connection(self) -> None:
        """Lose the connection (for tests of what comes then): with ``reconnect`` it is made again."""
        if self._link is not None:
            self._link.abort()

    def pause_reading(self) -> None:
        """Stop taking messages from the network, like a device that is too slow."""
        if self._link is not None:
            self._link.pause_reading()

    def resume_reading(self) -> None:
        """Take messages again."""
        if self._link is not None:
            self._link.resume_reading()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.disconnect()

    @property
    def is_connected(self) -> bool:
        return self._engine.state is State.CONNECTED

    @property
    def client_id(self) -> str:
        """The identifier, be it one that the server assigned."""
        assigned = self.connack.properties.assigned_client_identifier if self.connack else None
        return self._engine.settings.client_id or assigned or ""

    @property
    def unacknowledged(self) -> int:
        """Messages of QoS 1 and 2 that are not through."""
        return self._engine.unacknowledged

    def statistics(self) -> Counters:
        """The counters since the client was made."""
        return self._engine.counters

    # -- making connections ------------------------------------------------------------------------------------------

    async def _attempts(self, policy: ReconnectPolicy, wait_first: bool) -> Connack:
        """Try the addresses in turn until one takes us, a refusal is final, or the policy ends."""
        attempt = 0
        while True:
            if wait_first or attempt:
                await asyncio.sleep(policy.wait_s(max(1, attempt), random.random()))
            try:
                return await self._attempt(*self._addresses[attempt % len(self._addresses)])
            except ConnectRefused as refusal:
                if refusal.reason_code in FINAL_REFUSALS:
                    raise
                last: MqttClientError = refusal
            except ConnectFailed as failure:
                last = failure
            attempt += 1
            if policy.attempts_max and attempt >= policy.attempts_max:
                raise last

    async def _attempt(self, host: str, port: int) -> Connack:
        loop = self._running_loop()
        connected: asyncio.Future[Connack] = loop.create_future()
        self._connected = connected
        self._last_error = None
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await self._open(loop, host, port)
                return await connected
        except (OSError, TimeoutError) as error:
            if connected.done() and not connected.cancelled() and connected.exception() is None:
                return connected.result()  # CONNACK and the end of the time came in one turn of the loop
            reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
            raise ConnectFailed(f"{host}:{port}: {reason}") from error
        finally:
            if not connected.done() or connected.cancelled() or connected.exception() is not None:
                await self._drop_link()
            self._connected = None  # only now: until here a lost link is a failed attempt, not a lost connection

    async def _open(self, loop: asyncio.AbstractEventLoop, host: str, port: int) -> None:
        link: TcpLink
        if self._transport == "websocket":
            scheme = "ws" if self._ssl is None else "wss"
            url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{self._path}"
            link = WebSocketLink(self, url, self._engine.settings.packet_bytes_max * 2)
        else:
            link = TcpLink(self)
        self._closed = loop.create_future()
        self._link = link
        try:
            await loop.create_connection(lambda: link, host, port, ssl=self._ssl)
        except BaseException:
            self._link = self._closed = None
            raise

    async def _drop_link(self) -> None:
        """After a failed attempt: let nothing of it reach the next one."""
        link, closed = self._link, self._closed
        if link is not None and closed is not None:
            link.abort()
            await _finishes(asyncio.shield(closed), CLOSE_TIMEOUT_S)

    async def _come_back(self, policy: ReconnectPolicy) -> None:
        """The one task of a client, and only while it has no connection."""
        try:
            await self._attempts(policy, wait_first=True)
            self._engine.counters.reconnects += 1
        except MqttClientError as error:
            self._closing = True
            self._abandon(error)
            self._close_callback(error)
        finally:
            self._reconnecting = None

    # -- LinkOwner ---------------------------------------------------------------------------------------------------

    def link_ready(self) -> None:
        self._engine.connection_made(self._running_loop().time())
        self._flush()

    def link_data(self, data: bytes) -> None:
        for event in self._engine.receive_data(data):
            if type(event) is Publish:
                self._message_callback(event)
            else:
                self._dispatch(event)
        if self._engine.has_data_to_send:
            self._flush()

    def link_writable(self, is_writable: bool) -> None:
        if not is_writable and self._drained is None:
            self._drained = self._running_loop().create_future()
        elif is_writable and self._drained is not None:
            self._drained.set_result(None)
            self._drained = None

    def link_lost(self, error: Exception | None) -> None:
        was_connected = self._engine.counters.connects > 0 and self._connected is None
        self._link = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.link_writable(True)
        lost = self._last_error or ConnectionLost(str(error) if error else "the server closed the connection")
        for token in self._engine.connection_lost():
            _fail(token, ConnectionLost(str(lost)))
        if self._connected is not None and not self._connected.done():
            self._connected.set_exception(lost if isinstance(lost, ConnectRefused) else ConnectFailed(str(lost)))
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)
        if not was_connected:
            return
        if self._closing or self._reconnect is None:
            self._abandon(ConnectionLost(str(lost)))
        else:
            self._reconnecting = self._running_loop().create_task(self._come_back(self._reconnect))
        self._close_callback(None if self._closing else lost)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _dispatch(self, event: Event) -> None:
        match event:
            case Acknowledged(token, reason_code, reason_string):
                _resolve_publish(token, reason_code, reason_string)
            case Answered(token, reason_codes):
                if isinstance(token, asyncio.Future) and not token.done():
                    token.set_result(reason_codes)
            case Connected(connack):
                self.connack = connack
                if self._connected is not None and not self._connected.done():
                    self._connected.set_result(connack)
                    self._connected = None  # from here on a lost link is a lost connection
                self._connect_callback(connack)
                self._arm_timer()
            case Refused(connack):
                properties = connack.properties
                self._end(ConnectRefused(connack.reason_code, properties.reason_string, properties.server_reference))
            case Lost(token):
                _fail(token, SessionLost("the server has forgotten the session"))
            case Closed(_, error):
                self._end(ConnectionLost(error or "closed"))
            case _:
                raise AssertionError(event)

    def _end(self, error: Exception) -> None:
        self._last_error = error
        self._flush()
        if self._link is not None:
            self._link.close()

    def _abandon(self, error: Exception) -> None:
        for token in self._engine.abandon():
            _fail(token, error)

    def _flush_soon(self) -> None:
        """One write per loop turn, however many messages are published in it."""
        if not self._flush_scheduled and self._link is not None:
            self._flush_scheduled = True
            self._running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._link is not None and self._loop is not None:
            data = self._engine.data_to_send(self._loop.time())
            if data:
                self._link.write(data)

    def _arm_timer(self) -> None:
        """One timer per client. It is not moved on by sending: when it fires early it finds that out and waits on."""
        deadline_s = self._engine.get_timer()
        if deadline_s is not None and self._loop is not None and self._link is not None:
            self._timer = self._loop.call_at(deadline_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        for event in self._engine.handle_timer(self._running_loop().time()):
            self._dispatch(event)
        self._flush()
        self._arm_timer()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise NotConnected("connect first")
        return self._loop


def _request(given: FilterLike, qos: int) -> SubscriptionRequest:
    if isinstance(given, SubscriptionRequest):
        return given
    if isinstance(given, tuple):
        return SubscriptionRequest(given[0], given[1])
    return SubscriptionRequest(given, qos)


def _resolve_publish(token: Token, reason_code: ReasonCode, reason_string: str | None) -> None:
    if reason_code >= ERROR:
        _fail(token, PublishRefused(reason_code, reason_string))
    elif isinstance(token, asyncio.Future) and not token.done():
        token.set_result(reason_code)


def _fail(token: Token, error: Exception) -> None:
    if isinstance(token, asyncio.Future) and not token.done():
        token.set_exception(error)
        token.exception()  # marks it as seen: a future that nobody awaits must not complain


async def _finishes(awaitable: Awaitable[None], timeout_s: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await awaitable
            return True
    return False


def _ignore(_: object) -> None:
    """The callback that is there until one is given."""
