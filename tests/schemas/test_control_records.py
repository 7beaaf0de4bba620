"""The records of `headwater.control`: round trip, tolerance for newer writers, errors for what is not ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.control import AclRules, Ban, NodeCommand, control_key, decode_control
from schemas.errors import ConfigurationError, RecordError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
BANS = st.builds(Ban, st.sampled_from(["client_id", "user"]), NAMES, st.none() | st.floats(0, 1e12), TEXTS, TEXTS)
ADDRESS_BANS = st.builds(lambda address: Ban.of("address", str(address)), st.ip_addresses())
RULES = st.builds(AclRules, st.lists(st.dictionaries(TEXTS, TEXTS, max_size=3), max_size=3).map(tuple), TEXTS)
COMMANDS = st.builds(NodeCommand, NAMES, NAMES, NAMES, st.none() | st.floats(0.1, 1e6), TEXTS)


@given(BANS | ADDRESS_BANS | RULES | COMMANDS)
def test_a_record_gives_the_entry_back(entry: Ban | AclRules | NodeCommand) -> None:
    assert decode_control(entry.key.encode(), entry.to_json()) == entry
    assert decode_control(entry.key.encode(), None) is None


def test_unknown_fields_are_ignored() -> None:
    assert decode_control(b"ban/user/a/b", b'{"version":1,"colour":"red"}') == Ban("user", "a/b")


@pytest.mark.parametrize("key", [None, b"", b"ban", b"/x", b"ban/", b"\xff/x"])
def test_a_key_that_is_none(key: bytes | None) -> None:
    with pytest.raises(RecordError, match="control"):
        control_key(key)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"ban/x/y", b'{"version":1}'),
        (b"ban/user/", b'{"version":1}'),
        (b"ban/user", b'{"version":1}'),
        (b"ban/address/nowhere", b'{"version":1}'),
        (b"ban/address/192.0.2.0/99", b'{"version":1}'),
        (b"ban/address/192.0.2.1/24", b'{"version":1}'),
        (b"ban/address/2001:DB8::1", b'{"version":1}'),
        (b"ban/user/ann", b""),
        (b"ban/user/ann", b"[]"),
        (b"ban/user/ann", b"\xff"),
        (b"ban/user/ann", b'{"version":2}'),
        (b"ban/user/ann", b'{"version":1,"expires_at":"soon"}'),
        (b"ban/user/ann", b'{"version":1,"expires_at":true}'),
        (b"ban/user/ann", b'{"version":1,"reason":3}'),
        (b"acl/others", b'{"version":1,"rules":[]}'),
        (b"acl/rules", b'{"version":1}'),
        (b"acl/rules", b'{"version":1,"rules":["allow"]}'),
        (b"node/edge-1", b'{"version":1,"command":"drain"}'),
        (b"node/edge-1", b'{"version":1,"incarnation":"1"}'),
        (b"node/edge-1", b'{"version":1,"incarnation":"1","command":"drain","clients_per_s":0}'),
    ],
)
def test_what_cannot_be_read_is_told(key: bytes, value: bytes) -> None:
    with pytest.raises(RecordError):
        decode_control(key, value)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [("colour", "red", "by"), ("user", "", "empty"), ("user", "a\0b", "U\\+0000"), ("address", "here", "no address")],
)
def test_a_ban_that_cannot_be(kind: str, value: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        Ban.of(kind, value)


def test_an_address_has_one_key() -> None:
    assert Ban.of("address", "2001:DB8:0::1").key == "ban/address/2001:db8::1"
    assert Ban.of("address", "::ffff:192.0.2.1").key == "ban/address/192.0.2.1"
    assert Ban.of("address", "192.0.2.9/32").key == "ban/address/192.0.2.9"
    assert Ban.of("address", "192.0.2.9/24").key == "ban/address/192.0.2.0/24"


def test_a_ban_is_over() -> None:
    assert not Ban("user", "a").is_over(1e12)
    assert not Ban("user", "a", 100.0).is_over(99.9)
    assert Ban("user", "a", 100.0).is_over(100.0)
