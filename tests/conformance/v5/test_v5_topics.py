"""Topic names, topic filters and what matches what (§4.7)."""

from __future__ import annotations

import pytest
from support.conformance import Client, Clients, frame, new_topic_name, publish_frame, string
from support.limited import lacks_wildcards

from edge.wire import ReasonCode, Suback

NAME_REFUSED = (ReasonCode.TOPIC_NAME_INVALID, ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR)


async def _filter_is_refused(client: Client, topic_filter: bytes) -> None:
    """By SUBACK with 0x8F, or by closing."""
    await client.send(frame(0x82, b"\0\7\0", string(topic_filter), b"\0"))
    try:
        suback = await client.take(Suback)
    except AssertionError:
        refused = (ReasonCode.TOPIC_FILTER_INVALID, ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR)
        await client.closed_for(*refused)
    else:
        assert suback.reason_codes == (ReasonCode.TOPIC_FILTER_INVALID,)


@pytest.mark.statement("MQTT5-3.3.2-2", "MQTT5-4.7.0-1")
@pytest.mark.parametrize("topic_name", ["#", "+", "a/#", "a/+/b", "a+", "#a"])
async def test_a_topic_name_with_wildcards_is_refused(clients: Clients, topic_name: str) -> None:
    client = await clients.connect()
    await client.send(publish_frame(topic_name))
    await client.closed_for(*NAME_REFUSED)


@pytest.mark.statement("MQTT5-4.7.3-1")
async def test_an_empty_topic_name_is_refused(clients: Clients) -> None:
    client = await clients.connect()
    await client.send(publish_frame(""))
    await client.closed_for(*NAME_REFUSED)


@pytest.mark.statement("MQTT5-4.7.3-1")
async def test_an_empty_topic_filter_is_refused(clients: Clients) -> None:
    await _filter_is_refused(await clients.connect(), b"")


@pytest.mark.statement("MQTT5-4.7.3-2")
async def test_u0000_in_topic_name_and_filter_is_refused(clients: Clients) -> None:
    client = await clients.connect()
    await client.send(publish_frame(b"a\0b"))
    await client.closed_for(*NAME_REFUSED)
    await _filter_is_refused(await clients.connect(), b"a\0b")


@pytest.mark.statement("MQTT5-4.7.1-1")
@pytest.mark.parametrize("topic_filter", ["a#", "#/a", "a/#/b", "a/b#", "##", "a/#b"])
async def test_a_misplaced_number_sign_is_refused(clients: Clients, topic_filter: str) -> None:
    await _filter_is_refused(await clients.connect(), topic_filter.encode())


@pytest.mark.statement("MQTT5-4.7.1-2")
@pytest.mark.parametrize("topic_filter", ["a+", "+a", "a/b+/c", "++", "a/+b"])
async def test_a_misplaced_plus_sign_is_refused(clients: Clients, topic_filter: str) -> None:
    await _filter_is_refused(await clients.connect(), topic_filter.encode())


@pytest.mark.statement("MQTT5-3.3.2-3", "MQTT5-4.7.1-1", "MQTT5-4.7.1-2", "MQTT5-4.7.3-4")
@pytest.mark.parametrize(
    ("topic_filter", "matching", "others"),
    [
        ("a/b", ["a/b"], ["A/b", "a/b/", "/a/b", "a//b", "a", "a/b/c", "a/B"]),
        ("a/#", ["a", "a/", "a/b", "a/b/c", "a//c"], ["ab", "A", "b/a"]),
        ("a/+", ["a/b", "a/"], ["a", "a/b/c", "a//", "b/a"]),
        ("a/+/c", ["a/b/c", "a//c"], ["a/c", "a/b/b/c", "a/b/c/d"]),
        ("+/+", ["/b", "b/", "a/b"], ["a", "a/b/c"]),
        ("+/b/#", ["a/b", "/b/c/d"], ["a/c", "b"]),
        ("a/ b", ["a/ b"], ["a/b", "a/b "]),
        ("é", ["\u00e9"], ["e\u0301", "e"]),
    ],
)
async def test_what_a_filter_matches(
    clients: Clients, topic_filter: str, matching: list[str], others: list[str]
) -> None:
    """One level above all of it keeps the names apart from those of other tests; nothing is normalised."""
    above = new_topic_name()
    client, witness = await clients.connect(), await clients.connect()
    if ("+" in topic_filter or "#" in topic_filter) and await lacks_wildcards(client):
        return
    await client.subscribe(f"{above}/{topic_filter}")
    names = [f"{above}/{name}" for name in (*others, *matching)]
    await witness.subscribe(*names)
    for name in names:
        await witness.publish(name, b"x", qos=1)
    for _ in names:
        await witness.take_message()
    got = [(await client.message()).topic_name_utf8.decode() for _ in matching]
    assert sorted(got) == sorted(f"{above}/{name}" for name in matching)
    await client.ping()


@pytest.mark.statement("MQTT5-4.7.2-1")
@pytest.mark.parametrize("topic_filter", ["#", "+/{}", "+/#"])
async def test_a_filter_that_begins_with_a_wildcard_matches_no_dollar_topic(
    clients: Clients, topic_filter: str
) -> None:
    """If a server lets clients publish to such a name at all."""
    name = new_topic_name()
    client, witness = await clients.connect(), await clients.connect()
    if await lacks_wildcards(client):
        return
    await client.subscribe(topic_filter.format(name))
    await witness.subscribe(f"$headwater-conformance/{name}", f"x/{name}")
    code = await witness.publish(f"$headwater-conformance/{name}", b"hidden", qos=1)
    if not code.is_error and code is not ReasonCode.NO_MATCHING_SUBSCRIBERS:
        await witness.take_message()
    await witness.publish(f"x/{name}", b"marker", qos=1)
    while not (message := await client.take_message()).topic_name_utf8.decode().endswith(name):
        assert not message.topic_name_utf8.startswith(b"$")
    assert message.payload == b"marker"


@pytest.mark.statement("MQTT5-4.7.3-3")
async def test_the_longest_topic_name_is_delivered_or_refused_as_such(clients: Clients) -> None:
    """A server may know less than 65,535 bytes; then it says so."""
    topic_name = (new_topic_name() + "/" + "x" * 65_535)[:65_535]
    client = await clients.connect()
    [code] = (await client.subscribe(topic_name)).reason_codes
    if code.is_error:
        assert code in (ReasonCode.TOPIC_FILTER_INVALID, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, 0x97)
        assert (await client.publish(topic_name, b"x", qos=1)).is_error
    else:
        await client.publish(topic_name, b"x")
        assert (await client.message()).topic_name_utf8.decode() == topic_name
