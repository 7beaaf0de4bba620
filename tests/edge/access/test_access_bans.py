"""Bans: what they hit, how long, and the bounds of the list."""

from __future__ import annotations

import pytest

from edge.access import bans
from edge.access.bans import BanList, applies_to
from edge.access.principal import Credentials, Principal
from schemas.control import Ban
from schemas.errors import RecordError


def client(client_id: str = "pump", user: str | None = "ann", peer: str = "192.0.2.1") -> Credentials:
    return Credentials(client_id, user, b"pw", peer, 5)


def listed(*entries: Ban) -> BanList:
    ban_list = BanList()
    for ban in entries:
        ban_list.put(ban)
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
    assert applies_to(ban, subject)


@pytest.mark.parametrize("ban", MISSES, ids=lambda ban: ban.key)
def test_a_ban_shuts_nobody_else_out(ban: Ban) -> None:
    assert listed(ban).banned(client(), 0.0) is None
    assert not applies_to(ban, client())


def test_addresses_have_one_spelling() -> None:
    ban_list = listed(Ban.of("address", "2001:DB8:0::1"))
    assert ban_list.banned(client(peer="2001:db8::1"), 0.0) is not None
    assert listed(Ban.of("address", "::ffff:192.0.2.1")).banned(client(), 0.0) is not None
    assert listed(Ban.of("address", "192.0.2.1/32")).banned(client(), 0.0) is not None
    assert listed(Ban.of("address", "192.0.2.1")).banned(client(peer="::ffff:192.0.2.1"), 0.0) is not None
    assert listed(Ban.of("address", "2001:db8::/32")).banned(client(peer="2001:db8::7%eth0"), 0.0) is not None


def test_a_unix_socket_has_no_address_to_ban() -> None:
    assert listed(Ban("address", "0.0.0.0/0")).banned(client(peer="unix"), 0.0) is None
    assert not applies_to(Ban("address", "0.0.0.0/0"), client(peer="unix"))


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
        ban_list.lift(ban.key)
    assert ban_list.banned(client(), 0.0) is None
    assert ban_list.generation == before + len(HITS)
    ban_list.lift("ban/user/nobody")
    ban_list.lift("ban/user/no/body")


def test_a_later_record_replaces_an_earlier() -> None:
    ban_list = listed(Ban("user", "ann", expires_at=10.0), Ban("user", "ann", expires_at=20.0, reason="again"))
    assert ban_list.bans() == (Ban("user", "ann", expires_at=20.0, reason="again"),)


def test_at_the_bound_the_ban_that_ends_first_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bans, "BANS_MAX", 3)
    ban_list = listed(Ban("user", "a"), Ban("user", "b", expires_at=9.0), Ban("user", "c", expires_at=8.0))
    ban_list.put(Ban("user", "d"))
    ban_list.put(Ban("user", "e"))
    assert [ban.value for ban in ban_list.bans()] == ["a", "d", "e"]
    assert ban_list.statistics()["evicted"] == 2
    with pytest.raises(RecordError, match="without an end"):
        ban_list.put(Ban("user", "f"))


def test_banned_networks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bans, "NETWORKS_MAX", 1)
    ban_list = listed(Ban("address", "10.0.0.0/8"), Ban("address", "10.0.0.0/8", reason="still"))
    with pytest.raises(RecordError, match="networks"):
        ban_list.put(Ban("address", "11.0.0.0/8"))
    assert len(ban_list.bans()) == 1
