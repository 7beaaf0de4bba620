"""The claim protocol for two edges and one client, all interleavings: every state within so many steps is looked at.

The views are the real ones (`bridge.claims.ClaimsView`); what `bridge.ownership`, `bridge.session_store` and
`bridge.session_writer` do with them is a step each: a claim is appended, an edge's tail takes the next record, an owner
is waited for or fenced, a write is checked, committed, refused; a fenced edge takes its id back and renounces; a
superseded owner releases; a process dies and another one takes its place. After each commit invariant I7 must hold:
once an epoch has stored the session, no earlier one writes.

`python -m support.claims_exploration --depth 20` goes deeper than the tests do.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from bridge.claims import ClaimsView
from schemas.claims import Claim

CLIENT = "c"
MAX_EPOCH = 1 << 60
WAITING, READY, OWNER, ENDING = "waiting", "ready", "owner", "ending"

Log = tuple[Claim, ...]


class EdgeState(NamedTuple):
    """One process. `open`: the epochs of its connections, each with where it stands."""

    incarnation: int = 0
    seen: int = 0  # records of the claims
    open: tuple[tuple[int, str], ...] = ()
    pending: int = -1  # the epoch of a write that was checked and is not committed
    is_fenced: bool = False
    is_starting: bool = False  # it has its id again, and does not know yet what was claimed meanwhile
    ends: frozenset[int] = frozenset()  # epochs whose end it has written


class State(NamedTuple):
    log: Log = ()
    stored: int = -1  # the highest epoch under which the session was stored
    edges: tuple[EdgeState, EdgeState] = (EdgeState(), EdgeState())
    connects: int = 0
    crashes: int = 0


class Rules(NamedTuple):
    """What a run has, and what is broken in it."""

    connects_max: int = 3
    crashes_max: int = 1
    fences: bool = True
    renounces: bool = True
    checks: bool = True


class Violation(Exception):
    """An invariant does not hold; with the way there."""


@cache
def view_of(log: Log) -> ClaimsView:
    """What a node knows that has read so far."""
    view = ClaimsView()
    for offset, record in enumerate(log):
        view.apply(CLIENT, record, offset, 0)
    return view


def explore(depth: int, rules: Rules = Rules()) -> int:  # noqa: B008
    """All states within so many steps; how many. Raises Violation."""
    start = State()
    came_from: dict[State, tuple[State | None, str]] = {start: (None, "")}
    level = [start]
    for _ in range(depth):
        following: list[State] = []
        for state in level:
            for name, after in steps(state, rules):
                if after is None:
                    raise Violation("\n".join([*_way(came_from, state), name]))
                if after not in came_from:
                    came_from[after] = (state, name)
                    following.append(after)
        level = following
    return len(came_from)


def _way(came_from: dict[State, tuple[State | None, str]], state: State) -> list[str]:
    names: list[str] = []
    at: State | None = state
    while at is not None:
        at, name = came_from[at]
        names.append(name)
    return names[-2::-1]


def steps(state: State, rules: Rules) -> Iterator[tuple[str, State | None]]:
    """What may happen next; None: an invariant is broken by it."""
    for index in (0, 1):
        edge = state.edges[index]
        if state.connects < rules.connects_max and not edge.is_fenced:
            claim = Claim("p", str(index), str(edge.incarnation), True)
            yield f"{index} claims", state._replace(log=(*state.log, claim), connects=state.connects + 1)
        if edge.seen < len(state.log):
            yield f"{index} reads {edge.seen}", _read(state, index)
        if state.crashes < rules.crashes_max:
            fresh = EdgeState(edge.incarnation + 1, len(state.log))
            yield f"{index} dies and is back", _with(state, index, fresh)._replace(crashes=state.crashes + 1)
        yield from _writes(state, index, rules)
        for epoch, where in edge.open:
            if where == WAITING:
                yield from _ways_to_load(state, index, epoch, rules)
            elif edge.pending < 0 and (where != READY or edge.seen > epoch):
                yield from _uses(state, index, epoch, where, rules)


def _ways_to_load(state: State, index: int, epoch: int, rules: Rules) -> Iterator[tuple[str, State | None]]:
    """The owners before are waited for, or fenced; what is superseded here is renounced (`SessionStore.load`)."""
    edge = state.edges[index]
    view = view_of(state.log[: edge.seen])
    others = {
        claim.node_id
        for claim in view.earlier(CLIENT, epoch)
        if (claim.node_id, claim.incarnation) != (str(index), str(edge.incarnation)) and not _was_replaced(state, claim)
    }
    if str(index) in others:
        others.discard(str(index))  # an earlier process of this node: it was fenced when this one started
    after = state
    name = f"{index} loads for {epoch}"
    if others and rules.fences:
        other = 1 - index
        after = _with(after, other, after.edges[other]._replace(is_fenced=True))
        name += ", and fences the other"
    if edge.pending >= 0:
        return  # the transaction under way is waited for
    yield name, _with(_renounced(after, index), index, None, epoch, READY)


def _was_replaced(state: State, claim: object) -> bool:
    node = state.edges[int(claim.node_id)]  # type: ignore[attr-defined]
    return str(node.incarnation) != claim.incarnation  # type: ignore[attr-defined]


def _uses(state: State, index: int, epoch: int, where: str, rules: Rules) -> Iterator[tuple[str, State | None]]:
    edge = state.edges[index]
    if not rules.checks or _may_write(state, index, epoch):
        yield f"{index} begins to write {epoch}", _with(state, index, edge._replace(pending=epoch))
    if where == ENDING:
        yield f"{index} releases {epoch}", _with(_released(state, index, epoch), index, None, epoch)


def _writes(state: State, index: int, rules: Rules) -> Iterator[tuple[str, State | None]]:
    edge = state.edges[index]
    if edge.is_fenced:
        yield f"{index} takes its id back", _with(state, index, edge._replace(is_fenced=False, is_starting=True))
        return
    if edge.is_starting:
        after = state
        while after.edges[index].seen < len(after.log):
            after = _read(after, index)
        if rules.renounces:
            after = _renounced(after, index)
        again = after.edges[index]
        pending = again.pending if again.pending < 0 or _may_write(after, index, again.pending) else -1
        yield f"{index} renounces", _with(after, index, again._replace(is_starting=False, pending=pending))
        return
    if edge.pending >= 0:
        epoch = edge.pending
        if epoch < state.stored:
            yield f"{index} commits {epoch} after {state.stored}", None
            return
        after = _with(state, index, edge._replace(pending=-1))._replace(stored=epoch)
        if dict(edge.open).get(epoch) == READY:
            after = _with(after, index, None, epoch, OWNER)
        yield f"{index} commits {epoch}", after


def _read(state: State, index: int) -> State:
    """`Ownership._take`."""
    edge = state.edges[index]
    record, offset = state.log[edge.seen], edge.seen
    before = view_of(state.log[:offset]).owner(CLIENT)
    after = view_of(state.log[: offset + 1]).owner(CLIENT)
    state = _with(state, index, edge._replace(seen=offset + 1))
    mine = (str(index), str(edge.incarnation))
    if record.epoch is None and (record.node_id, record.incarnation) == mine:
        state = _with(state, index, None, offset, WAITING)
    if before is not None and (after is None or after.epoch != before.epoch):
        where = dict(state.edges[index].open).get(before.epoch)
        if (before.node_id, before.incarnation) == mine and where == WAITING:  # CONNECT is refused: nothing was done
            state = _with(_released(state, index, before.epoch), index, None, before.epoch)
        elif (before.node_id, before.incarnation) == mine and where is not None:
            state = _with(state, index, None, before.epoch, ENDING)
    return state


def _may_write(state: State, index: int, epoch: int) -> bool:
    """`Ownership.may_write`."""
    edge = state.edges[index]
    claim = view_of(state.log[: edge.seen]).find(CLIENT, epoch)
    return claim is not None and not claim.is_released and epoch not in edge.ends


def _renounced(state: State, index: int) -> State:
    """`Ownership.renounce`."""
    edge = state.edges[index]
    for claim in view_of(state.log[: edge.seen]).earlier(CLIENT, MAX_EPOCH):
        if (claim.node_id, claim.incarnation) == (str(index), str(edge.incarnation)) and claim.epoch not in edge.ends:
            state = _released(state, index, claim.epoch)
    return state


def _released(state: State, index: int, epoch: int) -> State:
    """`Ownership.release`."""
    edge = state.edges[index]
    if epoch in edge.ends:
        return state
    record = Claim("p", str(index), str(edge.incarnation), True, epoch=epoch, is_released=True)
    state = _with(state, index, edge._replace(ends=edge.ends | {epoch}))
    return state._replace(log=(*state.log, record))


def _with(state: State, index: int, edge: EdgeState | None, epoch: int = -1, where: str = "") -> State:
    """With another state of the edge, or of one of its epochs."""
    if edge is None:
        edge = state.edges[index]
        opened = dict(edge.open)
        opened.pop(epoch, None)
        if where:
            opened[epoch] = where
        edge = edge._replace(open=tuple(sorted(opened.items())))
    edges = (edge, state.edges[1]) if index == 0 else (state.edges[0], edge)
    return state._replace(edges=edges)


def main() -> int:
    """The number of states, or the way to a violation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--connects", type=int, default=3)
    parser.add_argument("--crashes", type=int, default=1)
    chosen = parser.parse_args()
    began_s = time.monotonic()
    try:
        count = explore(chosen.depth, Rules(chosen.connects, chosen.crashes))
    except Violation as violation:
        print(f"I7 does not hold:\n{violation}")
        return 1
    print(f"{count:,} states within {chosen.depth} steps, {time.monotonic() - began_s:.1f} s: I7 holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
