"""The ACL: rules, their order, what substitution and `$` names do, and the subset test for subscriptions."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge.access.acl import (
    COMPILED_MAX,
    RULES_MAX,
    Acl,
    AclRule,
    DevAcl,
    load_rules,
    load_rules_toml,
    underlying_filter,
)
from edge.access.principal import Principal
from schemas.errors import ConfigurationError
from schemas.topics import matches

ANN = Principal("ann", "pump-1", "192.0.2.1")


def acl(*rules: str) -> Acl:
    """Rules written as `allow publish a/b`, optionally followed by `user=ann`."""
    tables = []
    for rule in rules:
        permit, action, topic_filter, *who = rule.split(" ")
        tables.append({"permit": permit, "action": action, "filter": topic_filter} | dict(w.split("=") for w in who))
    return Acl(load_rules(tables))


def test_nothing_is_allowed_without_a_rule() -> None:
    empty = Acl()
    assert not empty.may_publish(ANN, "a")
    assert not empty.may_subscribe(ANN, "a")
    assert not empty.may_receive(ANN, "a")


def test_the_first_rule_that_matches_decides() -> None:
    rules = acl("deny publish a/secret", "allow publish a/+", "deny publish a/b")
    assert not rules.may_publish(ANN, "a/secret")
    assert rules.may_publish(ANN, "a/b")
    assert not rules.may_publish(ANN, "a/b/c")


@pytest.mark.parametrize(
    ("action", "publish", "receive"), [("publish", True, False), ("subscribe", False, True), ("all", True, True)]
)
def test_a_rule_is_for_its_action(action: str, publish: bool, receive: bool) -> None:
    rules = acl(f"allow {action} a/#")
    assert rules.may_publish(ANN, "a/b") is publish
    assert rules.may_receive(ANN, "a/b") is receive
    assert rules.may_subscribe(ANN, "a/b") is receive


def test_a_rule_is_for_its_user_and_its_client_id() -> None:
    rules = acl("allow all a user=ann", "allow all b client_id=pump-1", "allow all c user=bob")
    assert [rules.may_publish(ANN, name) for name in "abc"] == [True, True, False]


def test_placeholders_stand_for_the_client_id_and_the_user() -> None:
    rules = acl("allow all sensors/%u/dev-%c/#")
    assert rules.may_publish(ANN, "sensors/ann/dev-pump-1/t")
    assert rules.may_subscribe(ANN, "sensors/ann/dev-pump-1/+")
    assert not rules.may_publish(ANN, "sensors/bob/dev-pump-1/t")
    assert not rules.may_subscribe(ANN, "sensors/+/dev-pump-1/t")


def test_a_value_is_substituted_once() -> None:
    assert not acl("allow all x/%c").may_publish(Principal("ann", "%u", ""), "x/ann")
    assert acl("allow all x/%c").may_publish(Principal("ann", "%u", ""), "x/%u")


UNUSABLE = ["+", "#", "a/b", "a+", "a#", "\x00", "a\x1f", "\x7f", "\x85", "", "$SYS", "$a"]


@pytest.mark.parametrize("value", UNUSABLE)
@pytest.mark.parametrize("place", ["%c", "%u"])
def test_an_unusable_value_grants_nothing(value: str, place: str) -> None:
    principal = Principal(value, "fine", "") if place == "%u" else Principal("fine", value, "")
    rules = acl(f"allow all x/{place}/#", f"allow all {place}/#")
    for name in ("x/a/b", "x/fine/b", f"x/{value}/y", "$SYS/uptime", "a/b", "fine/b"):
        assert not rules.may_publish(principal, name)
        assert not rules.may_receive(principal, name)
        assert not rules.may_subscribe(principal, name)


@pytest.mark.parametrize("value", UNUSABLE)
def test_an_unusable_value_in_a_deny_rule_denies_the_rest(value: str) -> None:
    rules = acl("allow all open", "deny all private/%c", "allow all private/#")
    principal = Principal("ann", value, "")
    assert rules.may_publish(principal, "open")
    assert not rules.may_publish(principal, "private/x")
    assert not rules.may_subscribe(principal, "private/x")


def test_a_subscription_needs_every_name_it_can_match() -> None:
    rules = acl("deny subscribe a/secret/#", "allow subscribe a/+/t", "allow subscribe b/#")
    assert rules.may_subscribe(ANN, "a/x/t")
    assert rules.may_subscribe(ANN, "b/#")
    assert rules.may_subscribe(ANN, "b/+/c")
    assert not rules.may_subscribe(ANN, "a/+/t"), "a/secret/t is among its names"
    assert not rules.may_subscribe(ANN, "a/#")
    assert not rules.may_subscribe(ANN, "#")
    assert not rules.may_subscribe(ANN, "+/x/t")


def test_a_later_deny_does_not_take_back_a_grant() -> None:
    assert acl("allow subscribe a/#", "deny subscribe a/secret").may_subscribe(ANN, "a/#")


@pytest.mark.parametrize(
    ("topic_filter", "underlying"),
    [
        ("a/b", "a/b"),
        ("$share/g/a/b", "a/b"),
        ("$share/g/#", "#"),
        ("$replay/2026-01-01T00:00Z/a/+", "a/+"),
        ("$share/g/$replay/0/a", "a"),
        ("$share/g", None),
        ("$share/g/", None),
        ("$share//a", None),
        ("$share/+/a", None),
        ("$replay/0", None),
        ("$replay/0/", None),
    ],
)
def test_prefixes_are_stripped_before_the_decision(topic_filter: str, underlying: str | None) -> None:
    assert underlying_filter(topic_filter) == underlying
    rules = acl("deny subscribe secret", "allow subscribe a/#")
    assert rules.may_subscribe(ANN, topic_filter) is (underlying is not None and underlying.startswith("a"))


@pytest.mark.parametrize("prefix", ["$share/g/", "$replay/0/", "$share/g/$replay/0/"])
def test_a_prefix_opens_nothing(prefix: str) -> None:
    rules = Acl([AclRule(True, "all", "$share/#"), AclRule(True, "all", "$replay/#"), AclRule(True, "all", "a/#")])
    assert not rules.may_subscribe(ANN, f"{prefix}secret")
    assert not rules.may_subscribe(ANN, f"{prefix}$SYS/#")


@pytest.mark.parametrize("topic_filter", ["", "a/#/b", "a+", "\x00", "$share/g/a#"])
def test_a_malformed_filter_is_refused(topic_filter: str) -> None:
    assert not acl("allow all #").may_subscribe(ANN, topic_filter)


@pytest.mark.parametrize("topic_name", ["$SYS", "$SYS/x", "$CONTROL", "$CONTROL/dynamic-security/v1"])
def test_nobody_publishes_to_sys_or_control(topic_name: str) -> None:
    rules = acl("allow all $SYS/#", "allow all $CONTROL/#", "allow all #")
    root = Principal("root", "c", "", superuser=True)
    assert not rules.may_publish(ANN, topic_name)
    assert not rules.may_publish(root, topic_name)
    assert not DevAcl().may_publish(root, topic_name)


def test_reading_sys_needs_a_rule_that_names_it() -> None:
    for broad in (acl("allow all #"), acl("allow all +/#"), acl("allow all %c/#"), acl("allow all +/uptime")):
        for principal in (ANN, Principal("$SYS", "$SYS", "")):
            assert not broad.may_subscribe(principal, "$SYS/#")
            assert not broad.may_subscribe(principal, "$SYS/uptime")
            assert not broad.may_receive(principal, "$SYS/uptime")
    named = acl("allow subscribe $SYS/#")
    assert named.may_subscribe(ANN, "$SYS/uptime")
    assert named.may_receive(ANN, "$SYS/uptime")
    assert not named.may_receive(ANN, "$CONTROL/x")


def test_a_superuser_needs_no_rule() -> None:
    root = Principal("root", "c", "", superuser=True)
    assert Acl().may_publish(root, "a")
    assert Acl().may_subscribe(root, "#")
    assert Acl().may_receive(root, "$SYS/uptime")
    assert not Acl().may_subscribe(root, "a/#/b")


def test_development_allows_the_rest() -> None:
    rules = DevAcl()
    assert rules.may_publish(ANN, "a/b")
    assert rules.may_publish(ANN, "$SYSTEM/b"), "another name that only starts alike"
    assert rules.may_subscribe(ANN, "#")
    assert rules.may_receive(ANN, "$SYS/x")
    assert rules.generation == 0


def test_replacing_the_rules_voids_what_was_decided() -> None:
    rules = acl("allow all a/%c")
    assert rules.may_publish(ANN, "a/pump-1")
    before = rules.generation
    rules.replace(load_rules([{"permit": "allow", "action": "all", "filter": "b/%c"}]))
    assert rules.generation > before
    assert not rules.may_publish(ANN, "a/pump-1")
    assert rules.may_publish(ANN, "b/pump-1")


def test_the_compiled_rules_are_bounded() -> None:
    rules = acl("allow all a/%c")
    for number in range(COMPILED_MAX + 10):
        assert rules.may_publish(Principal("u", f"c{number}", ""), f"a/c{number}")
    assert rules.statistics()["compiled"] == COMPILED_MAX


def test_rules_come_from_toml() -> None:
    rules = load_rules_toml('[[rule]]\npermit = "deny"\naction = "publish"\nfilter = "a/%u"\nuser = "ann"\n')
    assert rules == (AclRule(False, "publish", "a/%u", "ann"),)
    assert load_rules_toml("") == ()


GOOD = {"permit": "allow", "action": "all", "filter": "a"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"permit": "maybe"}, "permit must be allow or deny"),
        ({"action": "read"}, "action must be one of"),
        ({"filter": "a/#/b"}, "filter 'a/#/b'"),
        ({"filter": ""}, "filter must be text"),
        ({"filter": 3}, "filter must be text"),
        ({"filter": "$%u/x"}, "no placeholder"),
        ({"filter": "$share/g/x"}, "without its prefix"),
        ({"filter": "$replay/0/x"}, "without its prefix"),
        ({"user": ""}, "user must be text"),
        ({"users": "ann"}, "has no key 'users'"),
    ],
)
def test_a_wrong_rule_is_named(change: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigurationError, match=r"rule 2") as caught:
        load_rules([GOOD, GOOD | change])
    assert why in str(caught.value)


def test_wrong_documents_are_refused() -> None:
    for text in ("=", "x = 1", "rule = 1", "[rule]\nfilter = 'a'", "rule = [1]"):
        with pytest.raises(ConfigurationError):
            load_rules_toml(text)
    with pytest.raises(ConfigurationError, match="needs permit"):
        load_rules([{"filter": "a", "action": "all"}])
    with pytest.raises(ConfigurationError, match="at most"):
        load_rules([GOOD] * (RULES_MAX + 1))


LEVELS = st.sampled_from(["a", "b", "", "$SYS", "pump-1", "ann"])
NAMES = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)


@st.composite
def filters(draw: st.DrawFn, *levels: str) -> str:
    body = draw(st.lists(st.sampled_from(["a", "b", "", "+", "$SYS", "pump-1", *levels]), max_size=4))
    tail = draw(st.sampled_from([[], ["#"]]))
    return "/".join([*body, *tail]) or "+"


RULES = st.lists(
    st.builds(
        AclRule,
        allow=st.booleans(),
        action=st.sampled_from(["publish", "subscribe", "all"]),
        topic_filter=filters("%c", "%u", "x-%c"),
        user=st.sampled_from([None, "ann", "bob"]),
        client_id=st.sampled_from([None, "pump-1"]),
    ),
    max_size=6,
)
PRINCIPALS = st.builds(
    Principal,
    name=st.sampled_from(["ann", "bob", "a/b", "+"]),
    client_id=st.sampled_from(["pump-1", "a", "#", "$SYS", ""]),
    peer=st.just(""),
)


@given(
    rules=RULES,
    principal=PRINCIPALS,
    topic_filter=filters(),
    topic_name=NAMES,
    prefix=st.sampled_from(["", "$share/g/", "$replay/0/"]),
)
@example(
    rules=[AclRule(False, "all", "a/+"), AclRule(True, "all", "a/#")],
    principal=ANN,
    topic_filter="a/#",
    topic_name="a/b",
    prefix="",
)
def test_a_granted_subscription_never_matches_a_name_that_delivery_denies(
    rules: list[AclRule], principal: Principal, topic_filter: str, topic_name: str, prefix: str
) -> None:
    decided = Acl(rules)
    if decided.may_subscribe(principal, prefix + topic_filter) and matches(topic_filter, topic_name):
        assert decided.may_receive(principal, topic_name)


@given(rules=RULES, principal=PRINCIPALS, topic_name=NAMES)
def test_a_single_name_is_granted_exactly_when_it_may_be_received(
    rules: list[AclRule], principal: Principal, topic_name: str
) -> None:
    decided = Acl(rules)
    assert decided.may_subscribe(principal, topic_name) == decided.may_receive(principal, topic_name)


@given(rules=RULES, principal=PRINCIPALS, topic_name=NAMES)
def test_sys_is_open_only_by_a_rule_that_names_it(rules: list[AclRule], principal: Principal, topic_name: str) -> None:
    name = f"$SYS/{topic_name}"
    decided = Acl(rules)
    assert not decided.may_publish(principal, name)
    if decided.may_receive(principal, name):
        assert any(rule.allow and rule.topic_filter.startswith("$SYS") for rule in rules)
