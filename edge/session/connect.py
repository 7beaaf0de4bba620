"""CONNECT negotiated: what both sides may do on this connection, or the reason code of the refusal. Pure."""

from dataclasses import dataclass

from edge.access.limits import Limits
from edge.wire import Connack, Connect, Properties, ReasonCode

MQTT_3_1, MQTT_5 = 3, 5
PACKET_BYTES_UNLIMITED = 268_435_460  # the largest packet MQTT can express: 256 MiB and its header [MQTT5-2.1.4]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this edge offers; CONNACK says what is less than the specification's defaults (section 3.2.2.3)."""

    qos_max: int = 1
    retain_available: bool = False
    shared_subscription_available: bool = False
    session_expiry_s_max: int = 0  # how long a session may outlive its connection; 0: not at all
    authentication_methods: frozenset[str] = frozenset()  # of enhanced authentication
    response_prefix: str = "responses/"  # of the Response Information; the client id follows


@dataclass(frozen=True, slots=True)
class Refusal:
    """A CONNECT that is refused: the reason code (5.0; mapped for 3.1.1) and a sentence for the log and the client."""

    reason_code: ReasonCode
    reason: str


@dataclass(frozen=True, slots=True)
class Negotiated:
    """What holds for one connection. Times in seconds, sizes in bytes.

    `receive_maximum` and `packet_bytes_max` are the client's, for what this edge sends; the edge's own are in `Limits`.
    """

    client_id: str
    client_id_assigned: bool
    protocol_version: int
    keep_alive_s: int
    server_keep_alive: bool
    receive_maximum: int
    packet_bytes_max: int
    problem_information: bool
    session_expiry_requested_s: int
    session_expiry_s: int
    topic_alias_maximum: int
    response_information: str | None


def negotiate(
    connect: Connect, limits: Limits, capabilities: Capabilities, assigned_client_id: str
) -> Negotiated | Refusal:
    """Section 3.1 of both specifications as far as it needs no credentials.

    `assigned_client_id` is used if the client sent none [MQTT5-3.1.3-6] [MQTT311-3.1.3-6].
    """
    refusal = _refusal(connect, limits, capabilities)
    if refusal is not None:
        return refusal
    properties = connect.properties
    client_id = connect.client_id or assigned_client_id
    keep_alive_s = connect.keep_alive_s
    # 3.1.1 cannot be told of a Server Keep Alive, so there a keep alive of 0 stays "never"
    server_keep_alive = keep_alive_s == 0 and connect.protocol_version == MQTT_5
    if server_keep_alive:
        keep_alive_s = limits.server_keep_alive_s
    return Negotiated(
        client_id=client_id,
        client_id_assigned=not connect.client_id,
        protocol_version=connect.protocol_version,
        keep_alive_s=keep_alive_s,
        server_keep_alive=server_keep_alive,
        receive_maximum=min(properties.receive_maximum or limits.receive_maximum_out, limits.receive_maximum_out),
        packet_bytes_max=properties.maximum_packet_size_bytes or PACKET_BYTES_UNLIMITED,
        problem_information=properties.request_problem_information is not False,
        session_expiry_requested_s=properties.session_expiry_interval_s or 0,
        session_expiry_s=_session_expiry_s(connect, capabilities),
        topic_alias_maximum=properties.topic_alias_maximum or 0,
        response_information=_response_information(connect, capabilities, client_id),
    )


def _session_expiry_s(connect: Connect, capabilities: Capabilities) -> int:
    """How long the session outlives the connection. 3.1.1 says only whether: Clean Session 0 is as long as it goes."""
    if connect.protocol_version != MQTT_5:
        return 0 if connect.clean_start else capabilities.session_expiry_s_max
    return min(connect.properties.session_expiry_interval_s or 0, capabilities.session_expiry_s_max)


def _response_information(connect: Connect, capabilities: Capabilities, client_id: str) -> str | None:
    """Below which Topic Name the client may wait for responses [MQTT5-3.1.2-28]: one level of its own."""
    wanted = connect.properties.request_response_information
    if not wanted or not capabilities.response_prefix or any(character in client_id for character in "/+#"):
        return None
    return capabilities.response_prefix + client_id


def _refusal(connect: Connect, limits: Limits, capabilities: Capabilities) -> Refusal | None:
    if not connect.client_id and connect.protocol_version != MQTT_5:
        if connect.protocol_version == MQTT_3_1:
            return Refusal(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "MQTT 3.1 has no empty client id")
        if not connect.clean_start:  # [MQTT311-3.1.3-8]
            return Refusal(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "an empty client id needs Clean Session 1")
    if len(connect.client_id.encode()) > limits.client_id_bytes_max:
        # [MQTT5-3.1.3-8] [MQTT311-3.1.3-9]
        return Refusal(
            ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, f"the client id is longer than {limits.client_id_bytes_max} bytes"
        )
    method = connect.properties.authentication_method
    if method is not None and method not in capabilities.authentication_methods:
        # [MQTT5-4.12.0-1]
        return Refusal(ReasonCode.BAD_AUTHENTICATION_METHOD, "this authentication method is not available on this edge")
    will = connect.will
    if will is None:
        return None
    if will.qos > capabilities.qos_max:
        return Refusal(
            ReasonCode.QOS_NOT_SUPPORTED, f"the will's QoS is above {capabilities.qos_max}"
        )  # [MQTT5-3.2.2-12]
    if will.retain and not capabilities.retain_available:
        return Refusal(ReasonCode.RETAIN_NOT_SUPPORTED, "retained messages are not available")  # [MQTT5-3.2.2-13]
    return None


def connack(negotiated: Negotiated, limits: Limits, capabilities: Capabilities, session_present: bool) -> Connack:
    """The accepting CONNACK; properties say only what differs from the specification's defaults (section 3.2.2.3)."""
    if negotiated.protocol_version != MQTT_5:
        return Connack(session_present=session_present, reason_code=ReasonCode.SUCCESS)
    properties = Properties(
        receive_maximum=limits.receive_maximum_in,
        maximum_packet_size_bytes=limits.packet_bytes_max,
        topic_alias_maximum=limits.topic_alias_maximum,
    )
    if capabilities.qos_max < 2:
        properties.maximum_qos = capabilities.qos_max  # [MQTT5-3.2.2-9]
    if not capabilities.retain_available:
        properties.retain_available = False
    if not capabilities.shared_subscription_available:
        properties.shared_subscription_available = False
    if negotiated.session_expiry_requested_s != negotiated.session_expiry_s:
        properties.session_expiry_interval_s = negotiated.session_expiry_s  # MQTT 5.0 section 3.2.2.3.2
    properties.response_information = negotiated.response_information
    if negotiated.client_id_assigned:
        properties.assigned_client_identifier = negotiated.client_id  # [MQTT5-3.1.3-7] [MQTT5-3.2.2-16]
    if negotiated.server_keep_alive:
        properties.server_keep_alive_s = negotiated.keep_alive_s  # [MQTT5-3.1.2-21]
    return Connack(session_present=session_present, reason_code=ReasonCode.SUCCESS, properties=properties)
