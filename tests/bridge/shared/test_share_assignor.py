"""Which node serves what: fair by weight, sticky, and never given to two."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.log import Position
from bridge.shared.assignor import NodeClaim, assign, decode_claim, desired, encode_claim
from schemas.errors import RecordError


def partitions(count: int, *kafka_topics: str) -> frozenset[Position]:
    return frozenset((kafka_topic, at) for kafka_topic in kafka_topics or ("t", "t.q2") for at in range(count))


@st.composite
def positions(draw: st.DrawFn) -> frozenset[Position]:
    kafka_topics = draw(st.lists(st.integers(1, 13), min_size=1, max_size=4))
    return frozenset((f"t{number}", at) for number, count in enumerate(kafka_topics) for at in range(count))


@st.composite
def clusters(draw: st.DrawFn) -> dict[str, NodeClaim]:
    """Nodes with any weights that serve anything, even the same or what nobody wants any more."""
    wanted = draw(positions())
    ownable = st.sampled_from([*sorted(wanted), ("gone", 0)])
    names = draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True))
    return {
        name: NodeClaim(
            draw(st.integers(0, 40)), wanted, draw(st.frozensets(ownable, max_size=30)), draw(st.integers(-1, 3))
        )
        for name in names
    }


def moved_on(claims: dict[str, NodeClaim], generation: int) -> dict[str, NodeClaim]:
    """What the nodes claim after the next round."""
    assigned = assign(claims)
    return {name: replace(claim, owned=assigned[name], generation=generation) for name, claim in claims.items()}


@given(clusters())
def test_every_partition_should_be_served_by_one_node(claims: dict[str, NodeClaim]) -> None:
    counts = Counter(position for wanted in desired(claims).values() for position in wanted)
    assert counts == dict.fromkeys(next(iter(claims.values())).partitions, 1)


@given(clusters())
def test_nobody_gets_what_another_node_still_serves(claims: dict[str, NodeClaim]) -> None:
    assigned = assign(claims)
    for name, positions in assigned.items():
        for other, claim in claims.items():
            if other != name and claim.generation >= claims[name].generation:
                both = positions & claim.owned
                assert all(position in claims[name].owned for position in both)
    counts = Counter(position for positions in assigned.values() for position in positions)
    assert not counts or max(counts.values()) == 1


def at_rest(claims: dict[str, NodeClaim]) -> dict[str, NodeClaim]:
    """After as many rounds as it may take."""
    kafka_topics = {kafka_topic for kafka_topic, _ in next(iter(claims.values())).partitions}
    for generation in range(4, 6 + len(kafka_topics)):
        claims = moved_on(claims, generation)
    return claims


@given(clusters())
def test_a_few_rounds_and_it_is_done(claims: dict[str, NodeClaim]) -> None:
    """The first takes away, the second gives; where shares are equal it may take one more per Kafka topic."""
    rest = at_rest(claims)
    assert {name: claim.owned for name, claim in rest.items()} == desired(rest) == assign(rest)
    assert sum(len(claim.owned) for claim in rest.values()) == len(next(iter(claims.values())).partitions)


@given(clusters())
def test_of_new_nodes_the_first_round_is_the_last(claims: dict[str, NodeClaim]) -> None:
    once = moved_on({name: replace(claim, owned=frozenset()) for name, claim in claims.items()}, 4)
    assert moved_on(once, 4) == once
    assert sum(len(claim.owned) for claim in once.values()) == len(next(iter(claims.values())).partitions)


@given(clusters())
def test_shares_follow_the_weights(claims: dict[str, NodeClaim]) -> None:
    weights = {name: claim.weight for name, claim in claims.items()}
    if not any(weights.values()):
        weights = dict.fromkeys(weights, 1)
    wanted = next(iter(claims.values())).partitions
    for name, got in desired(claims).items():
        fair = len(wanted) * weights[name] / sum(weights.values())
        assert abs(len(got) - fair) < 1.5
        if not weights[name]:
            assert not got


@given(clusters(), st.data())
def test_what_need_not_move_stays(claims: dict[str, NodeClaim], data: st.DataObject) -> None:
    """A node joins: it takes from others, and nothing moves between those."""
    settled = at_rest(claims)
    wanted = next(iter(claims.values())).partitions
    joined = {**settled, "new": NodeClaim(data.draw(st.integers(1, 40)), wanted)}
    after = desired(joined)
    kept = sum(len(after[name] & claim.owned) for name, claim in settled.items())
    shrunk = sum(max(0, len(claim.owned) - len(after[name])) for name, claim in settled.items())
    kafka_topics = len({kafka_topic for kafka_topic, _ in wanted})
    assert len(wanted) - kept <= shrunk + len(joined) * kafka_topics, "more moved than the shares ask for"


def test_equal_nodes_get_equal_parts_of_every_kafka_topic() -> None:
    claims = {name: NodeClaim(10, partitions(12)) for name in "abc"}
    for got in assign(claims).values():
        assert Counter(kafka_topic for kafka_topic, _ in got) == {"t": 4, "t.q2": 4}


def test_a_single_partition_and_its_twin_go_to_two_nodes() -> None:
    claims = {name: NodeClaim(1, partitions(1)) for name in "ab"}
    assert sorted(map(len, assign(claims).values())) == [1, 1]


def test_a_node_with_three_times_the_members_gets_three_times_the_partitions() -> None:
    claims = {"a": NodeClaim(30, partitions(12)), "b": NodeClaim(10, partitions(12))}
    assert {name: len(got) for name, got in assign(claims).items()} == {"a": 18, "b": 6}


def test_a_node_that_joins_takes_only_its_share_and_one_that_dies_leaves_only_its_own() -> None:
    three = moved_on({name: NodeClaim(1, partitions(12)) for name in "abc"}, 1)
    with_d = moved_on({**three, "d": NodeClaim(1, partitions(12))}, 2)
    assert not with_d["d"].owned, "not before the others have given it up"
    four = moved_on(with_d, 3)
    assert {len(claim.owned) for claim in four.values()} == {6}
    assert all(four[name].owned < three[name].owned for name in "abc")
    without = moved_on({name: four[name] for name in "bcd"}, 4)
    assert all(four[name].owned < without[name].owned for name in "bcd"), "at once: nobody serves a dead one's"


def test_who_missed_a_generation_claims_in_vain() -> None:
    stale = NodeClaim(1, partitions(2, "t"), owned=partitions(2, "t"), generation=3)
    current = replace(stale, generation=7)
    assert assign({"a": stale, "b": current})["b"] & partitions(2, "t")
    assert assign({"a": stale, "b": current})["a"] == frozenset()


def test_nodes_with_other_routes_serve_all_that_anybody_wants() -> None:
    claims = {"a": NodeClaim(1, partitions(2, "t")), "b": NodeClaim(1, partitions(4, "t"))}
    assert frozenset().union(*assign(claims).values()) == partitions(4, "t")


def test_nobody_gets_nothing() -> None:
    assert assign({}) == {}


@given(clusters())
def test_a_claim_comes_back_as_it_was(claims: dict[str, NodeClaim]) -> None:
    for claim in claims.values():
        assert decode_claim(encode_claim(claim)) == claim


@pytest.mark.parametrize("raw", [None, b"", b"[]", b"{}", b'{"v":2}', b'{"v":1}', b'{"v":1,"weight":"x"}', b"\xff"])
def test_a_strangers_claim_is_told(raw: bytes | None) -> None:
    with pytest.raises(RecordError):
        decode_claim(raw)
