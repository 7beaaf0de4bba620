"""docs/reliability.md from the results of runs. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

HEAD = """# Reliability: what faults have been tried, and what came of them

Written by `make chaos` (tests/chaos/run.py) from tests/chaos/results.json; do not edit. Three real edges, a real Kafka
(the embedded one, one node), 33 real MQTT clients: 20 publishers with sessions (QoS 0, 1 and 2, half of them 3.1.1,
ten with wills), 10 durable subscribers that come and go and change edges, a shared subscription with 3 members,
retained messages, forbidden Topic Names. Between edges and Kafka, and between clients and edges, stand TCP
fault proxies. Every packet is recorded; the checkers look at that history, at every record Kafka holds and at what the
edges retain. Each checker has been shown to catch planted faults (tests/chaos/test_chaos_checks.py).

A cell is the number of violations in all tries. *Recovery* is the longest time from the end of a fault to the first
acknowledgement of a publish at any edge, *silence* the longest time without any, faults included.

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
    lines = ["| fault | tries | " + " | ".join(invariants) + " | recovery, s | silence, s |"]
    lines.append("|---" * (len(invariants) + 4) + "|")
    for name, text in texts.items():
        tries = by_name.get(name)
        if tries:
            counts = [str(sum(each["violations"][invariant] for each in tries)) for invariant in invariants]
            times = [f"{max(each[key] for each in tries):.1f}" for key in ("recovery_s", "silence_s")]
            lines.append(f"| {text} | {len(tries)} | " + " | ".join([*counts, *times]) + " |")
    document = HEAD + "\n".join(lines) + "\n\n## Figures\n\n| fault | seed | figure | value |\n|---|---|---|---|\n"
    for name in texts:
        for each in by_name.get(name, ()):
            document += "".join(
                f"| {texts[name]} | {each['seed']} | {figure} | {value} |\n"
                for figure, value in each["figures"].items()
            )
    return document + _open(by_name, texts) + _not_run(by_name, texts, not_run)


def _open(by_name: Mapping[str, Sequence[Mapping[str, Any]]], texts: Mapping[str, str]) -> str:
    lines = []
    for name, text in texts.items():
        for each in by_name.get(name, ()):
            lines += [f"* {text}, seed {each['seed']}: {fault}" for fault in each["faults"]]
            lines += [f"* {text}, seed {each['seed']}, {name_}: {found}" for name_, found in each["examples"].items()]
    said = "\n".join(lines) if lines else "Nothing."
    return f"\n## What did not hold\n\n{said}\n"


def _not_run(by_name: Mapping[str, Any], texts: Mapping[str, str], not_run: Sequence[str]) -> str:
    missing = [text for name, text in texts.items() if name not in by_name] + list(not_run)
    return "\n## Not run\n\n" + "".join(f"* {each}\n" for each in missing)
