"""Enhanced authentication, the handler's part: asks the mechanism, and brings its answer to the engine.

One step at a time: the engine lets the client speak again only after the answer to what it said last.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from edge.access.enhanced import Continue, Failed, Step
from edge.access.principal import Principal
from edge.handler import connecting
from edge.session.transitions import ConnectionState
from edge.wire import ReasonCode

if TYPE_CHECKING:
    from edge.handler.protocol import EdgeProtocolHandler

log = logging.getLogger(__name__)


async def step_authentication(handler: EdgeProtocolHandler, data: bytes | None, begins: bool) -> None:
    """Take the client's Authentication Data; when it has shown who it is, connect it, or go on if it is connected."""
    services, engine = handler.services, handler.engine
    access, authentication = services.access, engine.authentication
    assert access.enhanced is not None
    assert authentication is not None
    if begins:
        handler.exchange = access.enhanced.begin(authentication.method, engine.client_id)
    step = await _answer(handler, data)
    if step is None:
        end = handler.disconnect if engine.state is ConnectionState.CONNECTED else handler.refuse
        end(ReasonCode.SERVER_BUSY, "the authenticator does not answer; try again")
        return
    if isinstance(step, Failed):
        log.debug("client %s: authentication failed: %s", engine.client_id, step.reason)
        connecting.count_failure(services, engine.client_id, handler.peer, "")
    is_known = handler.authentication_stepped(step)
    if isinstance(step, Continue | Failed) or not handler.is_open:
        return
    handler.exchange = None
    principal = Principal(step.principal_name, engine.client_id, handler.peer, step.superuser, step.expires_at)
    if is_known:
        assert engine.connect is not None
        await connecting.enter(handler, engine.connect, principal)
    else:
        handler.reauthenticated(principal)


async def _answer(handler: EdgeProtocolHandler, data: bytes | None) -> Step | None:
    """None: the mechanism failed or was late. It is somebody else's code: whatever goes wrong in it lets nobody in."""
    exchange = handler.exchange
    assert exchange is not None
    try:
        async with asyncio.timeout(handler.services.limits.authentication_timeout_s):
            return await exchange.step(data)
    except Exception as error:
        # not the error's text: it may hold a secret
        log.warning("%s does not answer (%s): its clients are refused", type(exchange).__name__, type(error).__name__)
        return None
