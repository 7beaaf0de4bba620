"""Bans: what they hit, how long, their record, and the bounds of the list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.access import bans
from edge.access.bans import Ban, BanList
from edge.access.principal import Credentials, Principal
from schemas.errors import RecordError


def client(client_id: str = "pump", user: str | None = "ann", peer: str = "192.0.2.1") -> Credentials:
    return Credentials(client_id, user, b"pw", peer, 5)


def listed(*entries: Ban) -> BanList:
    ban_list = BanList()
    for ban in entries:
        ban_list.apply(ban.key, ban.to_json())
    return ban_list


HITS = [
    Ban("client_id", "pump"),
    Ban("user", "ann"),
    Ban("address", "192.0.2.1"),
    Ban("address", "192.0.2.0/24"),
]
MISSES = [Ban("client_id", "ann"), Ban("user", "pump"), Ban("address", "192.0.2.2"), Ban("address", "192.0.3.0/24")]


@pytest.mark.parametrize("ban", HITS, ids=lambda ban: ban.key)
@pytest.mark.parametrize("subject", [client(), Principal("ann", "pump", "192.0.2.1")], ids=["before", "after"])
def test_a_ban_shuts_out(ban: Ban, subject: Credentials | Principal) -> None:
    assert listed(ban).banned(subject, 0.0) == ban
    assert ban.applies_to(subject)


@pytest.mark.parametrize("ban", MISSES, ids=lambda ban: ban.key)
def test_a_ban_shuts_nobody_else_out(ban: Ban) -> None:
    assert listed(ban).banned(client(), 0.0) is None
    assert not ban.applies_to(client())


def test_addresses_have_one_spelling() -> None:
    ban_list = listed(Ban("address", "2001:DB8:0::1"))
    assert ban_list.banned(client(peer="2001:db8::1"), 0.0) is not None
    assert listed(Ban("address", "::ffff:192.0.2.1")).banned(client(), 0.0) is not None
    assert listed(Ban("address", "192.0.2.1/32")).banned(client(), 0.0) is not None
    assert listed(Ban("address", "192.0.2.1")).banned(client(peer="::ffff:192.0.2.1"), 0.0) is not None
    assert listed(Ban("address", "2001:db8::/32")).banned(client(peer="2001:db8::7%eth0"), 0.0) is not None


def test_a_unix_socket_has_no_address_to_ban() -> None:
    assert listed(Ban("address", "0.0.0.0/0")).banned(client(peer="unix"), 0.0) is None
    assert not Ban("address", "0.0.0.0/0").applies_to(client(peer="unix"))


def test_a_client_without_a_user_is_not_the_user_none() -> None:
    assert listed(Ban("user", "None")).banned(client(user=None), 0.0) is None


def test_a_ban_ends() -> None:
    ban_list = listed(Ban("client_id", "pump", expires_at=100.0), Ban("address", "192.0.2.0/24", expires_at=200.0))
    assert ban_list.banned(client(), 99.9) is not None
    assert ban_list.banned(client(), 100.0) == Ban("address", "192.0.2.0/24", expires_at=200.0)
    assert ban_list.banned(client(), 200.0) is None
    assert ban_list.expire(150.0) == 1
    assert ban_list.expire(200.0) == 1
    assert ban_list.statistics() == {"bans": 0, "networks": 0, "evicted": 0}


def test_a_tombstone_lifts_a_ban() -> None:
    ban_list = listed(*HITS)
    before = ban_list.generation
    for ban in HITS:
        assert ban_list.apply(ban.key, None) is None
    assert ban_list.banned(client(), 0.0) is None
    assert ban_list.generation == before + len(HITS)
    assert ban_list.apply("ban/user/nobody", None) is None


def test_a_later_record_replaces_an_earlier() -> None:
    ban_list = listed(Ban("user", "ann", expires_at=10.0), Ban("user", "ann", expires_at=20.0, reason="again"))
    assert ban_list.bans() == (Ban("user", "ann", expires_at=20.0, reason="again"),)


@given(
    kind=st.sampled_from(["client_id", "user"]),
    value=st.text(min_size=1),
    expires_at=st.none() | st.floats(0, 1e12),
    reason=st.text(),
)
def test_a_record_gives_the_ban_back(kind: str, value: str, expires_at: float | None, reason: str) -> None:
    ban = Ban(kind, value, expires_at, reason, "admin")
    assert Ban.from_record(ban.key, ban.to_json()) == ban


def test_unknown_fields_of_a_record_are_ignored() -> None:
    assert Ban.from_record("ban/user/a/b", b'{"version":1,"colour":"red"}') == Ban("user", "a/b")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("route/x", b'{"version":1}'),
        ("ban/x/y", b'{"version":1}'),
        ("ban/user/", b'{"version":1}'),
        ("ban/user", b'{"version":1}'),
        ("ban/address/nowhere", b'{"version":1}'),
        ("ban/address/192.0.2.0/99", b'{"version":1}'),
        ("ban/user/ann", b""),
        ("ban/user/ann", b"[]"),
        ("ban/user/ann", b"\xff"),
        ("ban/user/ann", b'{"version":2}'),
        ("ban/user/ann", b'{"version":1,"expires_at":"soon"}'),
        ("ban/user/ann", b'{"version":1,"expires_at":true}'),
        ("ban/user/ann", b'{"version":1,"reason":3}'),
    ],
)
def test_a_record_that_is_no_ban_changes_nothing(key: str, value: bytes) -> None:
    ban_list = BanList()
    with pytest.raises(RecordError):
        ban_list.apply(key, value)
    assert ban_list.generation == 0
    assert ban_list.bans() == ()


def test_at_the_bound_the_ban_that_ends_first_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bans, "BANS_MAX", 3)
    ban_list = listed(Ban("user", "a"), Ban("user", "b", expires_at=9.0), Ban("user", "c", expires_at=8.0))
    ban_list.apply("ban/user/d", Ban("user", "d").to_json())
    ban_list.apply("ban/user/e", Ban("user", "e").to_json())
    assert [ban.value for ban in ban_list.bans()] == ["a", "d", "e"]
    assert ban_list.statistics()["evicted"] == 2
    with pytest.raises(RecordError, match="without an end"):
        ban_list.apply("ban/user/f", Ban("user", "f").to_json())


def test_banned_networks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bans, "NETWORKS_MAX", 1)
    ban_list = listed(Ban("address", "10.0.0.0/8"), Ban("address", "10.0.0.0/8", reason="still"))
    with pytest.raises(RecordError, match="networks"):
        ban_list.apply("ban/address/11.0.0.0/8", Ban("address", "11.0.0.0/8").to_json())
    assert len(ban_list.bans()) == 1
