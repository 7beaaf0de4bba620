"""A client of `edge.client` whose every packet is written down as it goes over the wire."""

from __future__ import annotations

from typing import Any

from support.chaos_history import Recorder, will_line

from edge.client import MqttClient, ReconnectPolicy
from edge.wire import Framer, ReasonCode, decode_for_client, decode_for_server

EXPIRY_S = 3_600
RECEIVE_MAXIMUM = 20
KEEP_ALIVE_S = 4
_PACKET_BYTES_MAX = 1 << 20


class RecordedClient(MqttClient):
    """`MqttClient` with a tap between engine and network. `how` says what the test did to its connection."""

    def __init__(self, recorder: Recorder, client_id: str, addresses: list[tuple[str, int]], **settings: Any) -> None:
        settings = {
            "clean_start": False,
            "session_expiry_s": EXPIRY_S,
            "keep_alive_s": KEEP_ALIVE_S,
            "receive_maximum": RECEIVE_MAXIMUM,
            "in_flight_max": 50,
            "connect_timeout_s": 5.0,
            "republish_lost_session": False,
            "reconnect": ReconnectPolicy(tuple(addresses[1:]), wait_first_s=0.1, wait_max_s=1.0),
        } | settings
        super().__init__(*addresses[0], client_id, **settings)
        self.recorder = recorder
        self.connection = 0
        self.how = "server"
        self._vanished: list[Any] = []  # links that were left open
        self._in_framer = self._out_framer = Framer(_PACKET_BYTES_MAX, 5)

    async def _open(self, loop: Any, host: str, port: int) -> None:
        self.how = "server"
        settings = self._engine.settings
        version = settings.protocol_version
        self._in_framer, self._out_framer = Framer(_PACKET_BYTES_MAX, version), Framer(_PACKET_BYTES_MAX, version)
        self.connection += 1
        if settings.will is not None:  # each connection has a will of its own: they can be told apart
            settings.will.payload = f"will:{settings.client_id}:{self.connection}".encode()
        again = self._engine.counters.connects > 0
        self.recorder.write(
            "open",
            client=self.client_id,
            conn=self.connection,
            edge=f"{host}:{port}",
            version=version,
            clean=settings.clean_start and not (again and settings.session_expiry_s),
            expiry_s=settings.session_expiry_s,
            will=will_line(settings.will) if settings.will is not None else None,
            user=settings.user_name,
            receive_maximum=settings.receive_maximum if version == 5 else 65_535,
        )
        try:
            await super()._open(loop, host, port)
        except BaseException:
            self._record_closed()
            raise

    async def _drop_link(self) -> None:
        self._mark_how("reset")
        await super()._drop_link()

    def link_data(self, data: bytes) -> None:
        version = self._engine.settings.protocol_version
        for first_byte, body in self._in_framer.feed(data):
            packet = decode_for_client(first_byte, body, version)
            self.recorder.packet(self.client_id, self.connection, "in", packet)
        super().link_data(data)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._link is None or self._loop is None:
            return
        data = self._engine.data_to_send(self._loop.time())
        if data:
            version = self._engine.settings.protocol_version
            for first_byte, body in self._out_framer.feed(data):
                packet = decode_for_server(first_byte, body, version)
                self.recorder.packet(self.client_id, self.connection, "out", packet)
            self._link.write(data)

    def link_lost(self, error: Exception | None) -> None:
        self._record_closed()
        super().link_lost(error)

    def drop_connection(self) -> None:
        self._mark_how("reset")
        super().drop_connection()

    def abort(self) -> None:
        self._mark_how("reset")
        super().abort()

    def vanish(self) -> None:
        """Leave the connection as it is, unread and unanswered, and make another: a device that got a new address."""
        link = self._link
        if link is not None:
            link._owner = _Nobody()
            link.pause_reading()
            self._vanished.append(link)
            self.how = "vanished"
            self.link_lost(None)

    async def disconnect(self, reason_code: ReasonCode = ReasonCode.NORMAL_DISCONNECTION) -> None:
        """And close what was left open: its session has moved since."""
        await super().disconnect(reason_code)
        while self._vanished:
            self._vanished.pop().abort()

    def stop_reading(self) -> None:
        """What comes stays in the kernel, and then with the edge."""
        assert self._link is not None
        self._link.pause_reading()

    def go_on_reading(self) -> None:
        """Take what has come."""
        if self._link is not None:
            self._link.resume_reading()

    def prefer(self, addresses: list[tuple[str, int]]) -> None:
        """Connect there from now on."""
        self._addresses = tuple(addresses)

    def _mark_how(self, how: str) -> None:
        if self._link is not None and self.how == "server":
            self.how = how

    def _record_closed(self) -> None:
        self.recorder.write("closed", client=self.client_id, conn=self.connection, how=self.how)


class _Nobody:
    """Who reads what comes on a connection that its client has left."""

    def link_ready(self) -> None:
        pass

    def link_data(self, data: bytes) -> None:
        pass

    def link_lost(self, error: Exception | None) -> None:
        pass

    def link_writable(self, is_writable: bool) -> None:
        pass
