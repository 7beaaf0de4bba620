"""docs/reliability.md from the results of runs. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

REPEATED = "QoS 2 repeated in the shared group around the fault"
HEAD = """# Reliability: what faults have been tried, and what came of them

Written by `make chaos` (tests/chaos/run.py) from tests/chaos/results.json; do not edit. Three real edges, a real Kafka
(the embedded one, one node), 33 real MQTT clients: 20 publishers with sessions (QoS 0, 1 and 2, half of them 3.1.1,
ten with wills), 10 durable subscribers that come and go and change edges, a shared subscription with 3 members,
retained messages, forbidden Topic Names. Between edges and Kafka, and between clients and edges, stand TCP
fault proxies. Every packet is recorded; the checkers look at that history, at every record Kafka holds and at what the
edges retain. Each checker has been shown to catch planted faults (tests/chaos/test_chaos_checks.py).

A cell is the number of violations in all tries; a try is a seed, and a seed that is run again replaces its earlier
result, so runs before a mend (listed below) are not in the table: *last run* says when (UTC). Limits of the judgement:

* Up to 15 s around a fault, which is most of a run of a minute, I4 leaves the shared group out and I11 counts no second
  deliveries. What members got twice with QoS 2 is listed below instead, under what did not hold.
* I9 compares payloads, not positions; I10 allows more than one will of QoS 0 or 1 around a fault (a known limit);
  I14 looks for packets before CONNACK and at a denied Topic Name.
* Two scenarios ran at a time on a busy machine of two cores: times are what they were there.

*Recovery* is the longest time from the end of a fault to the first
acknowledgement of a publish at any edge, *silence* the longest time without any, faults included.

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
"""


def render(
    results: Sequence[Mapping[str, Any]],
    texts: Mapping[str, str],
    invariants: Sequence[str],
    not_run: Sequence[str],
) -> str:
    """The whole document."""
    by_name: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for result in results:
        by_name[result["scenario"]].append(result)
    lines = ["| fault | tries | " + " | ".join(invariants) + " | recovery, s | silence, s | last run |"]
    lines.append("|---" * (len(invariants) + 5) + "|")
    for name, text in texts.items():
        tries = by_name.get(name)
        if tries:
            counts = [str(sum(each["violations"][invariant] for each in tries)) for invariant in invariants]
            times = [f"{max(each[key] for each in tries):.1f}" for key in ("recovery_s", "silence_s")]
            lines.append(
                f"| {text} | {len(tries)} | " + " | ".join([*counts, *times, max(each["at"] for each in tries)]) + " |"
            )
    document = HEAD + "\n".join(lines) + "\n\n## Figures\n\n| fault | seed | figure | value |\n|---|---|---|---|\n"
    for name in texts:
        for each in by_name.get(name, ()):
            document += "".join(
                f"| {texts[name]} | {each['seed']} | {figure} | {value} |\n"
                for figure, value in each["figures"].items()
            )
    return document + _open(by_name, texts) + FOUND + _not_run(by_name, texts, not_run)


def _open(by_name: Mapping[str, Sequence[Mapping[str, Any]]], texts: Mapping[str, str]) -> str:
    lines = []
    for name, text in texts.items():
        for each in by_name.get(name, ()):
            lines += [f"* {text}, seed {each['seed']}: {fault}" for fault in each["faults"]]
            if each["figures"].get(REPEATED):
                lines.append(f"* {text}, seed {each['seed']}: {each['figures'][REPEATED]} times {REPEATED}")
            lines += [f"* {text}, seed {each['seed']}, {name_}: {found}" for name_, found in each["examples"].items()]
    said = "\n".join(lines) if lines else "Nothing."
    return f"\n## What did not hold\n\n{said}\n"


def _not_run(by_name: Mapping[str, Any], texts: Mapping[str, str], not_run: Sequence[str]) -> str:
    missing = [text for name, text in texts.items() if name not in by_name] + list(not_run)
    return "\n## Not run\n\n" + "".join(f"* {each}\n" for each in missing)
