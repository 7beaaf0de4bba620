"""The filter of a replay subscription: ``$replay/<from>[/<to>]/<topic filter>``."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.errors import TopicError
from schemas.replay_range import is_point

REPLAY_PREFIX = "$replay/"
_NO_TO = frozenset(("beginning", "end"))  # more likely the first level of a Topic Filter


@dataclass(frozen=True, slots=True)
class ReplayFilter:
    """A replay subscription taken apart; `schemas.replay_range` reads the two texts. ``text_to`` None: it goes on
    live."""

    text_from: str
    text_to: str | None
    topic_filter: str


def parse_replay(topic_filter: str) -> ReplayFilter | None:
    """The parts of a replay subscription's filter; None when it is an ordinary one.

    The second level is a ``to`` when it has the form of a time, of a position token, or is ``now``; a bare number is
    not. Raises TopicError when it starts as a replay and has no ``from`` or no filter. The inner filter's wildcards are
    ``check_topic_filter``'s business.
    """
    if not topic_filter.startswith(REPLAY_PREFIX):
        return None
    text_from, _, rest = topic_filter[len(REPLAY_PREFIX) :].partition("/")
    if not is_point(text_from):
        raise TopicError(f"Replay: {text_from!r} is no from: write $replay/-1h/<topic filter>, or a time in ISO 8601")
    text_to: str | None = None
    first, slash, behind = rest.partition("/")
    if slash and is_point(first) and first not in _NO_TO and not first.isdecimal():
        text_to, rest = first, behind
    if not rest:
        raise TopicError("Replay: no Topic Filter after the range")
    return ReplayFilter(text_from, text_to, rest)
