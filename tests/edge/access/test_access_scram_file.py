"""The SCRAM file and its authenticator: lines, users who are not there, reloading."""

from __future__ import annotations

import base64
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.scram_client import ScramClient

from edge.access.enhanced import Continue, Done, EnhancedAuthenticator, EnhancedExchange, Failed, Step
from edge.access.passwords import add_user
from edge.access.scram import METHOD
from edge.access.scram_file import ScramAuthenticator, add_scram_user, parse_scram_file, remove_scram_user
from schemas.errors import ConfigurationError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "scram"
    add_scram_user(file, "ann", "pencil", 4_096)
    add_scram_user(file, "bob", "rubber", 4_096)
    return file


@asynccontextmanager
async def running(path: Path, **options: Any) -> AsyncIterator[ScramAuthenticator]:
    authenticator = ScramAuthenticator(path, **({"reload_s": 3_600.0} | options))
    await authenticator.start()
    try:
        yield authenticator
    finally:
        await authenticator.stop()


async def run(exchange: EnhancedExchange, client: ScramClient) -> Step:
    first = await exchange.step(client.first())
    assert isinstance(first, Continue)
    assert first.data is not None
    return await exchange.step(client.final(first.data))


async def test_the_right_password(path: Path) -> None:
    async with running(path, superusers=["bob"]) as authenticator:
        offered: EnhancedAuthenticator = authenticator
        assert offered.methods == {"SCRAM-SHA-256"}
        for user, password, superuser in (("ann", "pencil", False), ("bob", "rubber", True)):
            client = ScramClient(user, password)
            done = await run(offered.begin(METHOD, "c"), client)
            assert done == Done(user, client.expected, superuser)
        assert authenticator.statistics() == {
            "accepted": 2,
            "refused": 0,
            "reloads": 0,
            "users": 2,
            "reload_failures": 0,
        }


async def test_the_first_message_may_come_after_connect(path: Path) -> None:
    async with running(path) as authenticator:
        exchange = authenticator.begin(METHOD, "c")
        assert await exchange.step(None) == Continue(None)
        assert isinstance(await run(exchange, ScramClient("ann", "pencil")), Done)
        exchange = authenticator.begin(METHOD, "c")
        await exchange.step(None)
        assert await exchange.step(None) == Failed("no Authentication Data")


@pytest.mark.parametrize(("user", "password"), [("ann", "rubber"), ("eve", "pencil"), ("ann", "")])
async def test_a_wrong_password_and_an_unknown_user_are_one_answer(path: Path, user: str, password: str) -> None:
    async with running(path) as authenticator:
        assert await run(authenticator.begin(METHOD, "c"), ScramClient(user, password)) == Failed("the proof is wrong")
        assert authenticator.statistics()["refused"] == 1


async def test_an_unknown_user_is_asked_as_a_known_one_is(path: Path) -> None:
    """The same salt each time, after a restart, on another edge, and when other users come and go."""

    async def asked(user: str) -> dict[str, str]:
        async with running(path) as authenticator:
            first = await authenticator.begin(METHOD, "c").step(ScramClient(user, "x").first())
            assert isinstance(first, Continue)
            assert first.data is not None
            return dict(part.split("=", 1) for part in first.data.decode().split(","))

    known, eve = await asked("ann"), await asked("eve")
    assert eve.keys() == known.keys()
    assert eve["i"] == known["i"] == "4096", "not the default, which would tell"
    assert len(base64.b64decode(eve["s"])) == len(base64.b64decode(known["s"]))
    add_scram_user(path, "dan", "third", 4_096)
    again = await asked("eve")
    assert again["s"] == eve["s"]
    assert again["r"] != eve["r"], "a nonce is used once"
    assert (await asked("mallory"))["s"] != eve["s"]


async def test_every_exchange_has_a_fresh_nonce(path: Path) -> None:
    async with running(path) as authenticator:
        answers = {
            step.data
            for _ in range(50)
            for step in [await authenticator.begin(METHOD, "c").step(ScramClient("ann", "x").first())]
            if isinstance(step, Continue)
        }
        assert len(answers) == 50


async def test_a_changed_file_is_taken_over_and_a_broken_one_is_not(path: Path) -> None:
    async with running(path) as authenticator:
        begun = authenticator.begin(METHOD, "c")
        client = ScramClient("ann", "pencil")
        first = await begun.step(client.first())
        assert isinstance(first, Continue)
        assert first.data is not None
        assert not await authenticator.reload_if_changed()
        add_scram_user(path, "ann", "new", 4_096)
        assert await authenticator.reload_if_changed()
        assert await begun.step(client.final(first.data)) == Failed("the user has been changed or removed")
        assert isinstance(await run(authenticator.begin(METHOD, "c"), ScramClient("ann", "new")), Done)
        text = path.read_text()  # noqa: ASYNC240
        path.write_text("nonsense")  # noqa: ASYNC240
        with pytest.raises(ConfigurationError):
            await authenticator.reload_if_changed()
        assert isinstance(await run(authenticator.begin(METHOD, "c"), ScramClient("ann", "new")), Done)
        path.write_text(text)  # noqa: ASYNC240
        assert await authenticator.reload_if_changed()


def test_the_file(path: Path) -> None:
    text = path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert text.startswith("#unknown-users:")
    assert text.count("#unknown-users:") == 1
    assert "pencil" not in text
    assert set(parse_scram_file(text).keys) == {"ann", "bob"}
    assert "secret" not in repr(parse_scram_file(text))
    assert add_scram_user(path, "\u2168", "x", 4_096) == "IX"
    assert remove_scram_user(path, "\u2168")
    assert not remove_scram_user(path, "IX")
    assert not remove_scram_user(path, "\u0007")
    assert path.read_text() == text


def test_iterations_of_nobody_are_those_of_most() -> None:
    secret = "#unknown-users:" + base64.b64encode(bytes(32)).decode()
    assert parse_scram_file(secret).iterations == 600_000


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no line #unknown-users:SECRET"),
        ("#unknown-users:", "no line #unknown-users:SECRET"),
        ("#unknown-users:!!", "no line #unknown-users:SECRET"),
        ("#unknown-users:c2hvcnQ=", "no line #unknown-users:SECRET"),
        ("ann:SCRAM-SHA-256$1:YQ==$YQ==:YQ==", "line 1: not SCRAM-SHA-256"),
        ("# c\nann:$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ$aGFzaA", "line 2: not SCRAM-SHA-256"),
        ("ann", "line 1: not user:hash"),
    ],
)
def test_files_that_are_refused_name_the_line(text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_scram_file(text)
    assert complaint in str(refused.value)
    assert "headwater passwd --scram" in str(refused.value) or "user:hash" in str(refused.value)


def test_a_file_of_the_other_kind_is_left_alone(tmp_path: Path, path: Path) -> None:
    passwords = tmp_path / "passwords"
    add_user(passwords, "ann", "x")
    for wrong, call in (
        (passwords, lambda file: add_scram_user(file, "dan", "x", 4_096)),
        (path, lambda file: add_user(file, "dan", "x")),
    ):
        before = wrong.read_text()
        with pytest.raises(ConfigurationError, match="line"):
            call(wrong)
        assert wrong.read_text() == before


@pytest.mark.parametrize(
    ("user", "password", "complaint"),
    [
        ("a:b", "x", "user name"),
        ("\u0007", "x", "user name"),
        ("a", "", "empty password"),
        ("a", "\u0007", "password: "),
    ],
)
def test_what_cannot_be_stored_is_refused(tmp_path: Path, user: str, password: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        add_scram_user(tmp_path / "scram", user, password, 4_096)
    assert not list(tmp_path.iterdir())
