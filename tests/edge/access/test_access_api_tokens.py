"""Tokens of the HTTP API: made once, kept as digests, found in constant time, taken over when the file changes."""

from __future__ import annotations

import hmac
import stat
from pathlib import Path

import pytest
from support.edges import until

from edge.access import api_tokens
from edge.access.api_tokens import ROLES, ApiToken, ApiTokens, add_token, list_tokens, remove_token
from schemas.errors import ConfigurationError


def test_a_token_is_found_by_its_digest_alone(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    made = {role: add_token(path, f"the-{role}", role) for role in ROLES}
    text = path.read_text()
    assert all(token not in text for token in made.values())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    tokens = ApiTokens(str(path))
    for role, token in made.items():
        assert len(token) == 46
        assert tokens.find(token) == ApiToken(f"the-{role}", role)
        assert tokens.find(token + "x") is None
        assert tokens.find(text.split(":")[2].split("\n")[0]) is None  # the digest opens nothing
    assert tokens.find("") is None
    assert tokens.find("\udcff") is None
    assert [each.role for each in list_tokens(path)] == list(ROLES)


def test_every_token_is_compared_in_constant_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens"
    first, _ = add_token(path, "a", "viewer"), add_token(path, "b", "admin")
    tokens = ApiTokens(str(path))
    compared: list[int] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(1)
        return hmac.compare_digest(one, other)

    class Compare:
        compare_digest = staticmethod(compare)

    monkeypatch.setattr(api_tokens, "hmac", Compare)
    assert tokens.find(first) is not None
    assert tokens.find("wrong") is None
    assert len(compared) == 4, "found or not, both are looked at"


def test_roles_include_those_before_them() -> None:
    assert [ApiToken("x", "operator").may(role) for role in ROLES] == [True, True, False]
    assert [ApiToken("x", "viewer").may(role) for role in ROLES] == [True, False, False]
    assert all(ApiToken("x", "admin").may(role) for role in ROLES)


def test_a_name_has_one_token(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    old, new = add_token(path, "ops", "admin"), add_token(path, "ops", "viewer")
    tokens = ApiTokens(str(path))
    assert tokens.find(old) is None
    assert tokens.find(new) == ApiToken("ops", "viewer")
    assert remove_token(path, "ops")
    assert not remove_token(path, "ops")


def test_tokens_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens"
    tokens = [add_token(path, name, "viewer") for name in ("a", "b")]
    monkeypatch.setenv("API_TOKENS", path.read_text().strip().replace("\n", ","))
    found = ApiTokens("env:API_TOKENS")
    assert [found.find(token) for token in tokens] == [ApiToken("a", "viewer"), ApiToken("b", "viewer")]
    with pytest.raises(ConfigurationError, match="NOWHERE is not set"):
        ApiTokens("env:NOWHERE")


@pytest.mark.parametrize(
    "text", ["ops", "ops:admin", "ops:root:" + "0" * 64, "ops:admin:" + "0" * 63, "ops:admin:hw_secret"]
)
def test_a_file_that_cannot_be_read_is_told_without_its_text(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        ApiTokens(str(path))
    assert "line 1" in str(caught.value)
    assert "hw_secret" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="role"):
        add_token(tmp_path / "new", "x", "root")
    with pytest.raises(ConfigurationError, match="No such file"):
        ApiTokens(str(tmp_path / "none"))


def test_tokens_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_tokens, "TOKENS_MAX", 1)
    path = tmp_path / "tokens"
    add_token(path, "a", "viewer")
    add_token(path, "b", "viewer")
    with pytest.raises(ConfigurationError, match="at most 1"):
        ApiTokens(str(path))


async def test_a_changed_token_file_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    first = add_token(path, "a", "viewer")
    tokens = ApiTokens(str(path), every_s=0.01)
    tokens.start()
    try:
        second = add_token(path, "b", "admin")
        await until(lambda: tokens.find(second))
        remove_token(path, "a")
        await until(lambda: tokens.find(first) is None)
        path.write_text("broken")
        await until(lambda: tokens._watcher.failures > 0)
        assert tokens.find(second) == ApiToken("b", "admin")
    finally:
        await tokens.stop()
