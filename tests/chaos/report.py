"""docs/reliability.md from the results of runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

HEAD = """# Reliability: what faults have been tried, and what came of them

Written by `make chaos` (tests/chaos/run.py) from tests/chaos/results.json; do not edit. Three real edges, a real Kafka
(the embedded one, one node), 33 real MQTT clients: 20 publishers with sessions (QoS 0, 1 and 2, half of them 3.1.1,
ten with wills), 10 durable subscribers that come and go and change edges, a shared subscription with 3 members,
retained messages, messages that expire, forbidden Topic Names. Between edges and Kafka, and between clients and edges,
stand TCP fault proxies. Every packet is recorded; the checkers look at that history, at every record Kafka holds, at
what the edges retain, and at the memory, descriptors and tasks of the edges. Each checker has been shown to catch
planted faults (tests/chaos/test_chaos_checks.py).

A cell is the number of violations in all tries; a try is a seed, and a seed that is run again replaces its earlier
result, so runs before a mend (listed below) are not in the table: *last run* says when (UTC). A dash: the run was made
before there was a checker. Limits of the judgement:

* Up to 15 s around a fault, which is most of a run of a minute, I5 counts no second deliveries on a new connection and
  I11 no second deliveries of QoS 1. I4 counts QoS 2 at all times, in the shared group, too.
* I5 and I10: an edge that does not hand a session over within 1.5 s is fenced, and QoS 1 comes again, a will of QoS 1
  too. On the busy machine that happened away from faults, too.
* I9 compares payloads, not positions.
* I10 allows more than one will of QoS 0 or 1 around a fault (a known limit); I14 looks for packets before CONNACK and
  at a denied Topic Name.
* I12: of what is published from 15 s after the last fault on (25 s where Kafka was away: groups form anew, and what
  has waited goes out), 95 % are acknowledged and delivered within 2 s, or three times what it took before.
* I13: descriptors and tasks of each edge come back to 110 % + 20 of what they were without clients, memory to 64 MiB
  above it.
* I15 allows 3 s for the machine, leaves QoS 2 out (its delivery begins when its Packet Identifier goes to be stored,
  which waits for Kafka), and is not looked at where an edge's clock is wrong.
* I17: what Kafka holds of messages, read by aiokafka's consumer and by `headwater replay '#' --from beginning`: keys,
  payloads and headers, byte for byte.
* The machine (two cores) was busy with other work at 5 to 10 times what it can do, and two scenarios ran at a time:
  times, and with them I12, are what they were there; the other invariants are what counts.

Each run of the tests does a few of these faults one after the other on one site (tests/chaos/test_chaos_short.py).

*Recovery* is the longest time from the end of a fault to the first acknowledgement of a publish at any edge, *silence*
the longest time without any, faults included.

"""


FOUND = """
## Found by these runs, and mended

* SIGSTOP of an edge: a reader that began behind an aborted transaction's records and before its marker passed over the
  committed transactions of the same edge that followed: QoS 2 messages were lost to a resumed session (I1, I16).
* SIGSTOP of an edge: a QoS 2 message of a shared subscription whose packet identifier was not stored yet came to no
  member when the connection ended (I11).
* SIGSTOP of Kafka for 30 s: of a publisher's messages the first were given up after 30 s and the later ones appended,
  so that the first, sent again, came after them (I3); QoS 1 and 2.
* Our own client said DISCONNECT 0x8D, which only servers may send.
* Kafka's disk full: the embedded Kafka, started again, ended transactions whose time was over while its controller
  still held it for the process that had died. Kafka passes over the markers of a transaction when it knows no leader
  ("likely deleted already"), so read-committed readers waited for ever and no session of those partitions could be
  opened. It ends them 10 s after its start now, when it is registered (Kafka's own default). On a cluster of your own:
  `kafka-transactions.sh find-hanging` and `abort`.
* Take-over storm and rolling restarts on a busy machine: what a resumed session had in flight was given up when Kafka
  did not hand it out within 2 s: QoS 2 messages of a shared subscription were lost (I11).
* Group churn on a busy machine: a CONNACK that came in the same turn of the loop in which our client's time for it was
  over left its connection alive beside that of the next attempt, and each that was lost was made anew: thousands a
  second in the end.
"""


Results = Mapping[str, Sequence[Mapping[str, Any]]]


def render(
    results: Sequence[Mapping[str, Any]],
    texts: Mapping[str, str],
    invariants: Sequence[str],
    soak: Mapping[str, Any] | None = None,
) -> str:
    """The whole document."""
    tried: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    missing: dict[str, str] = {}
    for result in sorted(results, key=lambda each: each["seed"]):
        if "missing" in result:
            missing[result["scenario"]] = result["missing"]
        else:
            tried[result["scenario"]].append(result)
    return (
        HEAD
        + _table(tried, texts, invariants)
        + _figures(tried, texts)
        + _open(tried, texts)
        + FOUND
        + _soak(soak)
        + _not_run(tried, texts, missing)
    )


def _table(tried: Results, texts: Mapping[str, str], invariants: Sequence[str]) -> str:
    lines = ["| fault | tries | " + " | ".join(invariants) + " | recovery, s | silence, s | last run |"]
    lines.append("|---" * (len(invariants) + 5) + "|")
    for name, text in texts.items():
        tries = tried.get(name)
        if tries:
            counts = [_sum([each["violations"].get(invariant) for each in tries]) for invariant in invariants]
            times = [f"{max(each[key] for each in tries):.1f}" for key in ("recovery_s", "silence_s")]
            lines.append(
                f"| {text} | {len(tries)} | " + " | ".join([*counts, *times, max(each["at"] for each in tries)]) + " |"
            )
    return "\n".join(lines) + "\n"


def _sum(counts: Sequence[int | None]) -> str:
    """Of those tries where it was looked at."""
    known = [count for count in counts if count is not None]
    return str(sum(known)) if known else "-"


def _figures(tried: Results, texts: Mapping[str, str]) -> str:
    lines = ["\n## Figures\n", "| fault | figure | seeds | values |", "|---|---|---|---|"]
    for name, text in texts.items():
        tries = tried.get(name, ())
        for figure in dict.fromkeys(figure for each in tries for figure in each["figures"]):
            having = [each for each in tries if figure in each["figures"]]
            seeds = ", ".join(str(each["seed"]) for each in having)
            values = ", ".join(f"{each['figures'][figure]:g}" for each in having)
            lines.append(f"| {text} | {figure} | {seeds} | {values} |")
    return "\n".join(lines) + "\n"


def _open(tried: Results, texts: Mapping[str, str]) -> str:
    lines = []
    for name, text in texts.items():
        for each in tried.get(name, ()):
            lines += [f"* {text}, seed {each['seed']}: {fault}" for fault in each["faults"]]
            lines += [f"* {text}, seed {each['seed']}, {name_}: {found}" for name_, found in each["examples"].items()]
    said = "\n".join(lines) if lines else "Nothing."
    return f"\n## What did not hold\n\n{said}\n"


def _soak(soak: Mapping[str, Any] | None) -> str:
    if soak is None:
        return ""
    lines = [f"| {what} | {' | '.join(str(each) for each in values)} |" for what, values in soak["rows"].items()]
    columns = soak["columns"]
    return (
        f"\n## Soak\n\n{soak['summary']}\n\n| | {' | '.join(columns)} |\n{'|---' * (len(columns) + 1)}|\n"
        + "\n".join(lines)
        + "\n"
    )


def _not_run(tried: Results, texts: Mapping[str, str], missing: Mapping[str, str]) -> str:
    lines = [
        f"* {text}" + (f": {missing[name]}" if name in missing else "")
        for name, text in texts.items()
        if name not in tried
    ]
    return "\n## Not run\n\n" + "\n".join(lines or ["Nothing: each fault has been tried."]) + "\n"
