"""Delayed publish: `$delayed/<seconds>/<topic name>`, as in EMQX. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from schemas.delayed import DELAY_S_MAX

DELAYED_PREFIX: Final = "$delayed/"


class DelayedName(NamedTuple):
    """What is behind the prefix; `topic_name` is still to be checked."""

    delay_s: int
    topic_name: str


def parse_delayed(topic_name: str) -> DelayedName | None:
    """The parts of a Topic Name that starts with `$delayed/`; None: there is no such delay, or no name behind it."""
    digits, slash, inner = topic_name[len(DELAYED_PREFIX) :].partition("/")
    if not slash or not inner or not digits.isascii() or not digits.isdigit() or len(digits) > 7:
        return None
    delay_s = int(digits)
    if delay_s > DELAY_S_MAX or inner.startswith(DELAYED_PREFIX):
        return None
    return DelayedName(delay_s, inner)
