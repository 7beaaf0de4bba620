"""Mutation fuzz of the codec: nothing but packets and protocol violations ever come out.

    python tests/fuzz/fuzz_wire.py --count 1000000 --seed 7

For each mutated packet: the framer cuts it the same whole and in two pieces; decoding gives a packet or a
``ProtocolViolation`` with a reason code and a clause; what decodes encodes again, and decodes to the same value.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path

if __name__ == "__main__":
    _TESTS = Path(__file__).resolve().parent.parent
    sys.path[:0] = [str(_TESTS.parent), str(_TESTS)]

from corpus.packet_corpus import CORPUS
from support.mutation import mutate

from edge.wire import (
    Frame,
    Framer,
    Packet,
    ProtocolViolation,
    Publish,
    check_topic_name_utf8,
    decode_for_client,
    decode_for_server,
    encode,
)

PACKET_BYTES_MAX = 4096
_PACKETS = tuple(packet.data for packet in CORPUS)
_DECODERS = (decode_for_server, decode_for_client)


def _frames(data: bytes, version: int, cut: int) -> tuple[list[Frame], ProtocolViolation | None]:
    framer = Framer(PACKET_BYTES_MAX, version)
    frames = framer.feed(data[:cut])
    if framer.error is None:
        frames += framer.feed(data[cut:])
    assert framer.buffered_bytes <= PACKET_BYTES_MAX, "the framer buffered more than one packet"
    return frames, framer.error


def _check_round_trip(packet: Packet, decode_index: int, version: int) -> None:
    if isinstance(packet, Publish) and packet.topic_name_utf8:
        check_topic_name_utf8(packet.topic_name_utf8, version)
    version = getattr(packet, "protocol_version", version)
    framer = Framer(1 << 20, version)
    [(first_byte, body)] = framer.feed(encode(packet, version))
    again = _DECODERS[decode_index](first_byte, body, version)
    assert again == packet, f"{packet} came back as {again}"


def _outcome(error: ProtocolViolation) -> str:
    assert error.reason_code >= 0x80, "a violation without a failure's reason code"
    assert error.clause, "a violation without a clause"
    return type(error).__name__


def check_one(data: bytes, version: int, decode_index: int, cut: int) -> list[str]:
    """Push one mutated packet through framer, decoder and encoder; give the outcomes' names."""
    frames, error = _frames(data, version, len(data))
    pieces, pieces_error = _frames(data, version, cut)
    assert (frames, type(error)) == (pieces, type(pieces_error)), "chunking changed the frames"
    outcomes = [] if error is None else [_outcome(error)]
    for first_byte, body in frames:
        try:
            packet = _DECODERS[decode_index](first_byte, body, version)
            _check_round_trip(packet, decode_index, version)
        except ProtocolViolation as violation:
            outcomes.append(_outcome(violation))
        else:
            outcomes.append("packet")
    return outcomes


def run(count: int, seed: int) -> Counter[str]:
    """Fuzz with ``count`` mutated packets; raises on the first wrong outcome, naming seed, number and bytes."""
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    for number in range(count):
        data = mutate(rng, _PACKETS)
        version, decode_index = rng.choice((3, 4, 4, 5, 5, 5, 5)), int(rng.random() < 0.3)
        cut = rng.randint(0, len(data))
        try:
            outcomes.update(check_one(data, version, decode_index, cut) or ("incomplete",))
        except Exception as error:
            where = f"seed {seed}, packet {number}, version {version}, decoder {decode_index}, cut {cut}"
            raise AssertionError(f"{where}: {data.hex(' ')}: {error!r}") from error
    return outcomes


def main() -> None:
    """Run from the command line and print what came out."""
    parser = argparse.ArgumentParser(description="Mutation fuzz of the MQTT codec.")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    start_s = time.perf_counter()
    outcomes = run(arguments.count, arguments.seed)
    elapsed_s = time.perf_counter() - start_s
    print(f"{arguments.count:,} mutated packets in {elapsed_s:.1f} s: nothing but packets and protocol violations")
    for name, number in outcomes.most_common():
        print(f"{number:>10,}  {name}")


if __name__ == "__main__":
    main()
