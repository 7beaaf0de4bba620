"""The short ways of a delivery (`Outgoing.take_live`, `take_live_run`) send what the long way (`deliver`) sends, or
nothing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.playbook import START_S, delivery, grant

from bridge.delivery import Delivery
from bridge.subscriptions import Grant
from edge.session.connect import PACKET_BYTES_UNLIMITED
from edge.session.outgoing import PACKET_ID_MAX, Outgoing
from edge.wire import puback
from schemas.message import Message

WINDOW = 3
WALL_MS = int(START_S * 1000)


@st.composite
def deliveries(draw: st.DrawFn) -> Delivery:
    """Messages of every kind that a subscriber may get, shared with others or not."""
    properties = draw(st.sampled_from([None, Message("", b"", user_properties=(("a", "b"),))]))
    made = delivery(
        draw(st.sampled_from(["a", "a/b", "x" * 130])),
        draw(st.sampled_from([b"", b"x", b"y" * 200, b"z" * 17_000])),
        draw(st.integers(0, 1)),
        retain=draw(st.booleans()),
        client_id=draw(st.sampled_from(["c", "d"])),
        expiry_s=draw(st.sampled_from([None, None, 60])),
        properties=properties,
    )
    return made._replace(frames=draw(st.sampled_from([None, {}])))


@st.composite
def grants(draw: st.DrawFn) -> Grant:
    """Subscriptions with any options."""
    ids = draw(st.sampled_from([(), (), (7,), (1, 300)]))
    return grant(
        draw(st.integers(0, 1)), retain_as_published=draw(st.booleans()), no_local=draw(st.booleans()), ids=ids
    )


steps = st.lists(
    st.one_of(st.tuples(deliveries(), grants()), st.integers(1, WINDOW + 1), st.booleans()), min_size=1, max_size=25
)


@settings(max_examples=300, deadline=None)
@given(
    version=st.sampled_from([3, 4, 5]),
    limited=st.booleans(),
    last_id=st.sampled_from([0, PACKET_ID_MAX - 1]),
    steps=steps,
)
def test_the_short_way_sends_what_the_long_way_sends(
    version: int, limited: bool, last_id: int, steps: list[tuple[Delivery, Grant] | int | bool]
) -> None:
    seen = []
    for short_way in (True, False):
        out: list[bytes] = []
        outgoing = Outgoing(out, version, WINDOW, 300 if limited else PACKET_BYTES_UNLIMITED, 5, 400)
        outgoing._last_id = last_id
        for step in steps:
            if isinstance(step, bool):
                outgoing.writable = step
                outgoing.drain(WALL_MS)
            elif isinstance(step, int):
                for packet_id in list(outgoing.inflight)[:step]:
                    assert outgoing.acknowledged(packet_id, START_S, 0.0)
            else:
                message, granted = step
                message = message._replace(frames={} if message.frames is not None else None)
                if not (short_way and outgoing.take_live(message, granted)):
                    outgoing.deliver(message, granted, WALL_MS)
        seen.append((b"".join(out), list(outgoing.inflight), outgoing.statistics(), outgoing.overflowed))
    assert seen[0] == seen[1]


runs = st.lists(
    st.one_of(
        st.tuples(deliveries(), grants(), st.lists(st.sampled_from([b"", b"x", b"y" * 130, b"z"]), max_size=6)),
        st.integers(1, 5),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(
    version=st.sampled_from([3, 4, 5]),
    limited=st.booleans(),
    aliases=st.sampled_from([0, 0, 2]),
    last_id=st.sampled_from([0, PACKET_ID_MAX - 2]),
    steps=runs,
)
def test_a_run_is_sent_as_its_deliveries_are(
    version: int,
    limited: bool,
    aliases: int,
    last_id: int,
    steps: list[tuple[Delivery, Grant, list[bytes]] | int | bool],
) -> None:
    """Acknowledgements come in bulk here, one by one there."""
    seen = []
    for short_way in (True, False):
        out: list[bytes] = []
        outgoing = Outgoing(out, version, 5, 300 if limited else PACKET_BYTES_UNLIMITED, 5, 400, aliases)
        outgoing._last_id = last_id
        for step in steps:
            if isinstance(step, bool):
                outgoing.writable = step
                outgoing.drain(WALL_MS)
            elif isinstance(step, int):
                packet_ids = list(outgoing.inflight)[:step]
                if short_way:
                    octets = b"".join(map(puback, packet_ids))
                    assert outgoing.take_acknowledgements(octets + b"\xc0\0", START_S, 0.0) == len(octets)
                else:
                    for packet_id in packet_ids:
                        assert outgoing.acknowledged(packet_id, START_S, 0.0)
            else:
                first, granted, payloads = step
                first = first._replace(frames=None)
                run = [first, *(first._replace(payload=payload) for payload in payloads)]
                taken = outgoing.take_live_run(run, granted) if short_way else 0
                for message in run[taken:]:
                    outgoing.deliver(message, granted, WALL_MS)
        seen.append((b"".join(out), list(outgoing.inflight), outgoing.statistics(), outgoing.overflowed))
    assert seen[0] == seen[1]
