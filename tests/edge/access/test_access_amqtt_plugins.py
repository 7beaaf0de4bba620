"""amqtt's auth plugins run unchanged: its own and others', with every way of failing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from amqtt.contexts import BaseContext
from amqtt.plugins.base import BaseAuthPlugin, BasePlugin
from amqtt.session import Session

from edge.access.amqtt_plugins import AmqttPluginAuthenticator, PluginSession
from edge.access.authentication import AuthenticatorUnavailable
from edge.access.passwords import add_user
from edge.access.principal import Credentials, Principal
from schemas.errors import ConfigurationError

ASKED = Credentials("c", "ann", b"right", "192.0.2.1", 5)

seen: list[tuple[Session, str]] = []
closed: list[str] = []
held = threading.Event()
asked = threading.Event()


class Scripted(BaseAuthPlugin):  # type: ignore[misc]
    """Answers as its configuration says."""

    @dataclass
    class Config:
        answer: str = "none"

    async def authenticate(self, *, session: Session) -> bool | None:
        seen.append((session, threading.current_thread().name))
        asked.set()
        match self.config.answer:
            case "raise":
                raise RuntimeError("canary")
            case "hang":
                await asyncio.Event().wait()
            case "block":
                assert held.wait(30)
        return {"yes": True, "no": False}.get(self.config.answer)

    async def close(self) -> None:
        closed.append(self.config.answer)


class Opens(Scripted):
    """As plugins that open a database when the broker starts."""

    is_open = False

    async def on_broker_pre_start(self) -> None:
        if self.config.answer == "no":
            raise OSError("no database")
        self.is_open = True

    async def on_broker_pre_shutdown(self) -> None:
        closed.append("shutdown")
        if self.config.answer == "none":
            raise OSError("canary")

    async def authenticate(self, *, session: Session) -> bool | None:
        return self.is_open


class Second(Scripted):
    """The same class cannot be named twice in one configuration."""


class NeedsItsLoop(Scripted):
    """As plugins that make an HTTP session in their constructor."""

    def __init__(self, context: BaseContext) -> None:
        super().__init__(context)
        asyncio.get_running_loop()


class CannotStart(BaseAuthPlugin):  # type: ignore[misc]
    def __init__(self, context: BaseContext) -> None:
        raise OSError("no database")


class NoAuthPlugin(BasePlugin[BaseContext]):  # type: ignore[misc]
    """A plugin of another kind."""


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    seen.clear()
    closed.clear()
    held.clear()
    asked.clear()
    yield
    held.set()


def named(kind: type, **options: Any) -> dict[str, dict[str, Any]]:
    return {f"{kind.__module__}.{kind.__qualname__}": options}


@asynccontextmanager
async def running(plugins: dict[str, dict[str, Any]], **options: Any) -> AsyncIterator[AmqttPluginAuthenticator]:
    authenticator = AmqttPluginAuthenticator(plugins, **options)
    await authenticator.start()
    try:
        yield authenticator
    finally:
        await authenticator.stop()


@pytest.mark.parametrize(
    ("first", "second", "accepted"),
    [("yes", "yes", True), ("yes", "none", True), ("none", "yes", True), ("yes", "no", False), ("none", "none", False)],
)
async def test_verdicts_are_joined_as_amqtt_joins_them(first: str, second: str, accepted: bool) -> None:
    async with running(named(Scripted, answer=first) | named(Second, answer=second)) as authenticator:
        principal = await authenticator.authenticate(ASKED)
    assert principal == (Principal("ann", "c", "192.0.2.1") if accepted else None)
    assert sorted(closed) == sorted([first, second])


async def test_plugins_are_told_that_the_edge_starts_and_ends() -> None:
    async with running(named(Opens, answer="yes")) as authenticator:
        assert await authenticator.authenticate(ASKED) is not None
    assert closed == ["shutdown", "yes"]


async def test_a_plugin_that_fails_to_close_is_closed_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    async with running(named(Opens, answer="none")):
        pass
    assert closed == ["shutdown", "none"]
    assert "did not close: OSError" in caplog.text
    assert not any(thread.name == "headwater-plugins" for thread in threading.enumerate())


async def test_a_plugin_sees_what_amqtt_would_show_it() -> None:
    credentials = Credentials("c", "ann", b"p\xc3\xa4ss", "192.0.2.1", 5, "pump", b"DER")
    async with running(named(NeedsItsLoop, answer="yes")) as authenticator:
        assert await authenticator.authenticate(credentials) is not None
    session, thread = seen[0]
    assert (session.username, session.password, session.client_id) == ("ann", "päss", "c")
    assert session.remote_address == "192.0.2.1"
    assert session.ssl_object.getpeercert(binary_form=True) == b"DER"
    assert session.attributes == {}
    assert "state=new" in repr(session)
    assert thread == "headwater-plugins"


def test_the_session_has_all_that_amqtts_has_but_the_state_machine() -> None:
    light, heavy = PluginSession(ASKED, None), Session()
    assert set(vars(light)) == set(vars(heavy))
    assert light.transitions.connect()
    assert light.transitions.disconnect()
    assert type(light.transitions) is not type(heavy.transitions)


@pytest.mark.parametrize(
    ("user", "subject", "name"),
    [("ann", None, "ann"), (None, "pump", "pump"), (None, None, "anonymous")],
)
async def test_the_principal_is_the_user_then_the_certificate(user: str | None, subject: str | None, name: str) -> None:
    async with running(named(Scripted, answer="yes")) as authenticator:
        principal = await authenticator.authenticate(Credentials("c", user, None, "", 4, subject))
    assert principal is not None
    assert principal.name == name


async def test_a_password_that_is_no_text_is_refused_unseen() -> None:
    async with running(named(Scripted, answer="yes")) as authenticator:
        assert await authenticator.authenticate(Credentials("c", "ann", b"\xff", "", 5)) is None
    assert seen == []


@pytest.mark.parametrize(("answer", "figure"), [("raise", "failed"), ("hang", "late"), ("block", "late")])
async def test_a_plugin_that_fails_hangs_or_blocks_refuses(answer: str, figure: str) -> None:
    async with running(named(Scripted, answer=answer), timeout_s=0.05) as authenticator:
        with pytest.raises(AuthenticatorUnavailable) as caught:
            await authenticator.authenticate(ASKED)
        assert authenticator.statistics()[figure] == 1
        assert "canary" not in str(caught.value)
        held.set()


async def test_a_blocked_plugin_does_not_block_the_edge_nor_pile_up_work() -> None:
    async with running(named(Scripted, answer="block"), timeout_s=0.05, waiting_max=3) as authenticator:
        asking = [asyncio.create_task(authenticator.authenticate(ASKED)) for _ in range(10)]
        answers = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(answer, AuthenticatorUnavailable) for answer in answers)
        figures = authenticator.statistics()
        assert (figures["overloaded"], figures["waiting"]) == (7, 3)
        held.set()
        await asyncio.wait(authenticator._answers)
        assert await authenticator.authenticate(ASKED) is None, "it answers again"


async def test_stopping_ends_the_thread_and_refuses_those_who_wait() -> None:
    authenticator = AmqttPluginAuthenticator(named(Scripted, answer="hang"))
    await authenticator.start()
    asking = asyncio.create_task(authenticator.authenticate(ASKED))
    assert await asyncio.to_thread(asked.wait, 20)
    await authenticator.stop()
    await authenticator.stop()
    with pytest.raises(AuthenticatorUnavailable):
        await asking
    with pytest.raises(AuthenticatorUnavailable):
        await authenticator.authenticate(ASKED)
    assert not any(thread.name == "headwater-plugins" for thread in threading.enumerate())


@pytest.mark.parametrize(
    "plugins",
    [
        {},
        {"nowhere.to.be.Found": {}},
        named(NoAuthPlugin),
        named(CannotStart),
        named(Scripted, colour="red"),
        named(Opens, answer="no"),
        {"pathlib.Path": {}},
    ],
    ids=["none", "missing", "other kind", "constructor", "option", "hook", "no plugin"],
)
async def test_what_cannot_work_stops_the_start(plugins: dict[str, dict[str, Any]]) -> None:
    with pytest.raises(ConfigurationError):
        await AmqttPluginAuthenticator(plugins).start()
    assert not any(thread.name == "headwater-plugins" for thread in threading.enumerate())


async def test_amqtts_own_file_plugin_runs_on_our_file(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    add_user(path, "ann", "right")
    plugin = "amqtt.plugins.authentication.FileAuthPlugin"
    async with running({plugin: {"password_file": str(path)}}, timeout_s=20) as authenticator:
        assert await authenticator.authenticate(ASKED) == Principal("ann", "c", "192.0.2.1")
        assert await authenticator.authenticate(Credentials("c", "ann", b"wrong", "", 5)) is None
        assert await authenticator.authenticate(Credentials("c", "eve", b"right", "", 5)) is None
        assert await authenticator.authenticate(Credentials("c", None, None, "", 5)) is None


async def test_amqtts_own_anonymous_plugin_runs() -> None:
    plugin = "amqtt.plugins.authentication.AnonymousAuthPlugin"
    async with running({plugin: {"allow_anonymous": False}}) as authenticator:
        assert await authenticator.authenticate(ASKED) == Principal("ann", "c", "192.0.2.1")
        assert await authenticator.authenticate(Credentials("c", None, None, "", 5)) is None
