"""Topic Names and Topic Filters (§4.7), and UTF-8 (§1.5.3)."""

from __future__ import annotations

import pytest
from conformance.v311.flows import frame, grant, is_answered, is_cut, messages_until, string, subscribed
from support.conformance import Clients, new_topic_name

from edge.wire import Puback, Publish, Suback, Subscribe, SubscriptionRequest

# (Topic Filter, Topic Names that match, Topic Names that do not), all of them behind a fresh first level
MATCHES = [
    ("a/b", ["a/b"], ["a", "a/b/c", "a/B", "A/b", "a/b/", "/a/b", "a//b", "a/b ", " a/b"]),
    ("a/#", ["a", "a/", "a/b", "a/b/c", "a//", "a/ü"], ["b", "A/b", "ab", "a b/c", "/a"]),
    ("a/+", ["a/b", "a/", "a/$x"], ["a", "a/b/c", "a/b/", "b/a", "a//"]),
    ("+", ["a", "b", "ü", " "], ["a/b", "a/", "/a", "/"]),
    ("+/+", ["a/b", "/", "a/", "/b"], ["a", "a/b/c", "//"]),
    ("/+", ["/a", "/"], ["a", "a/b", "//a"]),
    ("a/+/c", ["a/b/c", "a//c"], ["a/c", "a/b/b/c", "a/b/c/d", "a/b/C"]),
    ("+/b/#", ["a/b", "a/b/c", "/b", "a/b/c/d/e"], ["b", "a/c/b", "b/b2"]),
    ("+/+/+/#", ["a/b/c", "a/b/c/d", "//"], ["a/b", "/"]),
    ("#", ["a", "a/b", "/", "//", "a/b/c/d/e/f/g", " "], []),
    ("", [""], ["a", "/"]),
]


@pytest.mark.statement(
    "MQTT311-4.7.1-2", "MQTT311-4.7.1-3", "MQTT311-3.3.2-3", "MQTT311-4.7.3-4", "MQTT311-4.7.3-1", "MQTT311-4.7.1-1"
)
@pytest.mark.parametrize(
    ("behind", "match", "differ"), MATCHES, ids=[behind or "empty level" for behind, *_ in MATCHES]
)
async def test_what_a_filter_matches(clients: Clients, behind: str, match: list[str], differ: list[str]) -> None:
    base = new_topic_name()
    client, witness = await subscribed(clients, f"{base}/{behind}", qos=1), await subscribed(clients, base + "/#")
    publisher, marker = await clients.connect(), new_topic_name()
    for rest in (*differ, *match):
        topic_name = f"{base}/{rest}"
        await publisher.publish(topic_name, topic_name.encode(), 1)
        await witness.take_message()
    await grant(client, marker, qos=1)
    await publisher.publish(marker, b"marker", 1)
    messages = await messages_until(client, b"marker")
    assert {each.payload.decode() for each in messages} == {f"{base}/{rest}" for rest in match}
    assert all(each.topic_name_utf8 == each.payload for each in messages)
    assert len(messages) == len(match)


@pytest.mark.statement("MQTT311-4.7.1-2", "MQTT311-3.3.2-3")
async def test_a_multi_level_wildcard_matches_the_parent_and_its_siblings_not(clients: Clients) -> None:
    base = new_topic_name()
    client, publisher = await subscribed(clients, base + "/#", qos=1), await clients.connect()
    witness = await subscribed(clients, base + "x", qos=1)
    await publisher.publish(base + "x", b"no", 1)
    await witness.take_message()
    await publisher.publish(base, b"parent", 1)
    assert (await client.take_message()).topic_name_utf8 == base.encode()


WRONG_FILTERS = ["a#", "#/a", "a/#/b", "a/b#", "##", "a+", "+a", "a/b+", "a/+b/c", "++", "a/#b", "#a", "a/+#"]


@pytest.mark.statement("MQTT311-4.7.1-2", "MQTT311-4.7.1-3", "MQTT311-4.8.0-1", "MQTT311-3.8.4-5")
@pytest.mark.parametrize("topic_filter", WRONG_FILTERS)
async def test_a_wildcard_out_of_place_is_never_granted(clients: Clients, topic_filter: str) -> None:
    """A server closes, or refuses the filter with 0x80."""
    client = await clients.connect()
    await client.send(Subscribe(1, (SubscriptionRequest(topic_filter, 1),)))
    try:
        suback = await client.receive(Suback)
    except AssertionError:
        assert client.is_closed
    else:
        assert [int(code) for code in suback.reason_codes] == [0x80]


@pytest.mark.statement("MQTT311-3.3.2-2", "MQTT311-4.7.1-1", "MQTT311-4.8.0-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("topic_name", [b"a/+", b"#", b"a/#", b"+", b"a+b", b"a#", b"+/a"])
async def test_a_topic_name_has_no_wildcards(clients: Clients, topic_name: bytes, qos: int) -> None:
    await is_cut(clients, frame(0x30 | qos << 1, string(topic_name) + b"\0\x01" * (qos > 0)), b"\xc0\x00")


@pytest.mark.statement("MQTT311-4.7.3-1", "MQTT311-4.8.0-1")
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(frame(0x30, b"\0\0x"), id="PUBLISH"),
        pytest.param(frame(0x32, b"\0\0\0\1x"), id="PUBLISH with QoS 1"),
        pytest.param(frame(0x82, b"\0\1\0\0\0"), id="SUBSCRIBE"),
        pytest.param(frame(0xA2, b"\0\1\0\0"), id="UNSUBSCRIBE"),
    ],
)
async def test_a_name_or_filter_has_at_least_one_character(clients: Clients, data: bytes) -> None:
    await is_cut(clients, data)


@pytest.mark.statement("MQTT311-4.7.2-1")
@pytest.mark.parametrize("topic_filter", ["#", "+/{}", "+/{}/#", "+/+/{}"])
async def test_a_wildcard_first_matches_no_dollar_name(clients: Clients, topic_filter: str) -> None:
    """Names of the server's own, and names that a client tries to write."""
    level, publisher = new_topic_name().replace("/", "-"), await clients.connect()
    client = await subscribed(clients, topic_filter.format(level), qos=1)
    await subscribed(clients, "$SYS/#")
    for name in (f"$x/{level}", f"$SYS/{level}", f"$x/y/{level}"):
        intruder = await clients.connect()
        await intruder.send(Publish(name.encode(), b"no", 1, packet_id=1))
        await is_answered(intruder, Puback)
    marker = topic_filter.replace("#", "m").replace("+", "m").format(level)
    await publisher.publish(marker, b"marker " + level.encode(), 1)
    messages = await messages_until(client, b"marker " + level.encode())
    assert not [each for each in messages if each.topic_name_utf8.startswith(b"$")]


@pytest.mark.statement("MQTT311-4.7.2-1", "MQTT311-3.3.2-3")
async def test_a_dollar_is_a_character_like_others_behind_the_first(clients: Clients) -> None:
    base = new_topic_name()
    client, publisher = await subscribed(clients, base + "/+/$b", base + "/$a"), await clients.connect()
    for name in (base + "/$x/$b", base + "/$a"):
        await publisher.publish(name, b"x", 1)
        assert (await client.take_message()).topic_name_utf8 == name.encode()


@pytest.mark.statement("MQTT311-4.7.3-3", "MQTT311-3.3.2-1")
async def test_a_topic_name_may_have_65535_bytes(clients: Clients) -> None:
    base = new_topic_name()
    topic_name = base + "/" + "x" * (65_535 - len(base) - 1)
    client, publisher = await subscribed(clients, topic_name, qos=1), await clients.connect()
    await publisher.publish(topic_name, b"long", 1)
    message = await client.take_message()
    assert (message.topic_name_utf8, message.payload) == (topic_name.encode(), b"long")


UNICODE = [
    "ü",
    "日本語/温度",
    "\U0001f321/\U00010000",  # beyond the basic plane
    "e\u0301",  # é, not composed
    "\u00e9",  # é, composed
    "\ufb01\u2126\u212b",  # what normalisation would change
    "\ufeff",
    "a\ufeffb",
    "\u202eright to left",
    " ",
    "\u00a0",
    "\ue000\uf8ff",  # private use
]


@pytest.mark.statement("MQTT311-4.7.3-4", "MQTT311-3.3.2-1", "MQTT311-1.5.3-1", "MQTT311-3.8.3-1", "MQTT311-3.10.3-1")
@pytest.mark.parametrize("text", UNICODE, ids=ascii)
async def test_any_character_may_be_in_a_name(clients: Clients, text: str) -> None:
    topic_name = f"{new_topic_name()}/{text}"
    client, publisher = await subscribed(clients, topic_name, qos=1), await clients.connect()
    await publisher.publish(topic_name, b"x", 1)
    assert (await client.take_message()).topic_name_utf8 == topic_name.encode()
    await client.unsubscribe(topic_name)


@pytest.mark.statement("MQTT311-4.7.3-4", "MQTT311-3.10.4-1")
@pytest.mark.parametrize(
    ("filter_text", "name_text"),
    [("\u00e9", "e\u0301"), ("\u2126", "\u03a9"), ("a", "A"), ("ß", "ss"), ("\uff41", "a"), ("a", "a\u200b")],
    ids=ascii,
)
async def test_names_are_compared_without_normalisation(clients: Clients, filter_text: str, name_text: str) -> None:
    base = new_topic_name()
    client, witness = await subscribed(clients, f"{base}/{filter_text}"), await subscribed(clients, base + "/#")
    publisher = await clients.connect()
    await publisher.publish(f"{base}/{name_text}", b"no", 1)
    assert (await witness.take_message()).payload == b"no"
    await publisher.publish(f"{base}/{filter_text}", b"yes", 1)
    assert (await client.take_message()).payload == b"yes"


@pytest.mark.statement("MQTT311-1.5.3-3")
async def test_a_byte_order_mark_is_a_character_and_stays(clients: Clients) -> None:
    """Also at the beginning, and in a client identifier."""
    topic_name = "\ufeff" + new_topic_name()
    with_mark, without = await subscribed(clients, topic_name, qos=1), await subscribed(clients, topic_name[1:], qos=1)
    publisher = await clients.connect()
    await publisher.publish(topic_name, b"with", 1)
    assert (await with_mark.take_message()).topic_name_utf8 == b"\xef\xbb\xbf" + topic_name[1:].encode()
    await publisher.publish(topic_name[1:], b"without", 1)
    assert (await without.take_message()).payload == b"without"
    await with_mark.ping()
    other = await clients.connect("\ufeff" + publisher.client_id)
    await publisher.ping()
    await other.ping()


ILL_FORMED = {
    "a lone continuation": b"a\x80",
    "cut short": b"a\xc3",
    "over-long slash": b"a\xc0\xaf",
    "over-long U+0000": b"a\xc0\x80",
    "over-long in three": b"a\xe0\x80\xaf",
    "first surrogate": b"a\xed\xa0\x80",
    "last surrogate": b"a\xed\xbf\xbf",
    "a surrogate pair": b"a\xed\xa0\xbd\xed\xb8\x80",
    "above U+10FFFF": b"a\xf4\x90\x80\x80",
    "five bytes": b"a\xf8\x88\x80\x80\x80",
    "FE": b"a\xfe",
    "FF": b"a\xff",
    "Latin-1": "ü/a".encode("latin-1"),
}
PLACES = {
    "PUBLISH": lambda text: frame(0x30, string(text) + b"x"),
    "PUBLISH with QoS 1": lambda text: frame(0x32, string(text) + b"\0\1x"),
    "SUBSCRIBE": lambda text: frame(0x82, b"\0\1" + string(text) + b"\0"),
    "SUBSCRIBE, second filter": lambda text: frame(0x82, b"\0\1\0\1a\0" + string(text) + b"\0"),
    "UNSUBSCRIBE": lambda text: frame(0xA2, b"\0\1" + string(text)),
}


@pytest.mark.statement("MQTT311-1.5.3-1", "MQTT311-3.3.2-1", "MQTT311-3.8.3-1", "MQTT311-3.10.3-1", "MQTT311-4.8.0-1")
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("text", ILL_FORMED.values(), ids=ILL_FORMED)
async def test_ill_formed_utf8_ends_the_connection(clients: Clients, place: object, text: bytes) -> None:
    assert callable(place)
    await is_cut(clients, place(text))


@pytest.mark.statement("MQTT311-1.5.3-2", "MQTT311-4.7.3-2", "MQTT311-4.8.0-1")
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("text", [b"\0", b"a\0", b"\0a", b"a/\0/b"])
async def test_u_0000_ends_the_connection(clients: Clients, place: object, text: bytes) -> None:
    assert callable(place)
    await is_cut(clients, place(text))


@pytest.mark.statement("MQTT311-3.3.2-1")
async def test_the_topic_name_is_the_first_field_of_a_publish(clients: Clients) -> None:
    topic_name = new_topic_name()
    client, publisher = await subscribed(clients, topic_name, qos=1), await clients.connect()
    await publisher.send(frame(0x32, string(topic_name.encode()) + b"\x12\x34" + b"\0\x03abc"))
    assert await publisher.receive(Puback) == Puback(0x1234)
    assert (await client.take_message()).payload == b"\0\x03abc"
