"""The short way of a delivery (`Outgoing.take_live`) sends what the long way (`Outgoing.deliver`) sends, or nothing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.playbook import START_S, delivery, grant

from bridge.delivery import Delivery
from bridge.subscriptions import Grant
from edge.session.connect import PACKET_BYTES_UNLIMITED
from edge.session.outgoing import PACKET_ID_MAX, Outgoing
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
