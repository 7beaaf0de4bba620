"""Runs the conformance suite on Headwater and on mosquitto, and writes docs/conformance.md of what came out.

    python tests/conformance/table.py                          an edge on a log in memory, and mosquitto
    python tests/conformance/table.py --host H --port P        Headwater is there (--websocket-port, --scram as well)

Exit 1 when a test fails that differences.toml does not name, or when it names one that passes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

if __name__ == "__main__":
    _TESTS = Path(__file__).resolve().parent.parent
    sys.path[:0] = [str(_TESTS.parent), str(_TESTS)]

from support.mosquitto import running_mosquitto
from support.statements import FOLDER, VERSIONS, Statement, not_applicable, statements, suite

ROOT = FOLDER.parent.parent
BROKERS = {"headwater": "Headwater", "mosquitto": "mosquitto"}
RUN_S = 900
Whys = Mapping[str, Mapping[str, str]]  # broker -> test -> why it fails
_SECTION = {
    "1.5": "Data representation",
    "2.1": "Packet structure",
    "2.2": "Fixed header, packet identifiers, properties",
    "2.3": "Packet identifiers",
    "3.1": "CONNECT",
    "3.2": "CONNACK",
    "3.3": "PUBLISH",
    "3.4": "PUBACK",
    "3.5": "PUBREC",
    "3.6": "PUBREL",
    "3.7": "PUBCOMP",
    "3.8": "SUBSCRIBE",
    "3.9": "SUBACK",
    "3.10": "UNSUBSCRIBE",
    "3.11": "UNSUBACK",
    "3.12": "PINGREQ",
    "3.14": "DISCONNECT",
    "3.15": "AUTH",
    "4.1": "Session state",
    "4.2": "Network connections",
    "4.3": "Quality of Service",
    "4.4": "Message delivery retry",
    "4.5": "Message receipt",
    "4.6": "Message ordering",
    "4.7": "Topic names and filters",
    "6.0": "WebSocket",
}
_SECTION_5 = {
    "4.8": "Shared subscriptions",
    "4.9": "Flow control",
    "4.12": "Enhanced authentication",
    "4.13": "Handling errors",
}
_SECTION_311 = {"4.8": "Handling errors", "7.0": "Conformance", "7.1": "Transport"}


@dataclass(frozen=True)
class Case:
    """One case of one test in one run, and the statements that it shows."""

    test: str  # its name in the ledger
    parameters: str
    ids: tuple[str, ...]
    passed: bool


@dataclass(frozen=True)
class Run:
    """What came out on one broker."""

    cases: tuple[Case, ...]

    def of(self, test: str) -> list[Case]:
        return [case for case in self.cases if case.test == test]

    def holds(self, statement_id: str) -> bool:
        """Every case that cites the statement passed, and there is one."""
        outcomes = [case.passed for case in self.cases if statement_id in case.ids]
        return bool(outcomes) and all(outcomes)

    @property
    def failed(self) -> set[str]:
        return {case.test for case in self.cases if not case.passed}


def run_suite(*options: str) -> Run:
    """Run the suite with these options. Raises AssertionError when it did not run to the end."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "tests/conformance", "-q", "--no-header", f"--junitxml={report}"]
        finished = subprocess.run(
            [*command, *options], cwd=ROOT, env=_environment(), capture_output=True, text=True, timeout=RUN_S
        )
        assert finished.returncode in (0, 1), finished.stdout + finished.stderr
        return read_report(report)


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


def read_report(path: Path) -> Run:
    """The cases in a JUnit report; those that cite no statement are of the suite itself."""
    cases: list[Case] = []
    for element in ElementTree.parse(path).getroot().iter("testcase"):
        cites = element.find("properties/property[@name='statements']")
        if cites is not None:
            name, _, parameters = element.get("name", "").partition("[")
            file = "/".join(element.get("classname", "").split(".")[2:]) + ".py"
            passed = element.find("failure") is None and element.find("error") is None
            ids = tuple(cites.get("value", "").split())
            cases.append(Case(f"{file}::{name}", parameters.removesuffix("]"), ids, passed))
    return Run(tuple(cases))


def section_table(version: str, runs: Mapping[str, Run]) -> list[str]:
    """One line for each section: statements, tests, and how many statements hold where."""
    reasons = not_applicable(version)
    names = _SECTION | (_SECTION_5 if version == "mqtt5" else _SECTION_311)
    sections: dict[str, list[Statement]] = {}
    for statement in statements(version).values():
        sections.setdefault(statement.section, []).append(statement)
    lines = [
        "| section | statements | without a test | tests | cases | " + " | ".join(BROKERS.values()) + " |",
        "|---|--:|--:|--:|--:|" + "--:|" * len(BROKERS),
    ]
    for section, members in [*sections.items(), ("all", list(statements(version).values()))]:
        tested = {each.statement_id for each in members} - reasons.keys()
        cases = [case for case in next(iter(runs.values())).cases if tested & set(case.ids)]
        hold = [f"{sum(map(run.holds, tested))} of {len(tested)}" for run in runs.values()]
        title = "**all**" if section == "all" else f"{section} {names.get(section, '')}".strip()
        numbers = [len(members), len(members) - len(tested), len({case.test for case in cases}), len(cases)]
        lines.append(f"| {title} | {' | '.join(map(str, numbers))} | {' | '.join(hold)} |")
    return lines


def difference_table(version: str, runs: Mapping[str, Run], whys: Whys) -> list[str]:
    """One line for each test that failed somewhere, with the statements of what failed, and the reason."""
    texts = statements(version)
    lines = [
        "| test, statements | " + " | ".join(BROKERS.values()) + " | why |",
        "|---|" + "---|" * len(BROKERS) + "---|",
    ]
    for test in suite():
        failed = {each: [case for case in run.of(test) if not case.passed] for each, run in runs.items()}
        ids = dict.fromkeys(each for cases in failed.values() for case in cases for each in case.ids if each in texts)
        if ids:
            stated = "<br>".join(f"{each}: {texts[each].text}" for each in ids)
            outcomes = [_outcome(run.of(test)) for run in runs.values()]
            said = {each: whys.get(each, {}).get(test, "?") for each, cases in failed.items() if cases}
            why = " ".join(f"{BROKERS[each]}: {reason}" for each, reason in said.items())
            lines.append(f"| `{test.partition('::')[2]}`<br>{stated} | {' | '.join(outcomes)} | {why} |")
    return lines


def _outcome(cases: Sequence[Case]) -> str:
    failed = sum(not case.passed for case in cases)
    return f"{failed} of {len(cases)} failed" if failed else "passed"


def document(runs: Mapping[str, Run], whys: Whys, mosquitto: str) -> str:
    """docs/conformance.md."""
    parts = [
        "# Conformance",
        "",
        "Generated by `python tests/conformance/table.py`; do not edit.",
        "",
        "Every normative statement of MQTT 5.0 and 3.1.1, those that bind clients too, is in",
        "`tests/conformance/statements/`. It has a test that speaks to a socket, or a reason why it has none.",
        "`pytest tests/conformance` runs the suite on an edge with its log in memory; `--host` and `--port` name any",
        "broker. Below, a statement holds when every case of every test that cites it passes. Where CONNACK may limit",
        "a feature, the tests check the feature or the refusal.",
        "",
        f"The brokers: this tree's edge, and {mosquitto} with anonymous access and `max_queued_messages 0`.",
        "The edge's limits on topic names, on filters per SUBSCRIBE and on the size of a CONNECT are raised to what "
        "MQTT",
        "allows: [security](security.md) has the defaults. Enhanced authentication is tried with SCRAM-SHA-256; "
        "mosquitto",
        "does not know the method, and its refusal is what is tested there.",
        "",
    ]
    for version, name in VERSIONS.items():
        binding = sum(each.binds in "SB" for each in statements(version).values())
        parts += [f"## {name}", "", f"{len(statements(version))} statements, {binding} of them bind a server.", ""]
        parts += [*section_table(version, runs), "", f"### What differs in {name}", ""]
        parts += [*difference_table(version, runs, whys), "", f"### Statements of {name} without a test", ""]
        parts += [f"* {each}: {' '.join(why.split())}" for each, why in not_applicable(version).items()]
        parts.append("")
    return "\n".join(parts)


def complaints(runs: Mapping[str, Run], whys: Whys) -> list[str]:
    """Where differences.toml and the runs do not agree."""
    found: list[str] = []
    for broker, run in runs.items():
        reasons = whys.get(broker, {}).keys()
        found += [f"{broker}: no reason for {test}" for test in sorted(run.failed - reasons)]
        found += [f"{broker}: a reason for {test}, which passes" for test in sorted(reasons - run.failed)]
    return found


def _mosquitto_results() -> Run:
    with tempfile.TemporaryDirectory() as folder, running_mosquitto(Path(folder)) as peer:
        return run_suite("--host", peer.host, "--port", str(peer.port), "--websocket-port", str(peer.websocket_port))


def _mosquitto_version() -> str:
    said = subprocess.run(["mosquitto", "-h"], capture_output=True, text=True, env=_with_sbin(), timeout=10).stdout
    return said.partition("\n")[0].strip()


def _with_sbin() -> dict[str, str]:
    environment = _environment()
    return environment | {"PATH": environment.get("PATH", "") + ":/usr/sbin"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, write, complain."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("--host", "--port", "--websocket-port", "--scram"):
        parser.add_argument(option, help="of a Headwater that runs; as for pytest")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "conformance.md")
    chosen = vars(parser.parse_args(arguments))
    output: Path = chosen.pop("output")
    options = [part for name, value in chosen.items() if value for part in ("--" + name.replace("_", "-"), value)]
    whys = tomllib.loads((FOLDER / "differences.toml").read_text(encoding="utf-8"))
    with ThreadPoolExecutor(2) as pool:  # both mostly wait
        started = {"headwater": pool.submit(run_suite, *options), "mosquitto": pool.submit(_mosquitto_results)}
        runs = {broker: run.result() for broker, run in started.items()}
    output.write_text(document(runs, whys, _mosquitto_version()), encoding="utf-8")
    wrong = complaints(runs, whys)
    for line in wrong:
        print(line)
    for broker, run in runs.items():
        print(f"{broker}: {sum(case.passed for case in run.cases)} of {len(run.cases)} cases passed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
