"""Live fuzz: sequences of valid and mutated packets on up to three connections to a running edge.

    python tests/fuzz/fuzz_live.py --count 100000 [--seed 1]

The edge runs in this process on a log in memory, so that every error it logs is seen. After every 100 sequences a
well-behaved client is answered a ping. Ends with 1 when the edge logged an error, gave no answer, or kept what it had.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import random
import resource
import sys
from collections.abc import Callable
from pathlib import Path

_TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_TESTS.parent), str(_TESTS)]

from support.edges import memory_edge, mqtt_address  # noqa: E402
from support.mutation import mutate  # noqa: E402
from support.wire_client import connected  # noqa: E402

from edge.node.node import EdgeNode  # noqa: E402
from edge.wire import (  # noqa: E402
    Auth,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
    Will,
    encode,
)

PING_EVERY = 100
SETTLE_S = 20.0
_NAMES = ("a", "a/b", "$SYS/x", "sensors/x/y/z", "ü/€")
_FILTERS = ("a", "a/+", "#", "+/#", "$share/g/a/#", "$share/g", "a/#/b", "sensors/x/y/#")


class Errors(logging.Handler):
    """Whatever the edge logs as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


def packets(rng: random.Random, version: int) -> list[Packet]:
    """A session's worth of packets, in an order that may make sense."""
    is_5 = version == 5
    properties = Properties(session_expiry_interval_s=rng.choice((0, 1, 60))) if is_5 else Properties()
    will = Will(rng.choice(_NAMES), b"gone", rng.randrange(3), rng.random() < 0.3) if rng.random() < 0.3 else None
    client_id, keep_alive_s = f"fuzz{rng.randrange(20)}", rng.choice((0, 60))
    first = Connect(version, client_id, rng.random() < 0.5, keep_alive_s, will, properties=properties)

    def publish() -> Packet:
        qos = rng.randrange(3)
        identifier = rng.randrange(1, 5) if qos else 0
        more = Properties(topic_alias=rng.randrange(1, 20)) if is_5 and rng.random() < 0.2 else None
        name = rng.choice(_NAMES).encode()
        return Publish(name, rng.randbytes(rng.randrange(40)), qos, rng.random() < 0.2, False, identifier, more)

    makers: tuple[Callable[[], Packet], ...] = (
        publish,
        publish,
        lambda: Subscribe(rng.randrange(1, 9), (SubscriptionRequest(rng.choice(_FILTERS), rng.randrange(3)),)),
        lambda: Unsubscribe(rng.randrange(1, 9), (rng.choice(_FILTERS),)),
        lambda: rng.choice((Puback, Pubrec, Pubrel, Pubcomp))(rng.randrange(1, 6)),
        Pingreq,
        lambda: Auth(ReasonCode.CONTINUE_AUTHENTICATION) if is_5 else Pingreq(),
        lambda: Disconnect(rng.choice((ReasonCode.NORMAL_DISCONNECTION, ReasonCode.DISCONNECT_WITH_WILL_MESSAGE))),
    )
    rest = [rng.choice(makers)() for _ in range(rng.randrange(1, 12))]
    return [first, *rest] if rng.random() < 0.95 else rest


def sequence(rng: random.Random) -> bytes:
    """The bytes of one connection."""
    version = rng.choice((3, 4, 4, 5, 5, 5))
    parts = []
    for packet in packets(rng, version):
        data = encode(packet, version)
        parts.append(mutate(rng, [data]) if rng.random() < 0.15 else data)
    return b"".join(parts)


async def one_connection(node: EdgeNode, rng: random.Random) -> None:
    reader, writer = await asyncio.open_connection(*mqtt_address(node))
    data = sequence(rng)
    cut = rng.randrange(len(data) + 1)
    try:
        for piece in (data[:cut], data[cut:]):
            writer.write(piece)
            await writer.drain()
        if rng.random() < 0.7:
            async with asyncio.timeout(0.05):
                while await reader.read(65_536):
                    pass
    except (ConnectionError, TimeoutError):
        pass
    if rng.random() < 0.3:
        writer.transport.abort()
    else:
        writer.close()


async def fuzz(count: int, seed: int) -> int:
    errors = Errors()
    logging.getLogger().addHandler(errors)
    rng = random.Random(seed)
    async with memory_edge() as node, connected(mqtt_address(node), "well-behaved") as client:
        middle_kb = 0
        for done in range(0, count, PING_EVERY):
            for _ in range(PING_EVERY // 2):
                await asyncio.gather(*(one_connection(node, rng) for _ in range(rng.choice((1, 2, 3)))))
            await client.send(Pingreq())
            await client.receive(Pingresp)
            if done >= count // 2 and not middle_kb:
                gc.collect()
                middle_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        async with asyncio.timeout(SETTLE_S):
            while len(node.services.connections) > 1:  # noqa: ASYNC110 - they close on their own
                await asyncio.sleep(0.05)
        end_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(
            f"{count} sequences, seed {seed}: {len(errors.lines)} errors logged, one connection left; at most "
            f"{middle_kb // 1024} MB of memory at half, {end_kb // 1024} MB at the end"
        )
    for line in errors.lines[:10]:
        print(line)
    return 1 if errors.lines else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    return asyncio.run(fuzz(options.count, options.seed))


if __name__ == "__main__":
    raise SystemExit(main())
