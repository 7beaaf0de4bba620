"""Where a client's publish goes: name rewritten, it and the right to it checked, routed, headers encoded.

The engine keeps the answer per session and Topic Name: what is done here costs nothing per message.
"""

from edge.access.principal import Principal
from edge.handler.services import EdgeServices
from edge.session.effects import PublishTarget
from edge.wire import ReasonCode, check_topic_name_utf8
from schemas.errors import TopicError
from schemas.records import HEADER_CLIENT_ID, HEADER_QOS, HEADER_TOPIC, Header
from schemas.topics import check_topic_name


def is_topic_name(text: str) -> bool:
    """Whether one may publish to it."""
    try:
        check_topic_name(text)
    except TopicError:
        return False
    return True


def resolve_target(services: EdgeServices, principal: Principal, raw: bytes) -> PublishTarget | ReasonCode:
    """The target of a topic name (UTF-8) for this principal, or the reason code of a definite refusal.

    Raises ProtocolViolation when the bytes are no topic name at all [MQTT5-3.3.2-2] [MQTT311-3.3.2-2].
    """
    topic_name = check_topic_name_utf8(raw)
    rewritten = services.rules.rewrites.topic_name(topic_name, principal)
    if rewritten != topic_name:
        topic_name, raw = rewritten, rewritten.encode()
        if not is_topic_name(topic_name):
            return ReasonCode.TOPIC_NAME_INVALID
    limits = services.limits
    if len(raw) > limits.topic_name_bytes_max or topic_name.count("/") >= limits.topic_levels_max:
        return ReasonCode.TOPIC_NAME_INVALID
    if not services.access.authorizer.may_publish(principal, topic_name):
        services.event("denied", principal.client_id, action="publish", topic_name=topic_name, user=principal.name)
        return ReasonCode.NOT_AUTHORIZED
    plain: list[Header] = [(HEADER_TOPIC, raw), (HEADER_CLIENT_ID, principal.client_id.encode())]
    return PublishTarget(
        services.routes.destination(topic_name),
        ([*plain, (HEADER_QOS, b"0")], plain, [*plain, (HEADER_QOS, b"2")]),
    )
