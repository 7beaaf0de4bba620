"""amqtt's auth plugins, unchanged, behind our `Authenticator`.

The plugins run on an event loop of their own, in a thread of their own: one that blocks (LDAP, a password hash, a DNS
look-up) delays other clients' CONNECTs at worst, never messages. Each CONNECT gives them a session object that looks
like amqtt's and costs a tenth of it. Their verdicts are joined as amqtt's broker joins them: everyone who has an
opinion must say yes, and at least one must have an opinion.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from amqtt.contexts import BaseContext
from amqtt.plugins.manager import PluginManager
from amqtt.session import Session

from edge.access.authentication import ANSWER_TIMEOUT_S, AuthenticatorUnavailable
from edge.access.principal import ANONYMOUS, Credentials, Principal
from schemas.errors import ConfigurationError

logger = logging.getLogger(__name__)

WAITING_MAX: Final = 256  # CONNECTs the plugins are busy with; more would wait longer than 2 s anyway
START_TIMEOUT_S: Final = 30.0  # a plugin may open a database or a connection
STOP_TIMEOUT_S: Final = 5.0  # then its thread, a daemon, is left behind
_NAMESPACE: Final = "headwater.plugins"


class _State:
    """Stands in for the state machine that amqtt builds for each session (the heavy part of it)."""

    def __init__(self, state: str) -> None:
        self.state = state

    def connect(self) -> bool:
        return True

    def disconnect(self) -> bool:
        return True


class _PeerCertificate:
    """What plugins use of `ssl.SSLObject`."""

    def __init__(self, certificate: bytes) -> None:
        self._certificate = certificate

    def getpeercert(self, binary_form: bool = False) -> bytes:
        if not binary_form:
            raise NotImplementedError("only the binary form of the certificate is at hand")
        return self._certificate


class LightSession(Session):  # type: ignore[misc]
    """amqtt's Session without the `transitions.Machine` that it builds for each."""

    state_shown = "new"

    def _init_states(self) -> None:
        self.transitions = _State(self.state_shown)


class PluginSession(LightSession):
    """What a plugin reads of a client before it is connected."""

    def __init__(self, credentials: Credentials, password: str | None) -> None:
        super().__init__()
        self.remote_address = credentials.peer
        self.client_id = credentials.client_id
        self.username = credentials.user_name
        self.password = password
        if credentials.tls_certificate is not None:
            self.ssl_object = _PeerCertificate(credentials.tls_certificate)


class AmqttPluginAuthenticator:
    """One or more amqtt auth plugins, named as in amqtt's own configuration: `{"package.module.Class": {options}}`.

    The principal is the user name of CONNECT; without one, the certificate's subject, else `anonymous`. A password that
    is not UTF-8 cannot be shown to a plugin and is refused.
    """

    def __init__(
        self,
        plugins: Mapping[str, Mapping[str, Any]],
        *,
        timeout_s: float = ANSWER_TIMEOUT_S,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self._configuration = {name: dict(options) for name, options in plugins.items()}
        self._timeout_s = timeout_s
        self._waiting_max = waiting_max
        self._answers: set[asyncio.Future[bool]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._manager: PluginManager[Any] | None = None
        self._figures = dict.fromkeys(("accepted", "refused", "overloaded", "late", "failed"), 0)

    async def start(self) -> None:
        """Load the plugins. Raises ConfigurationError when one cannot be loaded or none is an auth plugin."""
        assert self._loop is None, "started twice"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="headwater-plugins", daemon=True)
        self._thread.start()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                self._manager = await asyncio.wrap_future(self._submit(self._load()))
        except Exception as error:  # whatever a plugin's constructor raises
            await self.stop()
            names = ", ".join(self._configuration) or "none named"
            raise ConfigurationError(f"amqtt plugins ({names}): {type(error).__name__}: {error}") from error
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close the plugins and end their thread."""
        loop, self._loop = self._loop, None
        thread, self._thread = self._thread, None
        manager, self._manager = self._manager, None
        if loop is None or thread is None:
            return
        try:
            if manager is not None:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_close(manager), loop))
        except Exception as error:  # whatever a plugin raises: its thread ends all the same
            logger.warning("the amqtt plugins did not close: %s", type(error).__name__)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            await asyncio.to_thread(thread.join, STOP_TIMEOUT_S)

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """The plugins' joint verdict. Raises AuthenticatorUnavailable when they fail, are late or overloaded."""
        try:
            password = None if credentials.password is None else credentials.password.decode()
        except UnicodeDecodeError:
            self._figures["refused"] += 1
            return None
        if not await self._ask(PluginSession(credentials, password)):
            self._figures["refused"] += 1
            return None
        self._figures["accepted"] += 1
        name = credentials.user_name or credentials.tls_subject or ANONYMOUS
        return Principal(name, credentials.client_id, credentials.peer)

    def statistics(self) -> dict[str, int]:
        """Figures for /metrics and $SYS."""
        return self._figures | {"waiting": len(self._answers)}

    async def _ask(self, session: PluginSession) -> bool:
        manager = self._manager
        if manager is None or len(self._answers) >= self._waiting_max:
            self._figures["overloaded"] += 1
            raise AuthenticatorUnavailable("the amqtt plugins have too much to do")
        answer: asyncio.Future[bool] = asyncio.wrap_future(self._submit(_verdict(manager, session, self._timeout_s)))
        self._answers.add(answer)
        answer.add_done_callback(self._answered)
        # Not cancelled when late: one that a blocked plugin has not got to still counts as waiting.
        await asyncio.wait({answer}, timeout=self._timeout_s)
        error = None if not answer.done() or answer.cancelled() else answer.exception()
        if not answer.done() or isinstance(error, TimeoutError):
            self._figures["late"] += 1
            raise AuthenticatorUnavailable("the amqtt plugins are late")
        if answer.cancelled() or error is not None:
            self._figures["failed"] += 1
            raise AuthenticatorUnavailable(f"an amqtt plugin failed: {type(error).__name__}")
        return answer.result()

    def _answered(self, answer: asyncio.Future[bool]) -> None:
        self._answers.discard(answer)
        if not answer.cancelled():
            answer.exception()  # looked at, though nobody may wait for it any more

    def _submit(self, work: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Any]:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _load(self) -> PluginManager[Any]:
        context = BaseContext()
        context.config = {"plugins": self._configuration}
        manager: PluginManager[Any] = PluginManager(_NAMESPACE, context)
        if not manager._auth_plugins:
            raise ConfigurationError("none of them is an auth plugin")
        await _call(manager, "on_broker_pre_start")
        await _call(manager, "on_broker_post_start")
        return manager


async def _call(manager: PluginManager[Any], hook: str) -> None:
    """amqtt's life-cycle hooks, where plugins open and close what they need."""
    for plugin in manager.plugins:
        method = getattr(plugin, hook, None)
        if method is not None:
            await method()


async def _close(manager: PluginManager[Any]) -> None:
    try:
        await _call(manager, "on_broker_pre_shutdown")
        await _call(manager, "on_broker_post_shutdown")
    finally:
        await manager.close()


async def _verdict(manager: PluginManager[Any], session: PluginSession, timeout_s: float) -> bool:
    async with asyncio.timeout(timeout_s):
        answers = await manager.map_plugin_auth(session=session)
    opinions = [answer for answer in answers.values() if answer is not None]
    return bool(opinions) and all(opinions)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        if tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks, timeout=STOP_TIMEOUT_S / 2))
    finally:
        loop.close()
