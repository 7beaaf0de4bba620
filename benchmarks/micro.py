"""CPU of the pure path: `python -m benchmarks.micro`. Fake transports, the log in memory; no kernel, no Kafka.

50 publishers and 50 subscribers of QoS 1 on one node, with password, ACL and limits on. A round is timed by stages:

    receive    six PUBLISH per publisher: framing, decoding, checks, one append each
    log        append to the memory log, PUBACKs, fetch, match, encode, one write per connection
    puback     the subscribers' PUBACKs
    codec      framing, decoding and encoding alone

Printed: the 10th percentile of the rounds, which is the undisturbed cost on a busy machine, in microseconds a message.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.brokers import ACL, LIMITS, USER_NAME
from bridge.memory_log import MemoryLog
from edge import wire
from edge.access.passwords import add_user
from edge.cli.edge import tune_garbage_collection
from edge.handler.protocol import EdgeProtocolHandler
from edge.node.config import make_config
from edge.node.node import EdgeNode

PAIRS = 50
MESSAGES_PER_ROUND = 6  # per publisher: what 20,000 msg/s over 50 pairs bring in a turn of 15 ms
PAYLOAD = bytes(256)
PASSWORD = "micro"
_TURNS_BETWEEN = 8  # of the event loop between two looks: a batch takes about that many
_TURNS_BUSY = 100
_TURNS_MAX = 10_000  # a stage must then be through
_PACKET_ID_MAX = 60_000
_REPEATED = 100  # of a part of the codec for one look at the clock


class FakeTransport(asyncio.Transport):
    """Takes every byte and keeps the last write."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.last: bytes | bytearray | memoryview = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.last = data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Never full."""

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing to close."""

    abort = pause_reading = resume_reading = close


def percentile_us(samples_s: Sequence[float], messages: int) -> float:
    """The 10th percentile of the samples, in microseconds a message."""
    return sorted(samples_s)[len(samples_s) // 10] / messages * 1e6


async def path_figures(rounds: int) -> dict[str, float]:
    """Microseconds a message by stage, over a node of its own."""
    with tempfile.TemporaryDirectory(prefix="headwater-micro-") as folder:
        add_user(Path(folder) / "passwords", USER_NAME, PASSWORD)
        table: dict[str, Any] = {
            "node_id": "micro",
            "listeners": [{"host": "127.0.0.1", "port": 0}],
            "http": None,
            "authentication": {"password_file": f"{folder}/passwords"},
            "acl": ACL,
            "limits": LIMITS,
        }
        node = EdgeNode(make_config(table, "micro"), MemoryLog())
        await node.start()
        try:
            return await _path_figures(node, rounds)
        finally:
            await node.stop()


async def _path_figures(node: EdgeNode, rounds: int) -> dict[str, float]:
    publishers = [await _connected(node, f"p{number}") for number in range(PAIRS)]
    subscribers = [await _connected(node, f"s{number}") for number in range(PAIRS)]
    for number, subscriber in enumerate(subscribers):
        subscriber.data_received(wire.encode(wire.Subscribe(1, (wire.SubscriptionRequest(f"bench/{number}", 1),)), 4))
        await _until(partial(_has_answered, subscriber, b"\x90"))
    tune_garbage_collection()
    stages: dict[str, list[float]] = {"receive": [], "log": [], "puback": []}
    for round_number in range(rounds):
        first_id = 1 + round_number * MESSAGES_PER_ROUND % _PACKET_ID_MAX
        blocks = [_publish_block(number, first_id) for number in range(PAIRS)]
        began_s = time.process_time()
        for publisher, block in zip(publishers, blocks, strict=True):
            publisher.data_received(block)
        received_s = time.process_time()
        await _until(lambda: all(len(_in_flight(each)) == MESSAGES_PER_ROUND for each in subscribers))
        delivered_s = time.process_time()
        answers = [b"".join(map(wire.puback, _in_flight(each))) for each in subscribers]
        answering_s = time.process_time()
        for subscriber, answer in zip(subscribers, answers, strict=True):
            subscriber.data_received(answer)
        stages["puback"].append(time.process_time() - answering_s)
        stages["receive"].append(received_s - began_s)
        stages["log"].append(delivered_s - received_s)
        assert not any(map(_in_flight, subscribers)), "a PUBACK went astray"
    for handler in (*publishers, *subscribers):
        handler.connection_lost(None)
    return {name: percentile_us(samples, PAIRS * MESSAGES_PER_ROUND) for name, samples in stages.items()}


async def _connected(node: EdgeNode, client_id: str) -> EdgeProtocolHandler:
    handler = EdgeProtocolHandler(node.services)
    transport = FakeTransport()
    handler.connection_made(transport)
    handler.data_received(
        wire.encode(wire.Connect(4, client_id, keep_alive_s=60, user_name=USER_NAME, password=PASSWORD.encode()), 4)
    )
    await _until(partial(_has_answered, handler, b"\x20\x02\x00\x00"))
    return handler


async def _until(is_done: Callable[[], bool]) -> None:
    """Turns of the event loop until it is so, asked now and then: asking costs, too."""
    for turn in range(_TURNS_MAX):
        for _ in range(_TURNS_BETWEEN):
            await asyncio.sleep(0)
        if is_done():
            return
        if turn > _TURNS_BUSY:  # the first password takes a worker thread some milliseconds
            await asyncio.sleep(0.001)
    raise AssertionError("the path stands still")


def _has_answered(handler: EdgeProtocolHandler, first_bytes: bytes) -> bool:
    assert isinstance(handler.transport, FakeTransport)
    return bytes(handler.transport.last).startswith(first_bytes)


def _in_flight(handler: EdgeProtocolHandler) -> Mapping[int, object]:
    """What waits for the subscriber's PUBACK, by packet identifier."""
    outgoing = handler.engine.outgoing
    assert outgoing is not None, "not connected"
    return outgoing.inflight


def _publish_block(number: int, first_id: int) -> bytes:
    packets = (
        wire.Publish(b"bench/%d" % number, PAYLOAD, 1, packet_id=first_id + offset)
        for offset in range(MESSAGES_PER_ROUND)
    )
    return b"".join(wire.encode(packet, 4) for packet in packets)


def codec_figures(rounds: int) -> dict[str, float]:
    """Microseconds a packet of each part of the codec, for a PUBLISH of QoS 1 with 256 bytes in both versions."""
    return {
        f"{name}, version {version}": percentile_us([_elapsed_s(part) for _ in range(rounds)], _REPEATED)
        for version in (4, 5)
        for name, part in _codec_parts(version).items()
    }


def _codec_parts(version: int) -> dict[str, Callable[[], object]]:
    """Each does its part `_REPEATED` times."""
    packet = wire.Publish(b"bench/7", PAYLOAD, 1, packet_id=7)
    encoded = wire.encode(packet, version)
    framer = wire.Framer(1_000_000, version)
    first_byte, body = framer.feed(encoded)[0]
    prepared = wire.prepare_publish(b"bench/7", PAYLOAD, 1, False, b"", version)
    many = encoded * _REPEATED
    return {
        "frame": lambda: framer.feed(many),
        "decode": lambda: [wire.decode_for_server(first_byte, body, version) for _ in range(_REPEATED)],
        "encode": lambda: [wire.encode(packet, version) for _ in range(_REPEATED)],
        "encode one more copy": lambda: [prepared.with_packet_id(each) for each in range(_REPEATED)],
        "PUBACK": lambda: [wire.puback(each) for each in range(_REPEATED)],
    }


def _elapsed_s(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()  # process_time costs as much as a packet; the 10th percentile drops the rest
    work()
    return time.perf_counter() - began_s


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; with `--profile` also where the time of the path went."""
    parser = argparse.ArgumentParser(prog="benchmarks.micro", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args(arguments)
    profile = cProfile.Profile() if options.profile else None
    if profile is not None:
        profile.enable()
    figures = _run(path_figures(options.rounds))
    if profile is not None:
        profile.disable()
    print(f"path, {PAIRS} pairs, QoS 1, microseconds a message")
    for name, value in (*figures.items(), ("all", sum(figures.values()))):
        print(f"  {name:24} {value:6.2f}")
    print("codec, PUBLISH QoS 1 of 256 bytes, microseconds a packet")
    for name, value in codec_figures(options.rounds).items():
        print(f"  {name:34} {value:6.3f}")
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    return 0


def _run(work: Coroutine[Any, Any, dict[str, float]]) -> dict[str, float]:
    try:
        import uvloop
    except ImportError:
        figures: dict[str, float] = asyncio.run(work)
    else:
        figures = uvloop.run(work)
    return figures


if __name__ == "__main__":
    sys.exit(main())
