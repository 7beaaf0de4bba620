"""The chain: who decides, and what becomes of back ends that fail, hang or cannot start."""

from __future__ import annotations

import asyncio
import logging

import pytest

from edge.access.authentication import AnonymousAuthenticator, AuthenticatorUnavailable, ChainAuthenticator
from edge.access.principal import Credentials, Principal
from schemas.errors import ConfigurationError

ASKED = Credentials("c", "ann", b"canary-password", "192.0.2.1", 5)
ANN = Principal("ann", "c", "192.0.2.1")


class Scripted:
    """Answers, raises or hangs as told."""

    def __init__(self, answer: Principal | Exception | str | None, log: list[str] | None = None) -> None:
        self.answer = answer
        self.asked = 0
        self.log = log if log is not None else []

    async def start(self) -> None:
        if self.answer == "cannot start":
            raise ConfigurationError("cannot start")
        self.log.append("start")

    async def stop(self) -> None:
        self.log.append("stop")
        if self.answer == "cannot stop":
            raise RuntimeError("cannot stop")

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        self.asked += 1
        if self.answer == "hangs":
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer if isinstance(self.answer, Principal) else None

    def statistics(self) -> dict[str, int]:
        return {"asked": self.asked}


async def test_the_first_that_accepts_decides() -> None:
    refuses, accepts, unasked = Scripted(None), Scripted(ANN), Scripted(None)
    chain = ChainAuthenticator([refuses, accepts, unasked])
    assert await chain.authenticate(ASKED) == ANN
    assert chain.statistics() == {"failed": 0, "late": 0, "0_asked": 1, "1_asked": 1, "2_asked": 0}


async def test_without_an_acceptance_everybody_is_refused() -> None:
    assert await ChainAuthenticator([]).authenticate(ASKED) is None
    assert await ChainAuthenticator([Scripted(None), Scripted(None)]).authenticate(ASKED) is None


@pytest.mark.parametrize("trouble", [RuntimeError("canary-password"), AuthenticatorUnavailable("busy")])
async def test_a_failing_back_end_refuses(trouble: Exception, caplog: pytest.LogCaptureFixture) -> None:
    chain = ChainAuthenticator([Scripted(trouble), Scripted(None)])
    with caplog.at_level(logging.DEBUG):
        for _ in range(3):
            with pytest.raises(AuthenticatorUnavailable):
                await chain.authenticate(ASKED)
    assert chain.statistics()["failed"] == 3
    assert len(caplog.records) == 1, "one line, not one for each client"
    assert "canary" not in caplog.text


async def test_a_silent_back_end_refuses_when_its_time_is_over() -> None:
    chain = ChainAuthenticator([Scripted("hangs")], timeout_s=0.01)
    with pytest.raises(AuthenticatorUnavailable):
        await chain.authenticate(ASKED)
    assert chain.statistics()["late"] == 1


async def test_the_next_back_end_is_asked_when_one_fails() -> None:
    assert await ChainAuthenticator([Scripted("hangs"), Scripted(ANN)], timeout_s=0.01).authenticate(ASKED) == ANN
    assert await ChainAuthenticator([Scripted(RuntimeError()), Scripted(ANN)]).authenticate(ASKED) == ANN


def test_a_back_end_has_two_seconds() -> None:
    assert ChainAuthenticator([])._timeout_s == 2.0


async def test_a_client_that_leaves_ends_the_question() -> None:
    asking = asyncio.create_task(ChainAuthenticator([Scripted("hangs")]).authenticate(ASKED))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_links_start_in_order_and_stop_in_the_opposite() -> None:
    log: list[str] = []
    chain = ChainAuthenticator([Scripted(None, log), Scripted("cannot stop", log), Scripted(None, log)])
    await chain.start()
    with pytest.raises(RuntimeError, match="cannot stop"):
        await chain.stop()
    assert log == ["start"] * 3 + ["stop"] * 3
    await chain.stop()
    assert len(log) == 6


async def test_links_before_one_that_cannot_start_are_stopped() -> None:
    log: list[str] = []
    with pytest.raises(ConfigurationError):
        await ChainAuthenticator([Scripted(None, log), Scripted("cannot start", log), Scripted(None, log)]).start()
    assert log == ["start", "stop"]


async def test_anonymous_takes_everybody_and_nobodys_word() -> None:
    authenticator = AnonymousAuthenticator()
    await authenticator.start()
    assert await authenticator.authenticate(ASKED) == Principal("anonymous", "c", "192.0.2.1")
    await authenticator.stop()
    assert authenticator.statistics() == {"accepted": 1}
