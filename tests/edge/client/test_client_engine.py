"""The pure engine against a server that is a few lines over the same codec: no loop, no clock."""

from dataclasses import dataclass, field

import pytest

from edge.client.engine import ClientEngine, State
from edge.client.errors import NotConnected, PublishRefused, QueueFull
from edge.client.events import Acknowledged, Answered, Closed, Connected, Event, Lost, Refused
from edge.client.settings import ClientSettings, ReconnectPolicy
from edge.wire import Framer, decode_for_server, encode
from edge.wire.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
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
from edge.wire.properties import Properties
from edge.wire.reason_codes import ReasonCode


@dataclass
class Pair:
    """An engine and what a server would see of it; time stands still unless a test moves it."""

    engine: ClientEngine
    version: int = 5
    now_s: float = 0.0
    framer: Framer = field(default_factory=lambda: Framer(1 << 20))

    def connect(self, connack: Connack | None = None) -> list[Event]:
        self.framer = Framer(1 << 20)
        self.engine.connection_made(self.now_s)
        assert type(self.sent()[0]) is Connect
        return self.receive(connack or Connack())

    def sent(self) -> list[Packet]:
        data = self.engine.data_to_send(self.now_s)
        return [decode_for_server(first, body, self.version) for first, body in self.framer.feed(data)]

    def receive(self, *packets: Packet) -> list[Event]:
        return self.engine.receive_data(b"".join(encode(packet, self.version) for packet in packets))


def pair_of(protocol_version: int = 5, **settings: object) -> Pair:
    return Pair(ClientEngine(ClientSettings("c", protocol_version, **settings)), protocol_version)  # type: ignore[arg-type]


def message(text: str, qos: int = 1) -> Publish:
    return Publish(b"a", text.encode(), qos)


def test_connect_carries_the_settings() -> None:
    pair = pair_of(user_name="u", password=b"p", keep_alive_s=7, session_expiry_s=9)
    pair.engine.connection_made(0.0)
    (connect,) = pair.sent()
    assert isinstance(connect, Connect)
    assert (connect.user_name, connect.password, connect.keep_alive_s) == ("u", b"p", 7)
    assert connect.properties.session_expiry_interval_s == 9


def test_nothing_but_a_version_and_a_window_is_accepted() -> None:
    with pytest.raises(ValueError, match="protocol_version"):
        ClientSettings(protocol_version=3)
    with pytest.raises(ValueError, match="in_flight_max"):
        ClientSettings(in_flight_max=0)


def test_a_refusal_is_an_event() -> None:
    pair = pair_of()
    (event,) = pair.connect(Connack(False, ReasonCode.NOT_AUTHORIZED))
    assert isinstance(event, Refused)
    assert pair.engine.state is State.CLOSED


def test_anything_before_connack_ends_the_connection() -> None:
    pair = pair_of()
    pair.engine.connection_made(0.0)
    (event,) = pair.receive(Pingresp())
    assert isinstance(event, Closed)
    assert event.reason_code is ReasonCode.PROTOCOL_ERROR


def test_qos_1_from_publish_to_puback() -> None:
    pair = pair_of()
    pair.connect()
    pair.engine.publish(message("x"), "token")
    (publish,) = pair.sent()
    assert isinstance(publish, Publish)
    assert publish.packet_id == 1
    assert pair.receive(Puback(1)) == [Acknowledged("token", ReasonCode.SUCCESS)]
    assert pair.engine.unacknowledged == 0
    assert pair.receive(Puback(1)) == [], "a second answer is nobody's"


def test_qos_2_from_publish_to_pubcomp() -> None:
    pair = pair_of()
    pair.connect()
    pair.engine.publish(message("x", 2), "token")
    pair.sent()
    assert pair.receive(Pubrec(1)) == []
    assert pair.sent() == [Pubrel(1)]
    assert pair.receive(Pubcomp(1)) == [Acknowledged("token", ReasonCode.SUCCESS)]


def test_a_server_that_has_ended_a_released_flow_before_has_the_message() -> None:
    """PUBCOMP was lost with its connection: PUBREL finds the identifier gone (MQTT 5.0 §3.7.2.1: not an error)."""
    pair = pair_of()
    pair.connect()
    pair.engine.publish(message("x", 2), "token")
    pair.receive(Pubrec(1))
    gone = Pubcomp(1, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
    assert pair.receive(gone) == [Acknowledged("token", ReasonCode.SUCCESS)]


def test_a_refused_pubrec_ends_the_flow() -> None:
    pair = pair_of()
    pair.connect()
    pair.engine.publish(message("x", 2), "token")
    pair.sent()
    assert pair.receive(Pubrec(1, ReasonCode.QUOTA_EXCEEDED)) == [Acknowledged("token", ReasonCode.QUOTA_EXCEEDED)]
    assert pair.sent() == []
    assert pair.engine.counters.refused == 1


def test_the_receive_maximum_holds_and_order_is_kept() -> None:
    pair = pair_of()
    pair.connect(Connack(properties=Properties(receive_maximum=2)))
    for number in range(5):
        pair.engine.publish(message(str(number)), number)
    assert [packet.payload for packet in pair.sent() if isinstance(packet, Publish)] == [b"0", b"1"]
    pair.receive(Puback(1))
    assert [packet.payload for packet in pair.sent() if isinstance(packet, Publish)] == [b"2"]
    pair.receive(Puback(2), Puback(3))
    assert [packet.payload for packet in pair.sent() if isinstance(packet, Publish)] == [b"3", b"4"]


def test_the_queue_is_bounded() -> None:
    pair = pair_of(queue_messages_max=1, in_flight_max=1)
    pair.connect()
    pair.engine.publish(message("in flight"))
    pair.engine.publish(message("waits"))
    with pytest.raises(QueueFull):
        pair.engine.publish(message("too much"))
    assert pair.engine.counters.dropped == 1


def test_what_the_server_does_not_take_is_refused_before_it_is_sent() -> None:
    pair = pair_of()
    limits = Properties(maximum_qos=1, retain_available=False, maximum_packet_size_bytes=20)
    pair.connect(Connack(properties=limits))
    for packet in (message("x", 2), Publish(b"a", b"", 0, True), message("x" * 20), message("x" * 20, 0)):
        with pytest.raises(PublishRefused):
            pair.engine.publish(packet)
    assert pair.sent() == []
    assert pair.engine.unacknowledged == 0


def test_waiting_messages_meet_the_limits_of_the_connection_they_go_out_on() -> None:
    pair = pair_of()
    pair.engine.publish(message("x", 2), "token")
    events = pair.connect(Connack(properties=Properties(maximum_qos=1)))
    assert isinstance(events[0], Connected)
    assert events[1] == Acknowledged("token", ReasonCode.QOS_NOT_SUPPORTED, "Maximum QoS 1")


def test_a_kept_session_sends_again_with_the_same_identifiers() -> None:
    pair = pair_of(clean_start=False, session_expiry_s=60)
    pair.connect()
    for number, qos in enumerate((1, 2, 2)):
        pair.engine.publish(message(str(number), qos), number)
    pair.sent()
    pair.receive(Pubrec(2))
    pair.engine.connection_lost()
    pair.connect(Connack(session_present=True))
    again = pair.sent()
    assert [(type(packet), packet.packet_id) for packet in again] == [(Publish, 1), (Pubrel, 2), (Publish, 3)]  # type: ignore[union-attr]
    assert all(packet.dup for packet in again if isinstance(packet, Publish))


def test_a_smaller_window_holds_for_what_is_sent_again() -> None:
    pair = pair_of(clean_start=False, session_expiry_s=60)
    pair.connect()
    for number in range(4):
        pair.engine.publish(message(str(number)), number)
    pair.sent()
    pair.engine.connection_lost()
    pair.connect(Connack(session_present=True, properties=Properties(receive_maximum=2)))
    pair.engine.publish(message("4"), 4)
    assert [packet.packet_id for packet in pair.sent() if isinstance(packet, Publish)] == [1, 2]
    for packet_id, wanted in ((1, [3]), (2, [4]), (3, [5]), (4, []), (5, [])):
        pair.receive(Puback(packet_id))
        assert [packet.packet_id for packet in pair.sent() if isinstance(packet, Publish)] == wanted


@pytest.mark.parametrize("republish", [True, False])
def test_a_forgotten_session_publishes_as_new_or_reports_lost(republish: bool) -> None:
    pair = pair_of(republish_lost_session=republish)
    pair.connect()
    for number, qos in enumerate((1, 2, 1)):
        pair.engine.publish(message(str(number), qos), number)
    pair.sent()
    pair.receive(Pubrec(2))
    pair.engine.connection_lost()
    pair.engine.publish(message("3"), 3)
    events = pair.connect()
    payloads = [packet.payload for packet in pair.sent() if isinstance(packet, Publish) and not packet.dup]
    assert Acknowledged(1, ReasonCode.SUCCESS) in events, "PUBREC had said that the server has it"
    if republish:
        assert payloads == [b"0", b"2", b"3"]
    else:
        assert [event.token for event in events if isinstance(event, Lost)] == [0, 2]
        assert payloads == [b"3"]


def test_subscriptions_come_back_with_their_options() -> None:
    pair = pair_of()
    pair.connect()
    pair.engine.subscribe([SubscriptionRequest("a/#", 1), SubscriptionRequest("b", 0)], "token", 5)
    (subscribe,) = pair.sent()
    assert isinstance(subscribe, Subscribe)
    granted = (ReasonCode.GRANTED_QOS_1, ReasonCode.GRANTED_QOS_0)
    assert pair.receive(Suback(subscribe.packet_id, granted)) == [Answered("token", granted)]
    pair.engine.unsubscribe(["b"], "gone")
    (unsubscribe,) = pair.sent()
    assert isinstance(unsubscribe, Unsubscribe)
    assert pair.receive(Unsuback(unsubscribe.packet_id, (ReasonCode.SUCCESS,))) == [
        Answered("gone", (ReasonCode.SUCCESS,))
    ]
    assert pair.engine.connection_lost() == []
    pair.connect()
    (again,) = pair.sent()
    assert isinstance(again, Subscribe)
    assert again.subscriptions == (SubscriptionRequest("a/#", 1),)
    assert again.properties is not None
    assert again.properties.subscription_identifiers == (5,)


def test_requests_without_a_connection_fail_and_open_ones_are_told() -> None:
    pair = pair_of()
    with pytest.raises(NotConnected):
        pair.engine.subscribe([SubscriptionRequest("a")])
    pair.connect()
    pair.engine.subscribe([SubscriptionRequest("a")], "open")
    assert pair.engine.connection_lost() == ["open"]


def test_qos_2_in_is_delivered_once() -> None:
    pair = pair_of()
    pair.connect()
    first = Publish(b"a", b"x", 2, packet_id=9)
    assert [type(event) for event in pair.receive(first)] == [Publish]
    assert pair.receive(Publish(b"a", b"x", 2, dup=True, packet_id=9)) == []
    assert pair.sent() == [Pubrec(9), Pubrec(9)]
    assert pair.receive(Pubrel(9)) == []
    assert pair.sent() == [Pubcomp(9)]
    assert [type(event) for event in pair.receive(first)] == [Publish], "the identifier is free again"


def test_topic_aliases_of_the_server() -> None:
    pair = pair_of(topic_alias_maximum=1)
    pair.connect()
    named = Publish(b"a/b", b"1", properties=Properties(topic_alias=1))
    short = Publish(b"", b"2", properties=Properties(topic_alias=1))
    names = [event.topic_name_utf8 for event in pair.receive(named, short) if isinstance(event, Publish)]
    assert names == [b"a/b", b"a/b"]
    (event,) = pair.receive(Publish(b"a", b"", properties=Properties(topic_alias=2)))
    assert isinstance(event, Closed)


def test_keep_alive_pings_only_when_silent_and_ends_without_an_answer() -> None:
    pair = pair_of(keep_alive_s=10)
    pair.connect()
    assert pair.engine.get_timer() == 10.0
    pair.now_s = 6.0
    pair.engine.publish(message("x", 0))
    pair.sent()
    assert pair.engine.get_timer() == 16.0
    assert pair.engine.handle_timer(10.0) == []
    assert pair.sent() == []
    assert pair.engine.handle_timer(16.0) == []
    assert pair.sent() == [Pingreq()]
    pair.receive(Pingresp())
    pair.now_s = 26.0
    assert pair.engine.handle_timer(26.0) == []
    assert pair.sent() == [Pingreq()]
    (event,) = pair.engine.handle_timer(31.0)
    assert isinstance(event, Closed)
    assert event.reason_code is ReasonCode.KEEP_ALIVE_TIMEOUT
    assert pair.sent() == [Disconnect(ReasonCode.UNSPECIFIED_ERROR)]  # a client may not send 0x8D (section 3.14.2.1)


def test_the_server_s_keep_alive_wins() -> None:
    pair = pair_of(keep_alive_s=60)
    pair.connect(Connack(properties=Properties(server_keep_alive_s=5)))
    assert pair.engine.get_timer() == 5.0


def test_a_broken_packet_closes_with_its_reason_after_the_good_ones() -> None:
    pair = pair_of()
    pair.connect()
    good = encode(Publish(b"a", b"x"), 5)
    events = pair.engine.receive_data(good + b"\x00\x00" + good)
    assert [type(event) for event in events] == [Publish, Closed]
    assert pair.sent() == [Disconnect(ReasonCode.MALFORMED_PACKET)]


def test_a_server_s_disconnect_names_its_reason() -> None:
    pair = pair_of()
    pair.connect()
    (event,) = pair.receive(Disconnect(ReasonCode.SESSION_TAKEN_OVER))
    assert isinstance(event, Closed)
    assert event.reason_code is ReasonCode.SESSION_TAKEN_OVER
    assert "SESSION_TAKEN_OVER" in (event.error or "")


def test_identifiers_go_round_and_skip_what_is_open() -> None:
    pair = pair_of()
    pair.connect()
    pair.engine.publish(message("open"), "open")
    pair.engine._packet_id = 65_533  # what 65,533 messages would take a while to reach
    for _ in range(3):
        pair.engine.publish(message("x"))
    assert [packet.packet_id for packet in pair.sent() if isinstance(packet, Publish)] == [1, 65_534, 65_535, 2]
    assert pair.engine.abandon()[0] == "open"


def test_backoff_grows_to_its_ceiling() -> None:
    policy = ReconnectPolicy(wait_first_s=1.0, wait_max_s=5.0)
    assert [policy.wait_s(attempt, 1.0) for attempt in (1, 2, 3, 4, 1_000)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert policy.wait_s(1, 0.0) == 0.5
