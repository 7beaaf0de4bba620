"""Auto-subscription: what every client is subscribed to when it connects, with the server's rights. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from edge.access.principal import Principal
from edge.rules.placeholders import substitute
from schemas.errors import ConfigurationError, TopicError
from schemas.sessions import StoredSubscription
from schemas.topics import check_topic_filter

AUTO_SUBSCRIPTIONS_MAX: Final = 20  # EMQX takes as many
_DEFAULTS: Final[dict[str, Any]] = {
    "qos": 0,
    "no_local": False,
    "retain_as_published": False,
    "retain_handling": 0,
}
_CLOSED: Final = ("$share/", "$exclusive/", "$replay/", "$delayed/")


class AutoSubscriptions:
    """The configured ones; `of` gives those of one client."""

    __slots__ = ("_subscriptions",)

    def __init__(self, subscriptions: Iterable[StoredSubscription] = ()) -> None:
        self._subscriptions = tuple(subscriptions)

    def __bool__(self) -> bool:
        return bool(self._subscriptions)

    def of(self, principal: Principal) -> tuple[StoredSubscription, ...]:
        """Those of the client, by filter: a later table replaces an earlier one. One whose `%c` or `%u` would not fit
        into a level is left out."""
        found: dict[str, StoredSubscription] = {}
        for each in self._subscriptions:
            topic_filter = substitute(each.topic_filter, principal)
            if topic_filter is not None:
                found[topic_filter] = StoredSubscription(
                    topic_filter, each.qos, each.no_local, each.retain_as_published, each.retain_handling
                )
        return tuple(found.values())

    def grants(self, principal: Principal, topic_filter: str) -> bool:
        """Whether the server itself has given the client this subscription: its own rights do not matter then."""
        return bool(self._subscriptions) and any(each.topic_filter == topic_filter for each in self.of(principal))


def load_auto_subscriptions(tables: Iterable[Mapping[str, Any]]) -> AutoSubscriptions:
    """From tables as under `[[auto_subscriptions]]`. Raises ConfigurationError that names the table's number."""
    found = [_load(number, table) for number, table in enumerate(tables, start=1)]
    if len(found) > AUTO_SUBSCRIPTIONS_MAX:
        raise ConfigurationError(f"{len(found)} [[auto_subscriptions]]; at most {AUTO_SUBSCRIPTIONS_MAX} are taken")
    return AutoSubscriptions(found)


def _load(number: int, table: Mapping[str, Any]) -> StoredSubscription:
    def refuse(why: str) -> ConfigurationError:
        return ConfigurationError(f"[[auto_subscriptions]] {number}: {why}")

    if unknown := sorted(set(table) - _DEFAULTS.keys() - {"filter"}):
        raise refuse(f"has no key {unknown[0]!r}; it has filter, {', '.join(_DEFAULTS)}")
    topic_filter = table.get("filter")
    if not isinstance(topic_filter, str):
        raise refuse("needs filter, a Topic Filter")
    try:
        check_topic_filter(topic_filter)
    except TopicError as error:
        raise refuse(f"filter {topic_filter!r}: {error}") from None
    if topic_filter.startswith(_CLOSED):
        raise refuse(f"filter {topic_filter!r}: only ordinary filters, without a prefix such as $share/")
    values = _DEFAULTS | {key: value for key, value in table.items() if key != "filter"}
    for key in ("qos", "retain_handling"):
        if type(values[key]) is not int or not 0 <= values[key] <= 2:
            raise refuse(f"{key} must be 0, 1 or 2, not {values[key]!r}")
    for key in ("no_local", "retain_as_published"):
        if type(values[key]) is not bool:
            raise refuse(f"{key} must be true or false, not {values[key]!r}")
    return StoredSubscription(topic_filter, **values)
