"""A light asyncio MQTT 3.1.1 and 5.0 client on Headwater's own codec: for tests, benchmarks, the demo and tools.

``engine`` is the protocol as a pure machine, ``client`` its asyncio driver, ``links`` the TCP and WebSocket transports.
It imports ``edge.wire`` and nothing else of Headwater.
"""

from edge.client.client import MqttClient
from edge.client.errors import (
    ConnectFailed,
    ConnectionLost,
    ConnectRefused,
    MqttClientError,
    NotConnected,
    PublishRefused,
    QueueFull,
    SessionLost,
)
from edge.client.inbox import Inbox
from edge.client.settings import ClientSettings, Counters, ReconnectPolicy
from edge.wire.packets import Publish, SubscriptionRequest, Will
from edge.wire.properties import Properties
from edge.wire.reason_codes import ReasonCode

__all__ = [
    "ClientSettings",
    "ConnectFailed",
    "ConnectRefused",
    "ConnectionLost",
    "Counters",
    "Inbox",
    "MqttClient",
    "MqttClientError",
    "NotConnected",
    "Properties",
    "Publish",
    "PublishRefused",
    "QueueFull",
    "ReasonCode",
    "ReconnectPolicy",
    "SessionLost",
    "SubscriptionRequest",
    "Will",
]
