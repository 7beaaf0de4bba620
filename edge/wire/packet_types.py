"""Control packet types: the high four bits of a packet's first byte (MQTT 5.0 §2.1.2, 3.1.1 §2.2.1).

The numbers are those of ``amqtt.mqtt.packet``; a test holds them together. AUTH is 5.0 only (amqtt calls 15 reserved).
"""

from __future__ import annotations

from typing import Final

CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14
AUTH: Final = 15

NAMES: Final = (
    "reserved",
    "CONNECT",
    "CONNACK",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "SUBACK",
    "UNSUBSCRIBE",
    "UNSUBACK",
    "PINGREQ",
    "PINGRESP",
    "DISCONNECT",
    "AUTH",
)

# Who sent a packet: decides which packet types, reason codes and properties are allowed.
FROM_ANY: Final = 0
FROM_CLIENT: Final = 1
FROM_SERVER: Final = 2

CLIENT_PACKETS: Final = frozenset(
    {CONNECT, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT, AUTH}
)
SERVER_PACKETS: Final = frozenset(
    {CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, PINGRESP, DISCONNECT, AUTH}
)

PROTOCOL_31: Final = 3
PROTOCOL_311: Final = 4
PROTOCOL_5: Final = 5
