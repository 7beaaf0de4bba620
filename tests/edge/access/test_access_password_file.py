"""The password file: its hashes, its lines, the work done for an answer, the cache, overload and reloading."""

from __future__ import annotations

import asyncio
import logging
import stat
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from argon2 import Type, extract_parameters

from edge.access.authentication import AuthenticatorUnavailable
from edge.access.password_file import PasswordFileAuthenticator
from edge.access.passwords import add_user, hash_password, parse_password_file, remove_user, verify_password
from edge.access.principal import Credentials, Principal
from schemas.errors import ConfigurationError

HASH = hash_password("right")


def ask(user: str | None, password: bytes | None) -> Credentials:
    return Credentials("c", user, password, "192.0.2.1", 5)


class Verifier:
    """Counts verifications; `right` is right for every hash of the file. Can be held up."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bytes]] = []
        self.go = threading.Event()
        self.go.set()
        self.error: Exception | None = None

    def __call__(self, password_hash: str, password: bytes) -> bool:
        self.calls.append((password_hash, password))
        assert self.go.wait(30)
        if self.error is not None:
            raise self.error
        return password == b"right"


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def verifier() -> Iterator[Verifier]:
    made = Verifier()
    yield made
    made.go.set()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "passwords"
    file.write_text(f"# users\n\nann:{HASH}\nbob:{HASH}\n")
    return file


@pytest.fixture
def many_users(path: Path) -> Path:
    path.write_text("".join(f"u{number}:{HASH}\n" for number in range(20)))
    return path


@asynccontextmanager
async def running(path: Path, **options: Any) -> AsyncIterator[PasswordFileAuthenticator]:
    authenticator = PasswordFileAuthenticator(path, **({"reload_s": 3_600.0} | options))
    await authenticator.start()
    try:
        yield authenticator
    finally:
        await authenticator.stop()


async def begun(authenticator: PasswordFileAuthenticator, verifications: int) -> None:
    """Let the tasks that ask take their first step, which hands the verification to the pool."""
    await asyncio.sleep(0)
    assert authenticator.statistics()["running"] == verifications


class Watched(PasswordFileAuthenticator):
    """Says when it has looked at the file."""

    looks: asyncio.Queue[None]

    async def reload_if_changed(self) -> bool:
        try:
            return await super().reload_if_changed()
        finally:
            self.looks.put_nowait(None)

    async def looked(self, times: int) -> None:
        while not self.looks.empty():
            self.looks.get_nowait()
        for _ in range(times + 1):  # the first may have begun before
            await self.looks.get()


def test_hashes_are_argon2id_with_the_documented_cost() -> None:
    parameters = extract_parameters(HASH)
    assert (parameters.type, parameters.memory_cost, parameters.time_cost, parameters.parallelism) == (
        Type.ID,
        19 * 1024,
        2,
        1,
    )
    assert hash_password("right") != HASH, "salted"
    assert verify_password(HASH, b"right")
    assert not verify_password(HASH, b"wrong")


def test_add_and_remove_users(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    add_user(path, "ann", "one")
    add_user(path, "bob", b"\xff\x00two")
    path.write_text("# kept\n" + path.read_text())
    add_user(path, "ann", "three")
    users = parse_password_file(path.read_text())
    assert set(users) == {"ann", "bob"}
    assert verify_password(users["ann"], b"three")
    assert verify_password(users["bob"], b"\xff\x00two")
    assert path.read_text().startswith("# kept\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert remove_user(path, "ann")
    assert not remove_user(path, "ann")
    assert set(parse_password_file(path.read_text())) == {"bob"}
    assert [file.name for file in tmp_path.iterdir()] == ["passwords"], "no temporary file stays behind"


@pytest.mark.parametrize("user", ["", "a:b", "#a", " a", "a ", "a\nb", "a\x00", "a\x85b"])
def test_names_that_cannot_stand_in_the_file_are_refused(tmp_path: Path, user: str) -> None:
    with pytest.raises(ConfigurationError, match="user name"):
        add_user(tmp_path / "passwords", user, "pw")
    assert not list(tmp_path.iterdir())


def test_an_empty_password_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="empty password"):
        add_user(tmp_path / "passwords", "ann", "")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ann", "line 1: not user:hash"),
        (f":{HASH}", "line 1: not user:hash"),
        ("# x\nann:canary", "line 2: not an argon2id hash"),
        ("ann:$6$salt$canary", "line 1: not an argon2id hash"),
        (f"ann:{HASH.replace('argon2id', 'argon2i')}", "line 1: not an argon2id hash"),
        (f"ann:{HASH}\nann:{HASH}", "line 2: this user has a line already"),
    ],
)
def test_a_wrong_line_is_named_and_not_shown(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_password_file(text)
    assert why in str(caught.value)
    assert "canary" not in str(caught.value)


async def test_a_missing_or_unreadable_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="headwater passwd"):
        await PasswordFileAuthenticator(tmp_path / "none").start()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        await PasswordFileAuthenticator(tmp_path / "binary").start()


async def test_a_user_with_its_password_is_the_principal(path: Path) -> None:
    async with running(path, superusers=["bob"]) as authenticator:
        assert await authenticator.authenticate(ask("ann", b"right")) == Principal("ann", "c", "192.0.2.1")
        assert await authenticator.authenticate(ask("bob", b"right")) == Principal("bob", "c", "192.0.2.1", True)
        assert await authenticator.authenticate(ask("ann", b"wrong")) is None
        assert await authenticator.authenticate(ask("eve", b"right")) is None


@pytest.mark.parametrize(("user", "password"), [(None, None), ("ann", None), (None, b"right"), ("", b"right")])
async def test_half_of_the_credentials_is_nothing(
    path: Path, verifier: Verifier, user: str | None, password: bytes | None
) -> None:
    async with running(path, verify=verifier) as authenticator:
        assert await authenticator.authenticate(ask(user, password)) is None
    assert verifier.calls == []


async def test_an_unknown_user_costs_what_a_known_one_costs(path: Path, verifier: Verifier) -> None:
    async with running(path, verify=verifier) as authenticator:
        for round_number in range(3):
            password = b"wrong%d" % round_number
            assert await authenticator.authenticate(ask("ann", password)) is None
            assert await authenticator.authenticate(ask("eve", password)) is None
    known, unknown = verifier.calls[0::2], verifier.calls[1::2]
    assert len(known) == len(unknown) == 3
    assert [password for _, password in known] == [password for _, password in unknown]
    parameters = [extract_parameters(password_hash) for password_hash, _ in known + unknown]
    assert parameters == [parameters[0]] * 6, "the same cost"
    assert len({len(password_hash) for password_hash, _ in verifier.calls}) == 1


async def test_a_right_password_for_an_unknown_user_is_refused_whatever_the_hash_says(
    path: Path, verifier: Verifier
) -> None:
    async with running(path, verify=verifier) as authenticator:
        for _ in range(2):
            assert await authenticator.authenticate(ask("eve", b"right")) is None


async def test_verification_runs_off_the_event_loop(path: Path) -> None:
    threads: list[str] = []

    def verify(password_hash: str, password: bytes) -> bool:
        threads.append(threading.current_thread().name)
        return True

    async with running(path, verify=verify) as authenticator:
        await authenticator.authenticate(ask("ann", b"x"))
    assert threads[0].startswith("headwater-passwords")


async def test_a_verified_password_is_remembered_for_a_minute(path: Path, verifier: Verifier) -> None:
    clock = Clock()
    async with running(path, verify=verifier, clock=clock) as authenticator:
        for _ in range(100):
            assert await authenticator.authenticate(ask("ann", b"right")) is not None
        assert len(verifier.calls) == 1
        clock.now += 59.9
        assert await authenticator.authenticate(ask("ann", b"right")) is not None
        assert len(verifier.calls) == 1
        clock.now += 0.1
        assert await authenticator.authenticate(ask("ann", b"right")) is not None
        assert len(verifier.calls) == 2
        assert await authenticator.authenticate(ask("bob", b"right")) is not None
        assert len(verifier.calls) == 3, "another user with the same password is another entry"


async def test_wrong_passwords_are_not_remembered(path: Path, verifier: Verifier) -> None:
    async with running(path, verify=verifier) as authenticator:
        for _ in range(3):
            assert await authenticator.authenticate(ask("ann", b"wrong")) is None
        assert len(verifier.calls) == 3
        assert authenticator.statistics()["cache"] == 0


async def test_the_cache_is_bounded_and_holds_no_password(many_users: Path, verifier: Verifier) -> None:
    path = many_users
    async with running(path, verify=verifier, cache_max=5) as authenticator:
        for number in range(20):
            assert await authenticator.authenticate(ask(f"u{number}", b"right")) is not None
        assert authenticator.statistics()["cache"] == 5
        assert not any(b"right" in key for key in authenticator._verified)
        assert authenticator._digest_key != PasswordFileAuthenticator(path)._digest_key


async def test_those_who_ask_the_same_share_one_verification(path: Path, verifier: Verifier) -> None:
    async with running(path, verify=verifier) as authenticator:
        verifier.go.clear()
        asking = [asyncio.create_task(authenticator.authenticate(ask("ann", b"right"))) for _ in range(500)]
        await begun(authenticator, 1)
        verifier.go.set()
        assert all(await asyncio.gather(*asking))
    assert len(verifier.calls) == 1


async def test_the_queue_is_bounded(path: Path, verifier: Verifier) -> None:
    async with running(path, verify=verifier, queue_max=3) as authenticator:
        verifier.go.clear()
        asking = [asyncio.create_task(authenticator.authenticate(ask("ann", b"%d" % n))) for n in range(3)]
        await begun(authenticator, 3)
        with pytest.raises(AuthenticatorUnavailable):
            await authenticator.authenticate(ask("ann", b"one too many"))
        assert authenticator.statistics()["overloaded"] == 1
        verifier.go.set()
        assert await asyncio.gather(*asking) == [None] * 3
        assert authenticator.statistics()["running"] == 0


async def test_a_late_verification_refuses(path: Path, verifier: Verifier) -> None:
    async with running(path, verify=verifier, timeout_s=0.01) as authenticator:
        verifier.go.clear()
        with pytest.raises(AuthenticatorUnavailable):
            await authenticator.authenticate(ask("ann", b"right"))
        verifier.go.set()
        await asyncio.wait(set(authenticator._running.values()))
        assert await authenticator.authenticate(ask("ann", b"right")) is not None, "what it found out is not lost"


async def test_a_failing_verification_refuses(path: Path, verifier: Verifier) -> None:
    verifier.error = MemoryError()
    async with running(path, verify=verifier) as authenticator:
        with pytest.raises(AuthenticatorUnavailable):
            await authenticator.authenticate(ask("ann", b"right"))
        assert authenticator.statistics()["failed"] == 1


async def test_a_client_that_leaves_does_not_end_the_others_verification(path: Path, verifier: Verifier) -> None:
    async with running(path, verify=verifier) as authenticator:
        verifier.go.clear()
        leaving = asyncio.create_task(authenticator.authenticate(ask("ann", b"right")))
        staying = asyncio.create_task(authenticator.authenticate(ask("ann", b"right")))
        await begun(authenticator, 1)
        leaving.cancel()
        verifier.go.set()
        assert await staying is not None
        assert leaving.cancelled()


async def test_stopping_refuses_those_who_wait(path: Path, verifier: Verifier) -> None:
    authenticator = PasswordFileAuthenticator(path, verify=verifier)
    await authenticator.start()
    verifier.go.clear()
    asking = [asyncio.create_task(authenticator.authenticate(ask("ann", b"%d" % n))) for n in range(20)]
    await begun(authenticator, 20)
    stopping = asyncio.create_task(authenticator.stop())
    verifier.go.set()
    await stopping
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert all(answer is None or isinstance(answer, AuthenticatorUnavailable) for answer in answers)
    with pytest.raises(AuthenticatorUnavailable):
        await authenticator.authenticate(ask("ann", b"right"))


async def test_a_changed_file_is_taken_over(path: Path) -> None:
    async with running(path) as authenticator:
        assert not await authenticator.reload_if_changed()
        assert await authenticator.authenticate(ask("ann", b"right")) is not None
        add_user(path, "ann", "new")
        remove_user(path, "bob")
        assert await authenticator.reload_if_changed()
        assert await authenticator.authenticate(ask("ann", b"right")) is None, "remembered no more"
        assert await authenticator.authenticate(ask("ann", b"new")) is not None
        assert await authenticator.authenticate(ask("bob", b"right")) is None


async def test_a_change_during_a_verification_wins(path: Path, verifier: Verifier) -> None:
    async with running(path, verify=verifier) as authenticator:
        verifier.go.clear()
        asking = asyncio.create_task(authenticator.authenticate(ask("bob", b"right")))
        await begun(authenticator, 1)
        remove_user(path, "bob")
        await authenticator.reload_if_changed()
        verifier.go.set()
        assert await asking is None


async def test_the_file_is_watched_and_a_broken_one_changes_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken, mended = path.with_name("broken"), path.with_name("mended")
    add_user(mended, "eve", "pw")
    await asyncio.to_thread(broken.write_text, "canary-secret")
    authenticator = Watched(path, reload_s=0.005)
    authenticator.looks = asyncio.Queue()
    with caplog.at_level(logging.DEBUG):
        await authenticator.start()
        broken.replace(path)
        await authenticator.looked(3)
        assert authenticator.statistics()["reload_failures"] >= 2
        assert authenticator.statistics()["users"] == 2
        assert await authenticator.authenticate(ask("ann", b"right")) is not None
        mended.replace(path)
        await authenticator.looked(2)
        await authenticator.stop()
    assert (authenticator.statistics()["reloads"], authenticator.statistics()["users"]) == (1, 1)
    assert "canary" not in caplog.text
    assert sum("line 1" in record.message for record in caplog.records) == 1, "said once"
