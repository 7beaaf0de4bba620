"""Marks: what a group stores of a partition says exactly what is still to be handed out, and fits into the limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.log import Mark
from bridge.shared.marks import OPEN_MAX, decode_mark, encode_mark
from schemas.errors import RecordError

METADATA_BYTES_MAX = 4_096  # Kafka's offset.metadata.max.bytes


@given(opened=st.sets(st.integers(0, 1 << 40), max_size=60), beyond=st.integers(0, 1 << 30))
def test_what_is_read_is_what_was_written(opened: set[int], beyond: int) -> None:
    frontier = max(opened, default=0) + beyond + 1
    mark = encode_mark(opened, frontier)
    assert mark.offset == min(opened, default=frontier)
    assert decode_mark(mark) == (frontier, sorted(opened))


@given(st.lists(st.integers(0, (1 << 28) - 1), min_size=OPEN_MAX, max_size=OPEN_MAX))
def test_as_much_as_may_be_open_fits(gaps: list[int]) -> None:
    offsets = [index + sum(gaps[: index + 1]) for index in range(OPEN_MAX)]
    assert len(encode_mark(offsets, offsets[-1] + (1 << 40)).beyond) <= METADATA_BYTES_MAX


def test_runs_are_short() -> None:
    assert len(encode_mark([0, *range(100_000, 100_400)], 200_000).beyond) < 24
    assert encode_mark([], 7) == Mark(7)


@pytest.mark.parametrize("beyond", ["?", "gA==", "AQH/////DwE=", "committed by a tool"])
def test_what_is_not_ours_is_said(beyond: str) -> None:
    with pytest.raises(RecordError, match="cannot be read"):
        decode_mark(Mark(5, beyond))
