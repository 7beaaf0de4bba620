"""The view of the claims: pure, against a simple model, with and without compaction."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.claims import (
    EARLIER_KEPT_MS,
    EARLIER_MAX,
    FORGOTTEN_KEPT_MS,
    FORGOTTEN_MAX,
    ClaimsView,
)
from schemas.claims import Claim, Forgotten

Entry = tuple[str, Claim | Forgotten]


def claim(node: str = "a", principal: str = "p", durable: bool = True) -> Claim:
    return Claim(principal, f"node-{node}", "1", durable)


def released(of: Claim, epoch: int) -> Claim:
    return replace(of, epoch=epoch, is_released=True)


def applied(*entries: Claim | Forgotten, view: ClaimsView | None = None) -> ClaimsView:
    """All of client c, at offsets 0, 1, 2..."""
    view = view or ClaimsView()
    for offset, entry in enumerate(entries):
        view.apply("c", entry, offset, 0)
    return view


def owner_epoch(view: ClaimsView) -> int | None:
    held = view.owner("c")
    return held.epoch if held is not None else None


def test_the_last_claim_wins_and_earlier_ones_wait_for_their_release() -> None:
    view = applied(claim("a"), claim("b"), claim("c"))
    assert owner_epoch(view) == 2
    assert [each.epoch for each in view.earlier("c", 2)] == [0, 1]
    assert [each.epoch for each in view.earlier("c", 1)] == [0]
    assert view.apply("c", released(claim("a"), 0), 3, 0) == "older"
    assert [each.epoch for each in view.earlier("c", 2)] == [1]
    assert view.misplaced == {"c": -1}
    assert view.repair("c") == replace(claim("c"), epoch=2)


def test_a_release_keeps_the_session_and_its_principal() -> None:
    view = applied(claim("a"), released(claim("a"), 0))
    held = view.owner("c")
    assert held is not None
    assert (held.epoch, held.is_released, held.durable) == (0, True, True)
    assert view.apply("c", claim("b", "q"), 2, 0) == "void"
    assert owner_epoch(view) == 0
    assert view.repair("c") == replace(released(claim("a"), 0), seen=2)
    assert view.apply("c", claim("b", "p"), 3, 0) == "claimed"
    assert view.earlier("c", 3) == ()


def test_what_is_not_durable_is_no_session_once_it_is_released() -> None:
    assert owner_epoch(applied(claim(durable=False), claim("b", "q"))) == 0
    view = applied(claim(durable=False), released(claim(durable=False), 0), claim("b", "q"))
    assert owner_epoch(view) == 2
    assert applied(claim(durable=False), claim("b")).earlier("c", 1) == ()  # nothing is stored: nobody waits


def test_a_forgotten_session_is_open_to_every_principal() -> None:
    view = applied(claim("a"), Forgotten(0), claim("b", "q"))
    assert owner_epoch(view) == 2
    view = applied(claim("a"), Forgotten(None), claim("b", "q"))  # as Kafka's own tools write a tombstone
    assert owner_epoch(view) == 2


@pytest.mark.parametrize("late", [Forgotten(0), released(claim("a"), 0), replace(claim("a"), epoch=0)])
def test_what_lands_behind_a_later_claim_changes_nothing_in_force(late: Claim | Forgotten) -> None:
    view = applied(claim("a"), claim("b"), late)
    assert owner_epoch(view) == 1
    assert view.misplaced == {"c": -1}
    repair = view.repair("c")
    assert repair == replace(claim("b"), epoch=1)
    assert view.apply("c", repair, 3, 0) == "repeated"
    assert view.misplaced == {}


def test_nothing_comes_back_behind_its_tombstone() -> None:
    view = applied(claim("a"), claim("b"), Forgotten(1), released(claim("a"), 0))
    assert owner_epoch(view) is None
    assert view.repair("c") == Forgotten(1)
    assert view.apply("c", Forgotten(1), 4, 0) == "forgotten"
    assert view.misplaced == {}
    assert view.apply("c", replace(claim("b"), epoch=1), 5, 0) == "older"
    assert view.apply("c", Forgotten(0), 6, 0) == "older"


def test_a_release_does_not_open_again() -> None:
    view = applied(claim("a"), released(claim("a"), 0), replace(claim("a"), epoch=0))
    held = view.owner("c")
    assert held is not None
    assert held.is_released
    assert view.repair("c") == released(claim("a"), 0)


def test_a_reader_that_has_only_the_void_claim_learns_from_the_repair() -> None:
    view = ClaimsView()
    assert view.apply("c", claim("b", "q"), 7, 0) == "claimed"  # the others know that it was void
    assert view.apply("c", replace(claim("a"), epoch=3, seen=7), 8, 0) == "claimed"
    assert owner_epoch(view) == 3
    assert (view.misplaced, view.earlier("c", 3)) == ({}, ())


def test_claims_of_long_ago_are_waited_for_no_more() -> None:
    view = applied(claim("a"))
    view.apply("c", claim("b"), 1, 1_000)
    assert [each.epoch for each in view.earlier("c", 9)] == [0]
    view.apply("c", claim("a"), 2, 1_000 + EARLIER_KEPT_MS)
    assert [each.epoch for each in view.earlier("c", 9)] == [0, 1]
    view.apply("c", claim("b"), 3, 1_001 + EARLIER_KEPT_MS)
    assert [each.epoch for each in view.earlier("c", 9)] == [1, 2]
    for offset in range(4, 100):
        view.apply("c", claim("a"), offset, EARLIER_KEPT_MS)
    assert len(view.earlier("c", 200)) == EARLIER_MAX


def test_what_was_forgotten_is_remembered_for_a_while() -> None:
    view = ClaimsView()
    for offset in range(FORGOTTEN_MAX + 5):
        view.apply(str(offset), Forgotten(0), offset, 1_000)
    view.expire(1_000)
    assert view.statistics()["forgotten_remembered"] == FORGOTTEN_MAX
    view.apply("9", claim(), 0, 1_000)  # late
    assert view.misplaced == {"9": -1}
    view.expire(1_000 + FORGOTTEN_KEPT_MS)
    assert view.statistics()["forgotten_remembered"] == 0
    assert view.repair("9") is None


def test_orphans_are_unreleased_claims_of_nodes_that_are_gone() -> None:
    view = ClaimsView()
    view.apply("one", claim("a"), 0, 0)
    view.apply("two", claim("b"), 1, 0)
    view.apply("three", claim("a"), 2, 0)
    view.apply("three", released(claim("a"), 2), 3, 0)
    asked: list[tuple[str, str]] = []

    def is_live(node_id: str, incarnation: str) -> bool:
        asked.append((node_id, incarnation))
        return node_id == "node-b"

    assert [client_id for client_id, _ in view.orphans(is_live)] == ["one"]
    assert sorted(asked) == [("node-a", "1"), ("node-b", "1")]
    assert [client_id for client_id, _ in view.claims_of("node-a")] == ["one"]


def test_a_partition_that_is_gone_is_forgotten_whole() -> None:
    view = ClaimsView()
    for offset, client_id in enumerate(("x", "y", "x", "y")):
        view.apply(client_id, claim(), offset, 0)
    view.discard(lambda client_id: client_id == "x")
    assert view.snapshot().keys() == {"y"}
    assert view.earlier("x", 9) == ()
    assert len(view) == 1


# Against a model


@dataclass
class Model:
    """One client. What read-repair writes is not told to it: it must change nothing."""

    epoch: int | None = None
    is_released: bool = False
    claim: Claim | None = None
    earlier: dict[int, Claim] = field(default_factory=dict)

    def apply(self, record: Claim | Forgotten, offset: int) -> None:
        if isinstance(record, Forgotten):
            assert record.epoch is not None
            self.earlier.pop(record.epoch, None)
            if self.epoch is not None and record.epoch >= self.epoch:
                self.epoch = self.claim = None
                self.earlier.clear()
        elif record.is_released:
            assert record.epoch is not None
            self.earlier.pop(record.epoch, None)
            self.is_released |= record.epoch == self.epoch
        else:
            held = self.claim
            if held is not None and held.principal != record.principal and (held.durable or not self.is_released):
                return
            if held is not None and self.epoch is not None and held.durable and not self.is_released:
                self.earlier[self.epoch] = held
            self.epoch, self.claim, self.is_released = offset, record, False


NODES = st.sampled_from("abc")
CLIENTS = st.sampled_from(["one", "two"])
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), CLIENTS, NODES, st.sampled_from("ppq"), st.booleans()),
        st.tuples(st.just("release"), CLIENTS, st.integers(0, 5)),
        st.tuples(st.just("forget"), CLIENTS, st.integers(0, 5)),
        st.tuples(st.just("repair"), CLIENTS),  # landing at once
        st.tuples(st.just("prepare"), CLIENTS),  # a repair that lands later
        st.tuples(st.just("land"), CLIENTS),
    ),
    max_size=40,
)


def run(operations: list[tuple[object, ...]]) -> tuple[list[Entry], ClaimsView, dict[str, Model]]:
    """The log that the operations make, and the view and the model that have read it. Ends without misplaced ones."""
    log: list[Entry] = []
    view, models = ClaimsView(), {"one": Model(), "two": Model()}
    valid: dict[str, list[tuple[int, Claim]]] = {"one": [], "two": []}
    prepared: dict[str, list[Claim | Forgotten]] = {"one": [], "two": []}

    def append(client_id: str, record: Claim | Forgotten, *, is_repair: bool = False) -> None:
        offset = len(log)
        log.append((client_id, record))
        outcome = view.apply(client_id, record, offset, 0)
        if not is_repair:
            models[client_id].apply(record, offset)
        if isinstance(record, Claim) and record.epoch is None and outcome == "claimed":
            valid[client_id].append((offset, record))

    for name, client_id, *rest in operations:
        assert isinstance(client_id, str)
        issued, repair = valid[client_id], view.repair(client_id)
        if name == "claim":
            node, principal, durable = rest
            append(client_id, Claim(str(principal), f"node-{node}", "1", bool(durable)))
        elif name in ("release", "forget") and issued:
            assert isinstance(rest[0], int)
            epoch, of = issued[-1 - rest[0] % len(issued)]
            append(client_id, released(of, epoch) if name == "release" else Forgotten(epoch))
        elif name == "repair" and repair is not None:
            append(client_id, repair, is_repair=True)
        elif name == "prepare" and repair is not None:
            prepared[client_id].append(repair)
        elif name == "land" and prepared[client_id]:
            append(client_id, prepared[client_id].pop(0), is_repair=True)
    for client_id in valid:
        for _ in range(3):
            if (repair := view.repair(client_id)) is not None:
                append(client_id, repair, is_repair=True)
    assert view.misplaced == {}, "one repair is enough"
    return log, view, models


@settings(max_examples=400, deadline=None)
@given(OPERATIONS)
def test_the_view_is_the_model(operations: list[tuple[object, ...]]) -> None:
    _, view, models = run(operations)
    for client_id, model in models.items():
        held = view.owner(client_id)
        assert (held.epoch if held else None) == model.epoch
        if held is not None and model.claim is not None:
            wanted = (model.claim.principal, model.claim.node_id, model.claim.durable, model.is_released)
            assert (held.principal, held.node_id, held.durable, held.is_released) == wanted
        assert {each.epoch for each in view.earlier(client_id, 1_000)} == model.earlier.keys()


@settings(max_examples=400, deadline=None)
@given(OPERATIONS, st.data())
def test_compaction_at_any_point_gives_the_same_view(operations: list[tuple[object, ...]], data: st.DataObject) -> None:
    """Whichever part of the log is compacted: once what was misplaced is repaired, all views are equal."""
    log, view, _ = run(operations)
    cut = data.draw(st.integers(0, len(log)), label="compacted up to")
    last = {client_id: offset for offset, (client_id, _) in enumerate(log[:cut])}
    compacted = ClaimsView()
    for offset, (client_id, record) in enumerate(log):
        if offset >= cut or last[client_id] == offset:
            compacted.apply(client_id, record, offset, 0)
    assert compacted.snapshot() == view.snapshot()
    assert compacted.misplaced == {}
