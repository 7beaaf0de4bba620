"""What can go wrong at a client.

MqttClientError
├── NotConnected          asked for something that needs a connection (and there is no reconnecting)
├── ConnectRefused        the server answered CONNECT with a refusal: reason code, text, perhaps another server
├── ConnectFailed         no connection, no answer in time, or a broken answer
├── ConnectionLost        the connection ended before the answer came
├── SessionLost           the server has forgotten the session; the message was in flight in it
├── PublishRefused        the message was answered with an error, or can never be sent on this connection
└── QueueFull             more messages wait than ``queue_messages_max``
"""

from __future__ import annotations

from edge.wire.reason_codes import ReasonCode


class MqttClientError(Exception):
    """The root: catch this to catch everything the client raises on purpose."""


class NotConnected(MqttClientError):  # noqa: N818
    """There is no connection, and nothing is going to make one."""


class ConnectFailed(MqttClientError):  # noqa: N818
    """No connection, no CONNACK in time, or an answer that is not MQTT."""


class ConnectionLost(MqttClientError):  # noqa: N818
    """The connection has ended; whether the server acted on what was asked is not known."""


class SessionLost(MqttClientError):  # noqa: N818
    """The server does not have the session any more; whether it took the message is not known."""


class QueueFull(MqttClientError):  # noqa: N818
    """Too many messages wait for their turn: slow down, or raise ``queue_messages_max``."""


class _WithReason(MqttClientError):  # noqa: N818
    def __init__(self, reason_code: ReasonCode, reason_string: str | None = None) -> None:
        super().__init__(reason_code, reason_string)
        self.reason_code = reason_code
        self.reason_string = reason_string

    def __str__(self) -> str:
        return f"{self.reason_code.name} (0x{self.reason_code:02x})" + (
            f": {self.reason_string}" if self.reason_string else ""
        )


class ConnectRefused(_WithReason):
    """The server refused; ``server_reference`` names another one, if it did."""

    def __init__(
        self, reason_code: ReasonCode, reason_string: str | None = None, server_reference: str | None = None
    ) -> None:
        super().__init__(reason_code, reason_string)
        self.server_reference = server_reference


class PublishRefused(_WithReason):
    """The server answered with a reason code of 0x80 or above, or told limits that the message breaks."""
