"""Topic Names and Topic Filters: the rules of MQTT section 4.7, and how filters relate to each other.

``matches`` is the reference that the faster structures of ``bridge`` are tested against. ``overlaps`` and ``covers``
reason over *all valid* names, of which there are infinitely many: a level can always hold a text that no filter names.
All three expect filters and names that passed ``check_topic_filter`` and ``check_topic_name``.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.errors import TopicError
from schemas.replay_filter import REPLAY_PREFIX, parse_replay

TOPIC_BYTES_MAX = 65_535  # the longest UTF-8 Encoded String [MQTT5-4.7.3-3]
TOPIC_LEVELS_MAX = TOPIC_BYTES_MAX + 1  # what that many bytes can hold: no limit of its own
SHARE_PREFIX = "$share/"
EXCLUSIVE_PREFIX = "$exclusive/"  # one subscriber in the whole cluster; what follows is an ordinary filter
BESIDE_PREFIXES = (SHARE_PREFIX, REPLAY_PREFIX)  # subscriptions that are fed beside the client's own way


@dataclass(frozen=True, slots=True)
class SharedFilter:
    """A shared subscription taken apart: ``$share/<group>/<topic_filter>``."""

    group: str
    topic_filter: str


def check_topic_name(topic_name: str, *, levels_max: int = TOPIC_LEVELS_MAX, bytes_max: int = TOPIC_BYTES_MAX) -> None:
    """Raise TopicError unless ``topic_name`` may be published to."""
    _check_text("Topic Name", topic_name, levels_max, bytes_max)
    if "+" in topic_name or "#" in topic_name:  # [MQTT5-4.7.0-1] [MQTT311-4.7.1-1]
        raise TopicError("Topic Name holds a wildcard character")


def check_topic_filter(
    topic_filter: str, *, levels_max: int = TOPIC_LEVELS_MAX, bytes_max: int = TOPIC_BYTES_MAX
) -> None:
    """Raise TopicError unless ``topic_filter`` may be subscribed to; a shared one and a replay are checked inside as
    well. ``bytes_max`` is not for the range of a replay: a position token grows with the number of partitions."""
    is_replay = topic_filter.startswith(REPLAY_PREFIX)
    _check_text("Topic Filter", topic_filter, TOPIC_LEVELS_MAX, TOPIC_BYTES_MAX if is_replay else bytes_max)
    inside = parse_shared(topic_filter) or parse_replay(topic_filter)
    if is_replay and inside is not None:
        _check_text("Topic Filter", inside.topic_filter, TOPIC_LEVELS_MAX, bytes_max)
    if inside is not None and inside.topic_filter.startswith(BESIDE_PREFIXES):
        raise TopicError("Topic Filter: a shared subscription or a replay inside another one")
    levels = (inside.topic_filter if inside is not None else topic_filter).split("/")
    if len(levels) > levels_max:
        raise TopicError(f"Topic Filter has more than {levels_max} levels")
    _check_wildcards(levels)


def _check_text(what: str, text: str, levels_max: int, bytes_max: int) -> None:
    if not text:  # [MQTT5-4.7.3-1] [MQTT311-4.7.3-1]
        raise TopicError(f"{what} is empty")
    if "\0" in text:  # [MQTT5-4.7.3-2] [MQTT311-4.7.3-2]
        raise TopicError(f"{what} holds U+0000")
    try:
        length = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:  # [MQTT5-1.5.4-1] [MQTT311-1.5.3-1]
        raise TopicError(f"{what} holds a surrogate") from None
    if length > bytes_max:  # [MQTT5-4.7.3-3] [MQTT311-4.7.3-3]
        raise TopicError(f"{what} is longer than {bytes_max} bytes")
    if text.count("/") >= levels_max:
        raise TopicError(f"{what} has more than {levels_max} levels")


def _check_wildcards(levels: list[str]) -> None:
    for level in levels:
        if "+" in level and level != "+":  # [MQTT5-4.7.1-2] [MQTT311-4.7.1-3]
            raise TopicError("Topic Filter: '+' must fill a whole level")
        if "#" in level and level != "#":  # [MQTT5-4.7.1-1] [MQTT311-4.7.1-2]
            raise TopicError("Topic Filter: '#' must fill a whole level")
    if "#" in levels[:-1]:  # [MQTT5-4.7.1-1] [MQTT311-4.7.1-2]
        raise TopicError("Topic Filter: '#' must be the last level")


def parse_shared(topic_filter: str) -> SharedFilter | None:
    """The parts of a shared subscription's filter; None when it is an ordinary one.

    Raises TopicError when it starts as a shared one and has no proper group or no filter. The inner filter's
    wildcards are ``check_topic_filter``'s business.
    """
    if not topic_filter.startswith(SHARE_PREFIX):
        return None
    group, slash, inner = topic_filter[len(SHARE_PREFIX) :].partition("/")
    if not group:  # [MQTT5-4.8.2-1]
        raise TopicError("Shared subscription: the share name is empty")
    if "+" in group or "#" in group:  # [MQTT5-4.8.2-2]
        raise TopicError("Shared subscription: the share name holds a wildcard character")
    if not slash or not inner:  # [MQTT5-4.8.2-2]
        raise TopicError("Shared subscription: no Topic Filter after the share name")
    return SharedFilter(group, inner)


def has_wildcard(topic_filter: str) -> bool:
    """Whether the (valid) filter can match more than the one name it spells."""
    return "+" in topic_filter or "#" in topic_filter


def matches(topic_filter: str, topic_name: str) -> bool:
    """Whether the filter matches the name, by character and without any normalisation [MQTT5-4.7.3-4]."""
    if topic_name.startswith("$") and topic_filter.startswith(("+", "#")):  # [MQTT5-4.7.2-1] [MQTT311-4.7.2-1]
        return False
    filter_levels = topic_filter.split("/")
    name_levels = topic_name.split("/")
    for index, level in enumerate(filter_levels):
        if level == "#":
            return True  # also the parent level: a/# matches a
        if index >= len(name_levels) or (level != "+" and level != name_levels[index]):
            return False
    return len(filter_levels) == len(name_levels)


def overlaps(filter_a: str, filter_b: str) -> bool:
    """Whether some valid Topic Name is matched by both filters."""
    levels_a, levels_b = _canonical_levels(filter_a), _canonical_levels(filter_b)
    for index, (a, b) in enumerate(zip(levels_a, levels_b, strict=False)):
        if a == "#" or b == "#":
            return True
        if not _levels_meet(a, b, first=index == 0):
            return False
    return _tail_may_be_empty(levels_a, len(levels_b)) and _tail_may_be_empty(levels_b, len(levels_a))


def covers(filter_a: str, filter_b: str) -> bool:
    """Whether every valid Topic Name that ``filter_b`` matches is matched by ``filter_a``, too."""
    levels_a, levels_b = _canonical_levels(filter_a), _canonical_levels(filter_b)
    for index, (a, b) in enumerate(zip(levels_a, levels_b, strict=False)):
        if a == "#":
            return True
        if b == "#" or (b == "+" and a != "+"):
            return False
        if not _levels_meet(a, b, first=index == 0):
            return False
    return len(levels_b) <= len(levels_a) and _tail_may_be_empty(levels_a, len(levels_b))


def _canonical_levels(topic_filter: str) -> list[str]:
    """The levels, spelled so that a trailing '#' may always stand for nothing.

    '#' would then match a name without any level and '/#' the empty name; neither exists [MQTT5-4.7.3-1].
    """
    levels = topic_filter.split("/")
    if levels in (["#"], ["", "#"]):
        levels.insert(-1, "+")
    return levels


def _levels_meet(a: str, b: str, *, first: bool) -> bool:
    if a == b:
        return True
    if a != "+" and b != "+":
        return False
    return not (first and (a.startswith("$") or b.startswith("$")))  # [MQTT5-4.7.2-1] [MQTT311-4.7.2-1]


def _tail_may_be_empty(levels: list[str], start: int) -> bool:
    return len(levels) <= start or levels[start] == "#"
