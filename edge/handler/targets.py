"""Where a client's publish goes: name rewritten, it and the right to it checked, routed, headers encoded.

The engine keeps the answer per session and Topic Name: what is done here costs nothing per message.
"""

from functools import partial

from edge.access.principal import Principal
from edge.handler.services import EdgeServices
from edge.rules.delayed import DELAYED_PREFIX, parse_delayed
from edge.rules.payload_schemas import Fault
from edge.session.effects import CheckedTarget, DelayedTarget, PublishTarget
from edge.wire import ReasonCode, check_topic_name_utf8
from schemas.delayed import HEADER_DELAY_S
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
    if not topic_name.startswith(DELAYED_PREFIX):
        return _resolved(services, principal, topic_name)
    delayed = parse_delayed(topic_name)
    if delayed is None or services.delayed is None:
        services.event("denied", principal.client_id, action="publish", topic_name=topic_name, user=principal.name)
        return ReasonCode.TOPIC_NAME_INVALID
    target = _resolved(services, principal, delayed.topic_name)
    if isinstance(target, ReasonCode):
        return target
    delay = (HEADER_DELAY_S, b"%d" % delayed.delay_s)
    plain, once, twice = ([*headers, delay] for headers in target.headers)
    is_accepted = target.is_accepted if isinstance(target, CheckedTarget) else accepts_all
    place = partial(services.delayed.place, plain[0][1].decode())
    return DelayedTarget(target.destination, (plain, once, twice), is_accepted=is_accepted, place=place)


def is_payload_accepted(services: EdgeServices, client_id: str, topic_name: str, fault: Fault, payload: bytes) -> bool:
    """Whether the schema of the route takes it; counted and told if not."""
    reason = fault(payload)
    if reason is None:
        return True
    services.counters.payloads_refused += 1
    services.event("dropped", client_id, action="publish", topic_name=topic_name, reason=f"payload schema: {reason}")
    return False


def accepts_all(payload: bytes) -> bool:
    """A route without a schema."""
    return True


def _resolved(services: EdgeServices, principal: Principal, topic_name: str) -> PublishTarget | ReasonCode:
    rewritten = services.rules.rewrites.topic_name(topic_name, principal)
    if rewritten != topic_name and (not is_topic_name(rewritten) or rewritten.startswith(DELAYED_PREFIX)):
        return ReasonCode.TOPIC_NAME_INVALID
    raw, limits = rewritten.encode(), services.limits
    if len(raw) > limits.topic_name_bytes_max or rewritten.count("/") >= limits.topic_levels_max:
        return ReasonCode.TOPIC_NAME_INVALID
    if not services.access.authorizer.may_publish(principal, rewritten):
        services.event("denied", principal.client_id, action="publish", topic_name=rewritten, user=principal.name)
        return ReasonCode.NOT_AUTHORIZED
    plain: list[Header] = [(HEADER_TOPIC, raw), (HEADER_CLIENT_ID, principal.client_id.encode())]
    destination = services.routes.destination(rewritten)
    headers = ([*plain, (HEADER_QOS, b"0")], plain, [*plain, (HEADER_QOS, b"2")])
    fault = services.rules.payload_schemas.check_of(rewritten)
    if fault is None:
        return PublishTarget(destination, headers)
    is_accepted = partial(is_payload_accepted, services, principal.client_id, rewritten, fault)
    return CheckedTarget(destination, headers, is_accepted=is_accepted)
