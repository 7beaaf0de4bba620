"""What a peer can do wrong beyond a single packet: violations that only the state of the connection shows.

ProtocolViolation (edge.wire.errors)
├── TopicAliasInvalid        0x94
├── ReceiveMaximumExceeded   0x93
├── QosNotSupported          0x9B
└── RetainNotSupported       0x9A
"""

from edge.wire import ProtocolViolation, ReasonCode


class TopicAliasInvalid(ProtocolViolation):
    """A Topic Alias of 0 or above this edge's Topic Alias Maximum."""

    reason_code = ReasonCode.TOPIC_ALIAS_INVALID


class ReceiveMaximumExceeded(ProtocolViolation):
    """More unacknowledged PUBLISH packets than this edge's Receive Maximum."""

    reason_code = ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


class QosNotSupported(ProtocolViolation):
    """A PUBLISH above the Maximum QoS of CONNACK."""

    reason_code = ReasonCode.QOS_NOT_SUPPORTED


class RetainNotSupported(ProtocolViolation):
    """A PUBLISH with RETAIN 1 though CONNACK said Retain Available 0."""

    reason_code = ReasonCode.RETAIN_NOT_SUPPORTED
