"""An edge is stopped (SIGSTOP) and goes on 15 s later; meanwhile its client's session has gone on at another edge.

The client leaves flows of every kind in the middle, finishes them on the new edge, and begins others there. What the
old edge still had in hand, and what the client had sent to it into the void, must change nothing: neither the session,
which is then taken over once more, by the old edge, nor what subscribers get of QoS 2 messages. The old edge closes the
old connection and serves its other client.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from benchmarks.sessions.fleet import Fleet, until
from benchmarks.sessions.outcome import Outcome
from benchmarks.sessions.wire import NotAnswered, WireClient, dial
from edge.client import MqttClient, ReconnectPolicy
from edge.wire import (
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)

PAUSE_S, PAUSE_QUICK_S = 15.0, 10.0
CLOSED_WITHIN_S = 5.0
USABLE_WITHIN_S = 10.0
EXPIRY_S = 3_600


@dataclass(slots=True)
class _Scene:
    """Who takes part. `observer` counts what the client has published with QoS 2."""

    fleet: Fleet
    outcome: Outcome
    publisher: MqttClient
    observer: MqttClient
    bystander: MqttClient
    observed: Counter[bytes] = field(default_factory=Counter)
    seen_aside: list[bytes] = field(default_factory=list)
    released: Publish = field(init=False)  # to the client, after its PUBREC
    sent: Publish = field(init=False)  # without
    unacknowledged: Publish = field(init=False)

    @property
    def client_id(self) -> str:
        return f"{self.fleet.tag}-s"

    def name(self, last: str) -> str:
        return f"{self.fleet.tag}/{last}"

    async def publish(self, last: str, payload: bytes, qos: int) -> None:
        future = self.publisher.publish(self.name(last), payload, qos)
        assert future is not None
        await future

    def incoming(self, payload: bytes, packet_id: int, *, dup: bool = False) -> Publish:
        return Publish(self.name("in").encode(), payload, 2, False, dup, packet_id)


async def run(fleet: Fleet, pause_s: float = PAUSE_S) -> Outcome:
    """The first edge is paused, the second one has the session then, publisher and observer are on the third."""
    first, second, third = fleet.edges
    outcome = Outcome({"paused seconds": pause_s})
    policy = ReconnectPolicy(wait_first_s=0.1, wait_max_s=0.5)
    scene = _Scene(
        fleet,
        outcome,
        MqttClient(*third.address, f"{fleet.tag}-p"),
        MqttClient(*third.address, f"{fleet.tag}-o", receive_maximum=100),
        MqttClient(*first.address, f"{fleet.tag}-b", clean_start=False, session_expiry_s=EXPIRY_S, reconnect=policy),
    )
    scene.observer.on_message(lambda packet: scene.observed.update([packet.payload]))
    scene.bystander.on_message(lambda packet: scene.seen_aside.append(packet.payload))
    clients = (scene.publisher, scene.observer, scene.bystander)
    try:
        for client in clients:
            client.on_close(partial(outcome.closed, client.client_id))
            await client.connect()
        await scene.observer.subscribe(scene.name("in"), 2)
        await scene.bystander.subscribe(scene.name("aside"), 1)
        async with dial(first.address) as old:
            await _before(scene, old)
            first.pause()
            began = asyncio.get_running_loop().time()
            await _into_the_void(scene, old)
            async with dial(second.address) as new:
                await _elsewhere(scene, new, began)
                await asyncio.sleep(max(0.0, began + pause_s - asyncio.get_running_loop().time()))
                first.go_on()
                await _awake(scene, old)
                await _goes_on(scene, new)
            async with dial(first.address) as again:
                await _back(scene, again)
        await _others(scene)
    except (NotAnswered, TimeoutError) as error:
        outcome.faults.append(f"{type(error).__name__}: {error}")
        raise
    finally:
        for client in clients:
            await client.disconnect()
    return outcome


async def _before(scene: _Scene, old: WireClient) -> None:
    """Outgoing flows of 0 (released), 1 (sent) and 2 (QoS 1, sent); incoming flow 10 after its PUBREC."""
    await old.connect(scene.client_id)
    await subscribe(old, scene.name("out"), scene.name("gone"))
    for number in range(2):
        await scene.publish("out", b"%d" % number, 2)
    scene.released = await old.receive(Publish)
    scene.sent = await old.receive(Publish)
    await old.send(Pubrec(scene.released.packet_id))
    await old.receive(Pubrel)
    await scene.publish("out", b"2", 1)
    scene.unacknowledged = await old.receive(Publish)
    await old.send(scene.incoming(b"in-10", 10))
    await old.receive(Pubrec)


async def _into_the_void(scene: _Scene, old: WireClient) -> None:
    """The stopped edge finds all this when it goes on: ends of flows, new flows, other subscriptions."""
    await old.send(
        Pubcomp(scene.released.packet_id),
        Pubrec(scene.sent.packet_id),
        Puback(scene.unacknowledged.packet_id),
        Pubrel(10),
        scene.incoming(b"in-11", 11),
        scene.incoming(b"void", 12),
        Subscribe(2, (SubscriptionRequest(scene.name("void"), 1),)),
        Unsubscribe(3, (scene.name("out"),)),
    )
    await scene.publish("aside", b"during", 1)


async def _elsewhere(scene: _Scene, new: WireClient, began: float) -> None:
    """The session is there as it was; its flows end; others begin: 3 and 4 (out), 30 (in)."""
    outcome = scene.outcome
    connack = await new.connect(scene.client_id)
    outcome.figures["seconds to move"] = asyncio.get_running_loop().time() - began
    outcome.expect(connack.session_present, "there is no session on the second edge")
    outcome.expect_equal(
        "sent again by the second edge", await _shown(new, 3), ["PUBLISH 1 dup", "PUBLISH 2", "PUBREL"]
    )
    await new.send(Pubcomp(scene.released.packet_id), Puback(scene.unacknowledged.packet_id))
    await finish(new, scene.sent.packet_id)
    await new.send(Pubrel(10))
    await new.receive(Pubcomp)
    await new.send(scene.incoming(b"in-11", 11, dup=True))
    await new.receive(Pubrec)
    await new.send(Pubrel(11))
    await new.receive(Pubcomp)
    await new.send(Unsubscribe(4, (scene.name("gone"),)))
    await new.receive(Unsuback)
    await subscribe(new, scene.name("later"))
    await scene.publish("out", b"3", 2)
    scene.released = await new.receive(Publish)
    await new.send(Pubrec(scene.released.packet_id))
    await new.receive(Pubrel)
    await scene.publish("later", b"4", 2)
    scene.sent = await new.receive(Publish)
    await new.send(scene.incoming(b"in-30", 30))
    await new.receive(Pubrec)


async def _awake(scene: _Scene, old: WireClient) -> None:
    """The old edge goes on: it answers nothing that would promise something, and closes the old connection."""
    began = asyncio.get_running_loop().time()
    answers = [type(each).__name__ for each in await old.until_closed(CLOSED_WITHIN_S)]
    scene.outcome.figures["seconds to close the old connection"] = asyncio.get_running_loop().time() - began
    scene.outcome.figures["the old edge's last words"] = ", ".join(answers) or "none"
    scene.outcome.expect(not set(answers) - {"Disconnect"}, f"the old edge has answered: {answers}")


async def _goes_on(scene: _Scene, new: WireClient) -> None:
    """On the second edge everything is as before: the connection, and what is subscribed to."""
    await scene.publish("void", b"5", 1)
    await scene.publish("out", b"6", 1)
    packet = await new.receive(Publish)
    scene.outcome.expect_equal("after SIGCONT the second edge sends", packet.payload, b"6")
    await new.send(Puback(packet.packet_id), Disconnect())
    await new.until_closed()


async def _back(scene: _Scene, again: WireClient) -> None:
    """The old edge takes the session back, as the second one has left it."""
    outcome = scene.outcome
    connack = await again.connect(scene.client_id)
    outcome.expect(connack.session_present, "there is no session on the old edge")
    outcome.expect_equal("sent again by the old edge", await _shown(again, 2), ["PUBLISH 4 dup", "PUBREL"])
    await again.send(Pubcomp(scene.released.packet_id))
    await finish(again, scene.sent.packet_id)
    await again.send(Pubrel(30))
    await again.receive(Pubcomp)
    await scene.publish("gone", b"7", 2)
    await scene.publish("later", b"8", 2)
    packet = await again.receive(Publish)
    outcome.expect_equal("then the old edge sends", packet.payload, b"8")
    await finish(again, packet.packet_id)
    await again.send(Disconnect())
    await again.until_closed()


async def _others(scene: _Scene) -> None:
    """The old edge's other client is served, and no QoS 2 message was taken twice or from the void."""
    outcome = scene.outcome
    began = asyncio.get_running_loop().time()
    await scene.publish("aside", b"after", 1)
    await until(lambda: b"after" in scene.seen_aside, USABLE_WITHIN_S)
    outcome.figures["seconds to the other client"] = asyncio.get_running_loop().time() - began
    outcome.figures["the other client's connections"] = scene.bystander.statistics().connects
    outcome.expect_equal("the other client got", list(dict.fromkeys(scene.seen_aside)), [b"during", b"after"])
    await until(lambda: len(scene.observed) >= 3, USABLE_WITHIN_S)
    outcome.expect_equal("published with QoS 2", dict(scene.observed), {b"in-10": 1, b"in-11": 1, b"in-30": 1})


async def subscribe(client: WireClient, *topic_filters: str) -> None:
    """With QoS 2."""
    await client.send(Subscribe(1, tuple(SubscriptionRequest(each, 2) for each in topic_filters)))
    await client.receive(Suback)


async def finish(client: WireClient, packet_id: int) -> None:
    """The rest of a flow to the client, from PUBREC on."""
    await client.send(Pubrec(packet_id))
    await client.receive(Pubrel)
    await client.send(Pubcomp(packet_id))


async def _shown(client: WireClient, count: int) -> list[str]:
    """The next packets, sorted: QoS 1 and 2 come by ways of their own.

    What was in flight of QoS 1 is stored every 5 s only, so DUP is not shown there.
    """
    packets = [await client.receive(object) for _ in range(count)]
    return sorted(
        f"PUBLISH {each.payload.decode()}{' dup' * (each.dup and each.qos == 2)}"
        if isinstance(each, Publish)
        else type(each).__name__.upper()
        for each in packets
    )
