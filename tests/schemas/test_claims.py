"""Records of `headwater.claims`."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.claims import Claim, Forgotten, decode_claim
from schemas.errors import RecordError

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
OFFSETS = st.none() | st.integers(0, 2**62)
CLAIMS = st.builds(
    Claim, TEXTS, TEXTS, TEXTS, st.booleans(), TEXTS, st.integers(0, 2**41), OFFSETS, st.just(False), OFFSETS
)


@given(CLAIMS, TEXTS.filter(bool))
def test_a_claim_comes_back_as_it_was(claim: Claim, client_id: str) -> None:
    assert decode_claim(client_id.encode(), claim.to_json(), ()) == (client_id, claim)


def test_a_release_comes_back_as_it_was() -> None:
    released = Claim("p", "node", "1", True, epoch=5, is_released=True)
    assert decode_claim(b"c", released.to_json(), ()) == ("c", released)


@given(OFFSETS, OFFSETS)
def test_a_tombstone_carries_its_epoch_in_a_header(epoch: int | None, seen: int | None) -> None:
    forgotten = Forgotten(epoch, seen)
    headers = [*forgotten.headers(), ("other", b"x"), ("headwater.epoch", None)]
    assert decode_claim(b"c", None, headers) == ("c", forgotten)


def test_unknown_fields_are_ignored() -> None:
    value = orjson.dumps(orjson.loads(Claim("p", "n", "1", False).to_json()) | {"v": 9, "new": 1})
    assert decode_claim(b"c", value, ())[1] == Claim("p", "n", "1", False)


GOOD = orjson.loads(Claim("p", "n", "1", True, epoch=1).to_json())


@pytest.mark.parametrize(
    "change",
    [
        {"principal": None},
        {"node_id": 1},
        {"incarnation": []},
        {"nonce": 1},
        {"durable": 1},
        {"released": "yes"},
        {"at_ms": "now"},
        {"at_ms": True},
        {"epoch": -1},
        {"epoch": True},
        {"seen": "1"},
        {"released": True, "epoch": None},
    ],
)
def test_wrong_fields_are_told(change: dict[str, object]) -> None:
    with pytest.raises(RecordError):
        decode_claim(b"c", orjson.dumps(GOOD | change), ())


@pytest.mark.parametrize("value", [b"", b"null", b"[]", b"{}", b"\xff"])
def test_what_is_no_claim_is_told(value: bytes) -> None:
    with pytest.raises(RecordError):
        decode_claim(b"c", value, ())


@pytest.mark.parametrize("key", [None, b"", b"\xff", b"x" * 65_536])
def test_what_is_no_client_id_is_told(key: bytes | None) -> None:
    with pytest.raises(RecordError):
        decode_claim(key, None, ())


@pytest.mark.parametrize("field", [b"", b"-1", b"x", b"1" * 20])
def test_an_epoch_that_is_no_offset_is_told(field: bytes) -> None:
    with pytest.raises(RecordError):
        decode_claim(b"c", None, [("headwater.epoch", field)])
