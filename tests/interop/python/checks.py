"""What the Python scripts share: the command line, the list of checks as JSON lines, what a message must look like."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

WAIT_S = 10.0
ABSENT_S = 0.3  # how long a message that must not come is waited for
COUNT = 50
TRIES = 5  # a retained message may reach the other edge a moment after its acknowledgement
USER_PROPERTIES = [("b", "2"), ("a", "1"), ("b", "3")]


class CheckFailed(Exception):
    """The server did something else than it must."""


class Unsupported(Exception):
    """The server says that it does not offer this."""


@dataclass
class Message:
    """What a subscriber got, whichever library brought it."""

    topic_name: str
    payload: bytes
    qos: int
    retain: bool
    properties: dict[str, object] = field(default_factory=dict, compare=False)


def arguments() -> argparse.Namespace:
    """The command line that every script of this folder takes."""
    parser = argparse.ArgumentParser()
    for name in ("a", "b"):
        parser.add_argument(f"--host-{name}", required=True)
        parser.add_argument(f"--port-{name}", type=int, required=True)
    parser.add_argument("--ws-url", help="WebSocket of edge B")
    parser.add_argument("--tls-port", type=int, help="TLS of edge A")
    parser.add_argument("--ca", help="the certificate authority of --tls-port, a PEM file")
    parser.add_argument("--window", type=int, default=20, help="how many messages may be unacknowledged at once")
    return parser.parse_args()


def new_prefix(version: int) -> str:
    """A first level that nobody else uses."""
    return f"interop/{uuid.uuid4().hex[:12]}/v{version}"


def payload_of(number: int) -> bytes:
    """Every byte value, and what tells one message from the next."""
    return b"%d:" % number + bytes(range(256))


def expect(is_right: object, what: str) -> None:
    """Raises CheckFailed."""
    if not is_right:
        raise CheckFailed(what)


def expect_equal(got: object, wanted: object, what: str) -> None:
    """Raises CheckFailed that shows both."""
    expect(got == wanted, f"{what}: {str(got)[:200]} instead of {str(wanted)[:200]}")


def report(check: str, version: int, run: Callable[[], str | None]) -> bool:
    """Run one check, print its JSON line; whether it passed."""
    line: dict[str, object] = {"check": check, "version": version, "ok": True, "detail": ""}
    try:
        line["detail"] = run() or ""
    except Unsupported as refusal:
        line |= {"ok": False, "unsupported": True, "detail": str(refusal)}
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        line |= {"ok": False, "detail": f"{type(error).__name__}: {error}"}
    print(json.dumps(line), flush=True)
    return bool(line["ok"])


def run_all(checks: Mapping[int, Mapping[str, Callable[[], str | None]]]) -> int:
    """Every check of every version; the exit code."""
    passed = [report(name, version, run) for version, of_version in checks.items() for name, run in of_version.items()]
    return 0 if all(passed) else 1
