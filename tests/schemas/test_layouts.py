"""Layouts: what a resize does to them, step by step, and their records."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.control import decode_control
from schemas.errors import RecordError
from schemas.layouts import FREEZE_MS, FROZEN, READING, SETTLED, Layout, decode_layout, offset_of

COUNTS = st.lists(st.integers(1, 40), max_size=4)


def resized(counts: list[int], offset: int = 10) -> Layout:
    """A layout that went through these counts, none of them dropped."""
    layout = Layout.of_route("mqtt.sensors", 12)
    for number, count in enumerate(counts, 1):
        ends = tuple(offset * number for _ in range(max(12, *counts)))
        layout = layout.reading(count, (ends, ends), len(ends)).frozen().switched((ends, ends), 1_000)
    return layout


@given(COUNTS, st.sampled_from(["settled", "reading", "frozen", "dropped"]))
def test_a_record_gives_the_layout_back(counts: list[int], step: str) -> None:
    layout = resized(counts)
    if step in (READING, FROZEN):
        layout = layout.reading(7, ((1, 2), (3, 4)), 12)
    if step == FROZEN:
        layout = layout.frozen()
    if step == "dropped" and counts:
        layout = layout.without_first()
    assert decode_layout("mqtt.sensors", layout.to_json()) == layout
    assert decode_control(layout.key.encode(), layout.to_json()) == layout


def test_the_steps_of_a_resize() -> None:
    before = Layout.of_route("mqtt.sensors", 12)
    assert (before.step, before.written.partitions, before.counts) == (SETTLED, 12, (12,))
    reading = before.reading(24, ((), ()), 24)
    assert (reading.step, reading.written.partitions, reading.counts) == (READING, 12, (12, 24))
    assert reading.barriers(is_twin=False) == ()  # nothing was written by the new count
    frozen = reading.frozen()
    assert (frozen.step, frozen.written.partitions) == (FROZEN, 12)
    assert frozen.thawed() == reading
    assert frozen.aborted() == replace(before, kafka_partitions=24)
    switched = frozen.switched(((5,) * 24, (6,) * 24), 1_000)
    assert (switched.step, switched.written.partitions, switched.counts) == (SETTLED, 24, (12, 24))
    assert switched.barriers(is_twin=False) == ((5,) * 24,)
    assert switched.barriers(is_twin=True) == ((6,) * 24,)
    dropped = switched.without_first()
    assert (dropped.counts, dropped.former, dropped.barriers(is_twin=False)) == ((24,), (12,), ())
    shrunk = dropped.reading(6, ((), ()), 24).frozen().switched(((7,) * 24, (7,) * 24), 9_000)
    assert [generation.number for generation in shrunk.generations] == [1, 2]
    assert (shrunk.counts, shrunk.kafka_partitions) == ((24, 6), 24)


def test_a_switch_that_comes_when_writers_may_have_gone_on_is_none() -> None:
    switched = resized([24])
    assert switched.as_of(1_000 + FREEZE_MS) is switched
    late = switched.as_of(1_001 + FREEZE_MS)
    assert (late.counts, late.written.partitions, late.step) == ((12,), 12, SETTLED)
    assert switched.without_first().as_of(10**9).counts == (24,)
    assert switched.reading(6, ((), ()), 24).as_of(10**9).counts == (12, 24, 6)


def test_a_partition_that_was_not_there_had_nothing() -> None:
    assert [offset_of((3, 4), partition) for partition in range(3)] == [3, 4, 0]


@pytest.mark.parametrize(
    "value",
    [
        b"[]",
        b'{"version":2}',
        b'{"version":1,"generations":[],"step":"settled","kafka_partitions":1}',
        b'{"version":1,"generations":[{"number":0}],"step":"settled","kafka_partitions":1}',
        b'{"version":1,"generations":7,"step":"settled","kafka_partitions":1}',
        resized([]).to_json().replace(b"settled", b"frozen"),
        resized([]).to_json().replace(b"settled", b"melted"),
        resized([]).to_json().replace(b'"kafka_partitions":12', b'"kafka_partitions":11'),
        resized([24]).to_json().replace(b'"number":1', b'"number":0'),
    ],
)
def test_a_record_that_cannot_be_read(value: bytes) -> None:
    with pytest.raises(RecordError, match=r"layout/mqtt\.sensors"):
        decode_layout("mqtt.sensors", value)
