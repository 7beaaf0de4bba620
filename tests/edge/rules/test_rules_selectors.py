"""Selectors: what an expression may be, what it takes, once per message, and the same on every way to a subscriber."""

from __future__ import annotations

from typing import Any

import pytest
from support.edges import edge_config, memory_edge, mqtt_address, until
from support.wire_client import WireClient, connected

from bridge.delivery import Delivery
from bridge.memory_log import MemoryLog
from edge.rules.selectors import SLOW_MAX, SelectorError, Selectors, compile_selector
from edge.wire import Properties, Puback, Publish, ReasonCode, Suback, Subscribe, SubscriptionRequest
from schemas.errors import ConfigurationError
from schemas.message import Message

WARM = "payload.temperature > 20.0"
STORED = Properties(session_expiry_interval_s=600)


def delivery(payload: bytes = b"{}", offset: int = 0, **fields: Any) -> Delivery:
    values: dict[str, Any] = {
        "name": b"site/a/device",
        "qos": 1,
        "retain": False,
        "client_id": "c",
        "user": (),
    } | fields
    headers = [("mqtt.topic", values["name"]), ("mqtt.client_id", values["client_id"].encode())]
    message = Message("", b"", user_properties=values["user"])
    place = ("mqtt.messages", 0, offset)
    return Delivery(
        values["name"], payload, values["qos"], values["retain"], values["client_id"], None, 0, headers, message, *place
    )


def takes(expression: str, of: Delivery) -> bool:
    return Selectors(lambda: 0.0).takes(compile_selector(expression), of)


TAKEN = [
    ('levels[1] == "a" && size(levels) == 3', delivery()),
    ('name.startsWith("site/") && name.matches("^site/[a-c]/")', delivery()),
    ("qos >= 1 && !retain", delivery()),
    ('client_id == "c" && headers["mqtt.client_id"] == "c"', delivery()),
    ('user["unit"] == "C"', delivery(user=(("unit", "C"),))),
    ("payload.temperature > 20.0", delivery(b'{"temperature": 21.5}')),
    ("payload.temperature > 20.0", delivery(b'{"temperature": 21}')),
    ("has(payload.alarm) || payload.level in [1, 2]", delivery(b'{"level": 2}')),
    ("payload.values.exists(v, v > 9)", delivery(b'{"values": [1, 10]}')),
    ("payload == 7", delivery(b"7")),
    ("payload.a.b[1] == null", delivery(b'{"a": {"b": [0, null]}}')),
]
NOT_TAKEN = [
    ('levels[9] == "a"', delivery()),
    ('user["unit"] == "C"', delivery()),
    ("payload.temperature > 20.0", delivery(b'{"temperature": "warm"}')),
    ("payload.temperature > 20.0", delivery(b"no JSON")),
    ("payload.temperature > 20.0", delivery(b'{"temperature": 21, "more": "' + b"x" * 20_000 + b'"}')),
    ("payload.temperature", delivery(b'{"temperature": 1}')),
    ("1 / qos == 1", delivery(qos=0)),
]


@pytest.mark.parametrize(("expression", "of"), TAKEN)
def test_what_is_taken(expression: str, of: Delivery) -> None:
    assert takes(expression, of)


@pytest.mark.parametrize(("expression", "of"), NOT_TAKEN)
def test_what_fails_is_no_match_and_counted(expression: str, of: Delivery) -> None:
    selectors = Selectors(lambda: 0.0)
    assert not selectors.takes(compile_selector(expression), of)
    assert selectors.statistics()["errors"] == 1


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("", "1 to 1024 characters"),
        ("a" * 1_025, "1 to 1024 characters"),
        ("qos >", "does not compile"),
        ("temperature > 1", "uses 'temperature'; there are client_id, headers"),
        ("now() > 1", "uses now()"),
        ("payload.a.map(v, v + 1) == []", "map and filter are too slow"),
        ("payload.a.all(v, payload.a.all(w, v > w))", "one of all, exists, exists_one at most"),
        ("(" * 400 + "1" + ")" * 400, "does not compile"),
    ],
)
def test_what_cannot_be_one_is_refused_with_the_reason(expression: str, why: str) -> None:
    with pytest.raises(SelectorError) as refused:
        compile_selector(expression)
    assert why in str(refused.value)
    with pytest.raises(ConfigurationError) as wrong:
        edge_config(selectors=[{"filter": "a", "expression": expression}])
    assert "[[selectors]] 1: " in str(wrong.value)


def test_an_expression_is_asked_once_per_message() -> None:
    selectors = Selectors(lambda: 0.0)
    assert selectors.compiled(WARM) is selectors.compiled(WARM)
    message = delivery(b'{"temperature": 21.5}')
    for _ in range(500):
        assert selectors.takes(selectors.compiled(WARM), message)
    assert selectors.takes(selectors.compiled("qos == 1"), message)
    assert selectors.statistics()["evaluations"] == 2


def test_an_expression_that_is_slow_too_often_is_stopped() -> None:
    now = iter(range(1_000))
    selectors = Selectors(lambda: float(next(now)))
    selector = selectors.compiled("qos == 1")
    verdicts = [selectors.takes(selector, delivery(offset=number)) for number in range(SLOW_MAX + 2)]
    assert verdicts == [True] * SLOW_MAX + [False] * 2
    assert selectors.statistics()["stopped"] == 2


async def subscribe(client: WireClient, *names: str, selector: str | None = None, qos: int = 1) -> Suback:
    properties = Properties(user_properties=(("selector", selector),)) if selector is not None else None
    await client.send(Subscribe(1, tuple(SubscriptionRequest(name, qos) for name in names), properties))
    return await client.receive(Suback)


async def publish(client: WireClient, temperature: float, name: bytes = b"t/a", *, retain: bool = False) -> None:
    await client.send(Publish(name, b'{"temperature": %.1f}' % temperature, 1, retain, packet_id=1))
    assert (await client.receive(Puback)).reason_code is ReasonCode.SUCCESS


async def take(client: WireClient) -> float:
    got = await client.receive(Publish)
    if got.qos:
        await client.send(Puback(got.packet_id))
    return float(got.payload.split()[1].rstrip(b"}"))


async def test_live_retained_and_beside_another_subscription_on_a_real_edge() -> None:
    async with memory_edge() as edge:
        address = mqtt_address(edge)
        async with connected(address, "writer") as writer, connected(address, "reader") as reader:
            await publish(writer, 10, b"t/cold", retain=True)
            await publish(writer, 30, b"t/warm", retain=True)
            assert (await subscribe(reader, "t/+", selector=WARM)).reason_codes == (1,)
            assert await take(reader) == 30
            async with connected(address, "all") as everything:
                await subscribe(everything, "t/+", qos=0)
                assert sorted([await take(everything) for _ in range(2)]) == [10, 30]
                for temperature in (1, 21, 2, 22):
                    await publish(writer, temperature)
                assert [await take(everything) for _ in range(4)] == [1, 21, 2, 22]
            assert [await take(reader) for _ in range(2)] == [21, 22]
            await subscribe(reader, "t/a")  # without a selector, and of the same client: it gets all of these
            for temperature in (3, 23):
                await publish(writer, temperature)
            assert [await take(reader) for _ in range(2)] == [3, 23]
            assert edge.services.selectors.statistics()["errors"] == 0


async def test_a_wrong_selector_is_refused_for_the_whole_packet_and_the_reason_string_says_why() -> None:
    async with memory_edge() as edge, connected(mqtt_address(edge), "reader") as reader:
        suback = await subscribe(reader, "a", "b", selector="qos >")
        assert suback.reason_codes == (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,) * 2
        assert suback.properties is not None
        assert "does not compile" in (suback.properties.reason_string or "")
        assert edge.services.table.statistics()["subscriptions"] == 0


async def test_a_stored_session_keeps_its_selector_on_another_edge_and_for_what_it_has_missed() -> None:
    log = MemoryLog()
    async with memory_edge(log, node_id="edge-1") as one, memory_edge(log, node_id="edge-2") as two:
        async with connected(mqtt_address(one), "reader", properties=STORED) as reader:
            await subscribe(reader, "t/+", selector=WARM)
        async with connected(mqtt_address(one), "writer") as writer:
            for temperature in (1, 21, 2, 22):
                await publish(writer, temperature)
            async with connected(mqtt_address(two), "reader", properties=STORED, clean_start=False) as reader:
                assert [await take(reader) for _ in range(2)] == [21, 22]
                for temperature in (3, 23):
                    await publish(writer, temperature)
                assert await take(reader) == 23


async def test_a_slow_reader_gets_from_the_log_what_its_selector_takes() -> None:
    slow = Properties(receive_maximum=2)
    async with (
        memory_edge(limits={"buffer_messages_max": 4}) as edge,
        connected(mqtt_address(edge), "writer") as writer,
        connected(mqtt_address(edge), "reader", properties=slow) as reader,
    ):
        await subscribe(reader, "t/+", selector=WARM)
        for number in range(60):
            await publish(writer, number)
        assert [await take(reader) for _ in range(39)] == list(range(21, 60))


async def test_members_of_a_shared_subscription_have_one_selector() -> None:
    async with memory_edge() as edge:
        address = mqtt_address(edge)
        async with connected(address, "a") as a, connected(address, "b") as b, connected(address, "writer") as writer:
            assert (await subscribe(a, "$share/g/t/+", selector=WARM)).reason_codes == (1,)
            suback = await subscribe(b, "$share/g/t/+")
            assert suback.reason_codes == (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,)
            assert suback.properties is not None
            assert "another selector" in (suback.properties.reason_string or "")
            for temperature in (1, 21, 2, 22):
                await publish(writer, temperature)
            assert [await take(a) for _ in range(2)] == [21, 22]
            (group,) = edge.services.shared.groups().values()
            await until(lambda: group.statistics()["acknowledged"] == 4, "what nobody takes is done with, too")


async def test_the_configuration_gives_a_selector_to_clients_that_cannot_say_one() -> None:
    rules = [{"filter": "t/#", "expression": WARM, "client_id": "old"}]
    async with memory_edge(selectors=rules) as edge:
        address = mqtt_address(edge)
        async with connected(address, "old", 4) as old, connected(address, "new") as new:
            assert (await subscribe(old, "t/+", qos=0)).reason_codes == (0,)
            await subscribe(new, "t/+", qos=0)
            async with connected(address, "writer") as writer:
                for temperature in (1, 21):
                    await publish(writer, temperature)
            assert await take(old) == 21
            assert [await take(new) for _ in range(2)] == [1, 21]


async def test_a_replay_has_its_selector_too_and_its_end_marker_comes_all_the_same() -> None:
    async with memory_edge() as edge:
        address = mqtt_address(edge)
        async with connected(address, "writer") as writer, connected(address, "reader") as reader:
            for temperature in (1, 21, 2, 22):
                await publish(writer, temperature)
            name = "$replay/beginning/now/t/+"
            assert (await subscribe(reader, name, selector=WARM)).reason_codes == (1,)
            assert [await take(reader) for _ in range(2)] == [21, 22]
            assert (await reader.receive(Publish)).topic_name_utf8 == b"$replay/end"
