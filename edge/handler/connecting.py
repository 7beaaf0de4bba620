"""From CONNECT to CONNACK: limits, bans, credentials, the will's right, then the session.

In this order, so that nothing changes before a client has been accepted (invariant I14).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from edge.access.authentication import AuthenticatorUnavailable
from edge.access.principal import Credentials, Principal, principal_from_certificate
from edge.handler.enhanced import step_authentication
from edge.handler.opening import Opened, open_session
from edge.handler.targets import is_payload_accepted, is_topic_name
from edge.rules.delayed import DELAYED_PREFIX
from edge.wire import Connect, ReasonCode, Will

if TYPE_CHECKING:
    from edge.handler.protocol import EdgeProtocolHandler
    from edge.handler.services import EdgeServices


async def connect_client(handler: EdgeProtocolHandler, connect: Connect, client_id: str) -> None:
    """Accept or refuse one CONNECT.

    1. the node is ready, the CONNECT's turn has come, no ban: else 0x88 (0x9C when it is drained), 0x9F, 0x8A
    2. `Authenticator.authenticate`: else 0x86 (0x88 when nobody can say); where CONNECT names an Authentication Method,
       `step_authentication` instead, until it is done: else 0x87
    3. the will's topic name may be published to: else 0x87
    4. a session of the same client id belongs to the same principal: else 0x87
    5. `open_session`: this connection becomes the session's owner, an older one is told 0x8E [MQTT5-3.1.4-3]
       [MQTT311-3.1.4-2]
    6. `EdgeProtocolHandler.accepted`: CONNACK
    """
    services = handler.services
    credentials = _credentials(handler, connect, client_id)
    refusal = await _admitted(handler, credentials)
    if refusal is not None:
        handler.refuse(*refusal)
        return
    if handler.engine.authentication is not None:
        await step_authentication(handler, connect.properties.authentication_data, begins=True)
        return
    try:
        principal = await services.access.authenticator.authenticate(credentials)
    except AuthenticatorUnavailable:
        handler.refuse(ReasonCode.SERVER_UNAVAILABLE, "the authenticator does not answer; try again")
        return
    if principal is None:
        count_failure(services, client_id, handler.peer, connect.user_name or "")
        handler.refuse(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "user name or password is wrong")
        return
    await enter(handler, connect, principal)


async def enter(handler: EdgeProtocolHandler, connect: Connect, principal: Principal) -> None:
    """The client has shown who it is: steps 3 to 6."""
    services = handler.services
    refusal = _authorised(services, principal, connect)
    if refusal is not None:
        handler.refuse(*refusal)
        return
    if not handler.is_open:
        return
    handler.principal = principal
    opened = await open_session(handler, principal)
    if isinstance(opened, Opened):
        handler.accepted(principal, opened)
        durable = handler.durable
        if durable is not None and not services.ownership.is_owner(durable.client_id, durable.epoch):
            handler.taken_over()  # a later claim came when there was no connection yet to be told
    else:
        handler.refuse(*opened)


def _credentials(handler: EdgeProtocolHandler, connect: Connect, client_id: str) -> Credentials:
    ssl_object = handler.transport.get_extra_info("ssl_object") if handler.transport is not None else None
    return Credentials(
        client_id=client_id,
        user_name=connect.user_name,
        password=connect.password,
        peer=handler.peer,
        protocol_version=connect.protocol_version,
        tls_subject=principal_from_certificate(ssl_object.getpeercert()) if ssl_object is not None else None,
        tls_certificate=ssl_object.getpeercert(binary_form=True) if ssl_object is not None else None,
    )


async def _admitted(
    handler: EdgeProtocolHandler, credentials: Credentials
) -> tuple[ReasonCode, str] | tuple[ReasonCode, str, str] | None:
    services = handler.services
    now = services.loop.time()
    access = services.access
    if services.is_draining and (elsewhere := services.server_reference(handler)) is not None:
        return ReasonCode.USE_ANOTHER_SERVER, "this edge is being drained; use another one", elsewhere
    if not services.ready():
        return ReasonCode.SERVER_UNAVAILABLE, "this edge is not ready; try again or use another edge"
    if access.bans.banned(credentials, services.wall_ms() / 1000) is not None:
        return ReasonCode.BANNED, "this client is banned for a time"
    if access.flapping.banned_s(credentials.client_id, now) > 0:
        return ReasonCode.BANNED, "this client id connects too often; is it used twice?"
    wait_s = access.gate.connect(now)
    if wait_s is None:
        return ReasonCode.CONNECTION_RATE_EXCEEDED, "too many clients connect at once; try again in a while"
    if wait_s > 0:
        await asyncio.sleep(wait_s)
    return None


def _authorised(services: EdgeServices, principal: Principal, connect: Connect) -> tuple[ReasonCode, str] | None:
    access = services.access
    if access.bans.banned(principal, services.wall_ms() / 1000) is not None:
        return ReasonCode.BANNED, "this client is banned for a time"
    refusal = _will_refusal(services, principal, connect.will) if connect.will is not None else None
    if refusal is not None:
        return refusal
    owner = services.ownership.owner(principal.client_id)
    if owner is not None and owner.claim.principal != principal.name and (owner.claim.durable or not owner.is_released):
        return ReasonCode.NOT_AUTHORIZED, "this client id belongs to another user"
    access.flapping.connected(principal.client_id, services.loop.time())
    return None


def _will_refusal(services: EdgeServices, principal: Principal, will: Will) -> tuple[ReasonCode, str] | None:
    """`stored_will` resolves the same name, for its record."""
    topic_name = services.rules.rewrites.topic_name(will.topic_name, principal)
    if not is_topic_name(topic_name) or topic_name.startswith(DELAYED_PREFIX):
        return ReasonCode.TOPIC_NAME_INVALID, "the will's topic name is none that a will may have here"
    if not services.access.authorizer.may_publish(principal, topic_name):
        services.event("denied", principal.client_id, action="will", topic_name=topic_name)
        return ReasonCode.NOT_AUTHORIZED, "the will's topic name may not be published to"
    fault = services.rules.payload_schemas.check_of(topic_name)
    if fault is not None and not is_payload_accepted(services, principal.client_id, topic_name, fault, will.payload):
        return ReasonCode.PAYLOAD_FORMAT_INVALID, "the will's payload does not match the schema of its topic name"
    return None


def count_failure(services: EdgeServices, client_id: str, peer: str, user: str) -> None:
    """Hold a failed authentication against its address."""
    blocked = services.access.failures.failed(peer, services.loop.time())
    services.event("denied", client_id, action="connect", user=user, blocked=blocked)
