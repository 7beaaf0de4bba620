"""50,000 mutated packets in the ordinary run; ``make fuzz`` takes a million."""

from __future__ import annotations

import random

from fuzz.fuzz_wire import run
from support.mutation import with_right_length


def test_fuzz_lets_nothing_but_packets_and_violations_out() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    outcomes = run(50_000, seed)
    assert outcomes["packet"] > 1_000, "the mutations are too hard: nothing decodes any more"
    assert outcomes["MalformedPacket"] > 1_000
    assert outcomes["ProtocolError"] > 1_000


def test_mutated_packets_get_their_right_length() -> None:
    assert with_right_length(b"\x30\x05ab") == b"\x30\x02ab"
    assert with_right_length(b"\x30\xff\x7f" + b"x" * 200) == b"\x30\xc8\x01" + b"x" * 200
