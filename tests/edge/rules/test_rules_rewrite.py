"""Topic rewrite: which rule counts, what it makes of a name or filter, and what the configuration refuses."""

from __future__ import annotations

from typing import Any

import pytest
from support.edges import edge_config, memory_edge, mqtt_address
from support.wire_client import connected

from edge.access.principal import Principal
from edge.rules.rewrite import load_rewrites
from edge.wire import (
    Puback,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from schemas.errors import ConfigurationError

WHO = Principal("ann", "c-1", "192.0.2.1")


def rule(action: str, topic_filter: str, regex: str, destination: str) -> dict[str, Any]:
    return {"action": action, "filter": topic_filter, "regex": regex, "destination": destination}


EMQX = load_rewrites(
    [
        rule("all", "y/+/z/#", r"^y/(.+)/z/(.+)$", "y/z/$2"),
        rule("all", "x/#", r"^x/y/(.+)$", "z/y/x/$1"),
        rule("all", "x/y/+", r"^x/y/(\d+)$", "z/y/$1"),
    ]
)


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("y/a/z/b", "y/z/b"),
        ("y/def", "y/def"),
        ("x/1/2", "x/1/2"),
        ("x/y/2", "z/y/2"),
        ("x/y/z", "z/y/x/z"),
    ],
)
def test_the_last_rule_that_matches_counts_as_in_emqx(text: str, becomes: str) -> None:
    assert EMQX.topic_name(text, WHO) == becomes
    assert EMQX.topic_filter(text, WHO) == becomes


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("$share/g/old/+/a", "$share/g/new/+/a"),
        ("$exclusive/old/a", "$exclusive/new/a"),
        ("$replay/-1h/old/a", "$replay/-1h/new/a"),
        ("$replay/-1h/now/old/a", "$replay/-1h/now/new/a"),
        ("$replay/never/old/a", "$replay/never/old/a"),
        ("old/#", "new/#"),
        ("$share/g", "$share/g"),
    ],
)
def test_what_stands_in_front_of_a_filter_stays(text: str, becomes: str) -> None:
    rewrites = load_rewrites([rule("subscribe", "old/#", "^old/(.*)$", "new/$1")])
    assert rewrites.topic_filter(text, WHO) == becomes
    assert rewrites.topic_name("old/a", WHO) == "old/a"


def test_client_id_and_user_name_are_put_in_unless_they_would_be_more_than_a_level() -> None:
    rewrites = load_rewrites([rule("publish", "me/#", "^me/(.*)$", "of/%u/%c/$1")])
    assert rewrites.topic_name("me/a", WHO) == "of/ann/c-1/a"
    assert rewrites.topic_name("me/a", Principal("a/b", "c", "")) == "me/a"
    assert rewrites.topic_name("me/%u", WHO) == "of/ann/c-1/%u"
    assert not rewrites.changes_filters


def test_a_regular_expression_that_would_backtrack_for_ever_takes_no_time() -> None:
    rewrites = load_rewrites([rule("publish", "a/#", r"^a/((x+)+)+$", "b")])
    assert rewrites.topic_name("a/" + "x" * 1_000 + "!", WHO) == "a/" + "x" * 1_000 + "!"


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (rule("write", "a", "a", "b"), "rule 1: action must be one of publish, subscribe, all"),
        (rule("all", "a/#/b", "a", "b"), "filter 'a/#/b'"),
        (rule("all", "$share/g/a", "a", "b"), "without its prefix"),
        (rule("all", "a", "(a", "b"), "RE2 does not take"),
        (rule("all", "a", "(?<=x)a", "b"), "RE2 does not take"),
        (rule("all", "a", "a" * 1_025, "b"), "longer than 1024"),
        (rule("all", "a", "a", "b/$1"), "has $1, the regular expression has 0 groups"),
        (rule("publish", "a", "a", "b/#"), "nobody can publish to wildcards"),
        ({"action": "all", "filter": "a"}, "needs exactly action, filter, regex, destination"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(table: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        edge_config(rewrite=[table])
    assert why in str(refused.value)


async def test_publish_subscribe_unsubscribe_and_will_go_by_the_new_names_on_a_real_edge() -> None:
    tables = [
        rule("all", "old/#", "^old/(.*)$", "new/$1"),
        rule("publish", "bad/#", "^bad/(.*)$", "$1"),
        rule("publish", "sys/#", "^sys/(.*)$", "$SYS/$1"),
    ]
    async with memory_edge(rewrite=tables) as edge:
        address = mqtt_address(edge)
        async with connected(address, "reader") as reader, connected(address, "new-reader") as second:
            await reader.send(Subscribe(1, (SubscriptionRequest("old/+", 1),)))
            await reader.receive(Suback)
            await second.send(Subscribe(1, (SubscriptionRequest("new/#", 1),)))
            await second.receive(Suback)
            will = Will("old/will", b"gone", 1)
            async with connected(address, "writer", will=will) as writer:
                await writer.send(Publish(b"old/a", b"1", 1, packet_id=1))
                assert (await writer.receive(Puback)).reason_code is ReasonCode.SUCCESS
                await writer.send(Publish(b"bad/", b"1", 1, packet_id=2))
                assert (await writer.receive(Puback)).reason_code is ReasonCode.TOPIC_NAME_INVALID
                await writer.send(Publish(b"sys/x", b"1", 1, packet_id=3))  # rights are those to the new name
                assert (await writer.receive(Puback)).reason_code is ReasonCode.NOT_AUTHORIZED
            for client in (reader, second):
                got = {(await client.receive(Publish)).topic_name_utf8 for _ in range(2)}
                assert got == {b"new/a", b"new/will"}
            await second.send(Unsubscribe(2, ("old/#",)))
            assert (await second.receive(Unsuback)).reason_codes == (ReasonCode.SUCCESS,)
