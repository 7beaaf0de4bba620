"""Each checker over a recorded history finds the fault that is planted in it, and nothing in the history without."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.chaos_checks import INVARIANTS, Run, verdict
from support.chaos_history import Line, Recorder, read, replay
from support.chaos_invariants import digests
from support.simulation_checks import EdgeLeft
from support.simulation_history import Fault
from support.simulation_loop import EPOCH_S

from bridge.memory_log import MemoryRecord
from schemas.sessions import SessionProgress, SessionState, StoredSubscription, progress_record, state_record

MESSAGES = ("mqtt.messages", 0)
TWIN = ("mqtt.messages.q2", 0)
SESSIONS = ("headwater.sessions", 0)


def line(t: float, event: str, client: str = "", **values: Any) -> Line:
    return {"t": EPOCH_S + t, "e": event} | ({"client": client, "conn": 1} if client else {}) | values


def opened(t: float, client: str, *, conn: int = 1, will: Line | None = None) -> Line:
    return line(
        t, "open", client, edge="a", version=5, clean=False, expiry_s=3600, will=will, user=None, receive_maximum=2
    ) | {"conn": conn}


def packet(t: float, direction: str, client: str, kind: str, **values: Any) -> Line:
    return line(t, direction, client, p=kind, **values)


def message(t: float, direction: str, client: str, payload: str, qos: int, packet_id: int, **values: Any) -> Line:
    fields = {"topic_name": "t/1", "payload": payload, "qos": qos, "id": packet_id, "dup": False, "retain": False}
    return packet(t, direction, client, "Publish", **(fields | values))


def connack(t: float, client: str, *, present: bool = False, conn: int = 1) -> Line:
    return packet(t, "in", client, "Connack", code=0, session_present=present, receive_maximum=None) | {"conn": conn}


def subscribed(t: float, client: str, *filters: str) -> list[Line]:
    return [
        packet(t, "out", client, "Subscribe", id=99, filters=[[each, 2, False] for each in filters]),
        packet(t + 0.1, "in", client, "Suback", id=99, codes=[2] * len(filters)),
    ]


def in_flow(t: float, client: str, payload: str, qos: int, packet_id: int, **values: Any) -> list[Line]:
    """A delivery with its answers."""
    lines = [message(t, "in", client, payload, qos, packet_id, **values)]
    if qos == 1:
        return [*lines, packet(t, "out", client, "Puback", id=packet_id, code=0)]
    return [
        *lines,
        packet(t, "out", client, "Pubrec", id=packet_id, code=0),
        packet(t + 0.01, "in", client, "Pubrel", id=packet_id, code=0),
        packet(t + 0.01, "out", client, "Pubcomp", id=packet_id, code=0),
    ]


def out_flow(t: float, client: str, payload: str, qos: int, packet_id: int, **values: Any) -> list[Line]:
    """A publish with its answers."""
    lines = [message(t, "out", client, payload, qos, packet_id, **values)]
    if qos == 1:
        return [*lines, packet(t + 0.01, "in", client, "Puback", id=packet_id, code=0)]
    return [
        *lines,
        packet(t + 0.01, "in", client, "Pubrec", id=packet_id, code=0),
        packet(t + 0.01, "out", client, "Pubrel", id=packet_id, code=0),
        packet(t + 0.02, "in", client, "Pubcomp", id=packet_id, code=0),
    ]


WILL = {"topic_name": "will/w", "payload": "will:w:1", "qos": 2, "retain": False, "delay_s": 0}


def good_lines() -> list[Line]:
    """A publisher, a durable subscriber that loses its connection once, a group of two, and one that leaves a will."""
    lines = [opened(1, "p"), connack(1, "p"), opened(1, "s"), connack(1, "s"), *subscribed(2, "s", "t/#")]
    for member in ("m1", "m2"):
        lines += [opened(1, member), connack(1, member), *subscribed(2, member, "$share/g/t/#")]
    lines += [opened(1, "w", will=WILL), connack(1, "w"), line(5, "closed", "w", how="reset")]
    lines += [*out_flow(10, "p", "p:1", 1, 1), *out_flow(11, "p", "p:2", 2, 2), *out_flow(12, "p", "p:3", 1, 3)]
    lines += [*in_flow(13, "s", "p:1", 1, 1), *in_flow(13.1, "s", "p:2", 2, 2)]
    lines += [*in_flow(13, "m1", "p:1", 1, 1), *in_flow(13, "m2", "p:2", 2, 1), *in_flow(13, "m1", "p:3", 1, 2)]
    lines += [line(14, "closed", "s", how="server"), opened(15, "s", conn=2), connack(15, "s", present=True, conn=2)]
    lines += [each | {"conn": 2} for each in in_flow(16, "s", "p:3", 1, 1)]
    lines += out_flow(17, "p", "kept", 1, 4, topic_name="kept/1", retain=True)
    return [*lines, line(60, "end")]


def record(offset: int, t: float, value: bytes | None, key: bytes | None = None) -> MemoryRecord:
    return MemoryRecord(offset, int((EPOCH_S + t) * 1000), key, value, ())


def state(t: float, offset: int, epoch: int, *filters: str, node_id: str = "a") -> MemoryRecord:
    subscriptions = tuple(StoredSubscription(each, 2, False, False, 0, None) for each in filters)
    stored = SessionState("s", "user", 5, 3600, subscriptions, None, True, node_id, "1", None, None)
    key, value, _ = state_record(epoch, stored)
    return record(offset, t, value, key)


def progress(t: float, offset: int, epoch: int, position: int) -> MemoryRecord:
    key, value, _ = progress_record("s", epoch, SessionProgress({MESSAGES: position}, {}, set()))
    return record(offset, t, value, key)


def good_log() -> dict[tuple[str, int], list[MemoryRecord]]:
    return {
        MESSAGES: [record(0, 10, b"p:1"), record(1, 12, b"p:3"), record(2, 17, b"kept")],
        TWIN: [record(0, 6, b"will:w:1"), record(1, 11, b"p:2")],
        SESSIONS: [state(2, 0, 5, "t/#"), progress(14, 1, 5, 1), state(15, 2, 7, "t/#"), progress(20, 3, 7, 2)],
    }


def good_run(change: Callable[[list[Line]], Any] = lambda lines: None) -> Run:
    lines = good_lines()
    change(lines)
    recorded = replay(sorted(lines, key=lambda each: each["t"]))
    edges = tuple(EdgeLeft(name, retained={b"kept/1": (b"kept", ("", 0), 0)}) for name in ("a", "b"))
    return Run(recorded, good_log(), edges, (("s", frozenset({"t/#"})),))


def without(lines: list[Line], client: str, payload: str) -> None:
    lines[:] = [each for each in lines if not (each.get("client") == client and each.get("payload") == payload)]


def changed(lines: list[Line], client: str, kind: str, number: int = 0, **values: Any) -> None:
    found = [each for each in lines if each.get("client") == client and each.get("p") == kind]
    found[number].update(values)


def in_log(run: Run, position: tuple[str, int], *records: MemoryRecord) -> Run:
    log = copy.deepcopy(run.log)
    log[position] += records
    return replace(run, log=log)


def edge_that_differs(run: Run) -> Run:
    return replace(run, edges=(run.edges[0], EdgeLeft("b", retained={b"kept/1": (b"older", ("", 0), 0)})))


def starving() -> Run:
    def change(lines: list[Line]) -> None:
        for number in range(10, 130):
            t = 18 + number / 10
            lines += out_flow(t, "p", f"p:{number}", 1, number)
            lines += in_flow(t + 0.05, "m1", f"p:{number}", 1, number)
            lines += [each | {"conn": 2} for each in in_flow(t + 0.05, "s", f"p:{number}", 1, number)]

    return good_run(change)


def acknowledged_and_again(lines: list[Line]) -> None:
    """`s` acknowledged p:1, said goodbye, and gets it once more in its next connection."""
    for each in lines:
        if each.get("client") == "s" and each["e"] == "closed":
            each["how"] = "disconnect"
    lines.extend(each | {"conn": 2} for each in in_flow(16.5, "s", "p:1", 1, 7, dup=True))


def twice_around_a_fault(lines: list[Line]) -> None:
    """Another member gets p:2 when an edge has died."""
    lines += [line(13.2, "fault", edge="a", kind="killed"), line(13.3, "healed", edge="a", kind="killed")]
    lines += in_flow(13.6, "m1", "p:2", 2, 5)


def healed(lines: list[Line], answer_s: float = 0.01) -> None:
    """A fault from 20 to 21; 30 messages long after it, answered after so many seconds."""
    lines += [line(20, "fault", edge="a", kind="killed"), line(21, "healed", edge="a", kind="killed")]
    for number in range(100, 130):
        t = 40 + number / 100
        sent, answered = out_flow(t, "p", f"p:{number}", 1, number)
        lines += [sent, answered | {"t": answered["t"] + answer_s}]
        lines += in_flow(t + 0.01, "m1", f"p:{number}", 1, number)
        lines += [each | {"conn": 2} for each in in_flow(t + 0.01, "s", f"p:{number}", 1, number)]


def sampled(phase: str, t: float, memory_kb: int = 90_000, files: int = 30, tasks: int | None = 40) -> Line:
    return line(t, "sample", edge="a", phase=phase, memory_kb=memory_kb, files=files, tasks=tasks)


def bounded(*more: Line) -> Run:
    return good_run(lambda lines: lines.extend([sampled("start", 0), sampled("run", 20, files=80), *more]))


def expired(t: float, **values: Any) -> Run:
    """A message that lives for 2 s, appended at 20, comes at `t`."""

    def change(lines: list[Line]) -> None:
        lines += out_flow(20, "p", "brief", 1, 9, expiry_s=2)
        lines += [each | {"conn": 2} for each in in_flow(t, "s", "brief", 1, 9, **values)]

    return in_log(good_run(change), MESSAGES, record(3, 20, b"brief"))


def read_twice(change: Callable[[list[tuple[int, str]]], Any] = lambda found: None) -> Run:
    records = good_log()[MESSAGES]
    again = digests(records)
    change(again)
    return replace(good_run(), read={MESSAGES: digests(records)}, replayed={MESSAGES: again})


PLANTED: dict[str, tuple[str, Callable[[], Run]]] = {
    "acknowledged and never delivered": ("I1", lambda: good_run(lambda lines: without(lines, "s", "p:3"))),
    "never sent": ("I2", lambda: good_run(lambda lines: lines.extend(in_flow(13.5, "m1", "ghost", 1, 9)))),
    "payload changed": ("I2", lambda: good_run(lambda lines: changed(lines, "s", "Publish", payload="p:1x"))),
    "refused and delivered": ("I2", lambda: good_run(lambda lines: changed(lines, "p", "Puback", code=0x97))),
    "older after newer": (
        "I3",
        lambda: good_run(
            lambda lines: (
                changed(lines, "s", "Publish", 0, payload="p:3"),
                changed(lines, "s", "Publish", 2, payload="p:1"),
            )
        ),
    ),
    "QoS 2 twice as new": (
        "I4",
        lambda: good_run(lambda lines: lines.extend(in_flow(13.6, "s", "p:2", 2, 5))),
    ),
    "QoS 2 twice in a group": (
        "I4",
        lambda: good_run(lambda lines: lines.extend(in_flow(13.6, "m1", "p:2", 2, 5))),
    ),
    "QoS 2 twice in a group around a fault": ("I4", lambda: good_run(twice_around_a_fault)),
    "QoS 2 twice in the log": ("I4", lambda: in_log(good_run(), TWIN, record(2, 12, b"p:2"))),
    "QoS 1 twice on a connection": (
        "I5",
        lambda: good_run(lambda lines: lines.extend(in_flow(13.6, "s", "p:1", 1, 7))),
    ),
    "QoS 1 sent once and twice in the log": ("I5", lambda: in_log(good_run(), MESSAGES, record(3, 12, b"p:1"))),
    "acknowledged before DISCONNECT and again": ("I5", lambda: good_run(acknowledged_and_again)),
    "packet id used again in flight": (
        "I6",
        lambda: good_run(
            lambda lines: lines.extend(
                message(13.5 + n / 10, "in", "m2", name, 1, 7, dup=True) for n, name in enumerate(("p:1", "p:3"))
            )
        ),
    ),
    "more in flight than allowed": (
        "I6",
        lambda: good_run(
            lambda lines: lines.extend(message(13.5, "in", "m2", "p:1", 1, number, dup=True) for number in (7, 8, 9))
        ),
    ),
    "PUBACK for nothing": (
        "I6",
        lambda: good_run(lambda lines: lines.append(packet(13, "in", "p", "Puback", id=77, code=0))),
    ),
    "an old owner writes": ("I7", lambda: in_log(good_run(), SESSIONS, state(21, 4, 5, "t/#"))),
    "one epoch of two nodes": ("I7", lambda: in_log(good_run(), SESSIONS, state(21, 4, 7, "t/#", node_id="b"))),
    "session not present": (
        "I8",
        lambda: good_run(lambda lines: changed(lines, "s", "Connack", 1, session_present=False)),
    ),
    "a subscription is lost": ("I8", lambda: in_log(good_run(), SESSIONS, state(21, 4, 9))),
    "edges retain differently": ("I9", lambda: edge_that_differs(good_run())),
    "a will twice": ("I10", lambda: in_log(good_run(), TWIN, record(2, 13, b"will:w:1"))),
    "a will after DISCONNECT": (
        "I10",
        lambda: good_run(lambda lines: lines.append(packet(4.9, "out", "w", "Disconnect", code=0))),
    ),
    "a will of a refused CONNECT": (
        "I10",
        lambda: good_run(lambda lines: changed(lines, "w", "Connack", code=0x87)),
    ),
    "no member has it": ("I11", lambda: good_run(lambda lines: without(lines, "m2", "p:2"))),
    "two members have it": (
        "I11",
        lambda: good_run(lambda lines: lines.extend(in_flow(13.7, "m2", "p:1", 1, 8))),
    ),
    "a member starves": ("I11", starving),
    "slow when all is over": ("I12", lambda: good_run(lambda lines: healed(lines, 3.0))),
    "never answered when all is over": ("I12", lambda: good_run(lambda lines: healed(lines, 1e6))),
    "nobody publishes any more": (
        "I12",
        lambda: good_run(
            lambda lines: lines.extend(line(20 + n, e, edge="a", kind="cut") for n, e in enumerate(("fault", "healed")))
        ),
    ),
    "descriptors stay open": ("I13", lambda: bounded(sampled("left", 50, files=60))),
    "tasks stay": ("I13", lambda: bounded(sampled("left", 50, tasks=70))),
    "memory stays": ("I13", lambda: bounded(sampled("left", 50, memory_kb=170_000))),
    "memory without bound": ("I13", lambda: bounded(sampled("run", 30, memory_kb=900_000), sampled("left", 50))),
    "gone in the end": ("I13", lambda: bounded()),
    "delivered after its expiry": ("I15", lambda: expired(26)),
    "another record the second time": (
        "I17",
        lambda: read_twice(lambda found: found.__setitem__(1, (1, "other"))),
    ),
    "a record is missing the second time": ("I17", lambda: read_twice(lambda found: found.pop())),
    "another order the second time": ("I17", lambda: read_twice(lambda found: found.reverse())),
    "PUBLISH before CONNACK": (
        "I14",
        lambda: good_run(lambda lines: lines.extend((opened(3, "x"), message(3.1, "in", "x", "p:1", 1, 1)))),
    ),
    "against the ACL": (
        "I14",
        lambda: good_run(lambda lines: lines.extend(in_flow(13.5, "s", "x", 1, 3, topic_name="secret/x"))),
    ),
    "low water past what is not acknowledged": ("I16", lambda: in_log(good_run(), SESSIONS, progress(14.5, 4, 7, 2))),
}


def test_a_good_history_has_no_violation() -> None:
    assert verdict(good_run()) == {name: [] for name in INVARIANTS}


@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_fault_is_caught(name: str) -> None:
    invariant, run = PLANTED[name]
    found = verdict(run())
    assert found[invariant], f"{name} was not found; found: {found}"


@pytest.mark.parametrize(
    "run",
    [
        lambda: good_run(healed),
        lambda: bounded(sampled("left", 50)),
        lambda: expired(22),
        lambda: read_twice(),
    ],
    ids=["recovers", "is bounded", "comes in time", "reads the same"],
)
def test_what_is_as_it_should_be_is_no_violation(run: Callable[[], Run]) -> None:
    found = verdict(run())
    assert not any(found[name] for name in ("I12", "I13", "I15", "I17")), found


def test_a_repeated_delivery_may_be_late() -> None:
    """It had begun in time [MQTT5-3.3.2-5]."""
    assert verdict(expired(26, dup=True))["I15"] == []


def test_a_puback_that_a_broken_connection_may_have_lost_excuses_a_second_delivery() -> None:
    def change(lines: list[Line]) -> None:
        lines.extend(each | {"conn": 2} for each in in_flow(16.5, "s", "p:1", 1, 7, dup=True))

    assert verdict(good_run(change))["I5"] == []


def test_each_invariant_has_a_planted_fault() -> None:
    assert {invariant for invariant, _ in PLANTED.values()} == set(INVARIANTS)


def test_a_second_member_is_no_violation_around_a_fault() -> None:
    run = good_run(lambda lines: lines.extend(in_flow(13.7, "m2", "p:1", 1, 8)))
    run.recorded.history.faults.append(Fault("a", "killed", 12.0, 12.5))
    assert verdict(run)["I11"] == []


def test_a_history_comes_back_from_its_file(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "history.jsonl")
    recorder.write("mark", values={"scenario": "none"})
    recorder.close()
    assert replay(read(tmp_path / "history.jsonl")).marks == {"scenario": "none"}
