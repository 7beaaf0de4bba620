"""Every limit, the token bucket, and the tables that count strangers, failures and flapping clients."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.access.limits import (
    ClientRate,
    ConnectionGate,
    FailureTracker,
    FlappingTracker,
    Limits,
    Refusal,
    Ticket,
    TokenBucket,
    address_key,
    development_limits,
    load_limits,
)
from schemas.errors import ConfigurationError

DEFAULTS = Limits()


def admitted(gate: ConnectionGate, peer: str, now: float) -> Ticket:
    answer = gate.admit(peer, now)
    assert isinstance(answer, Ticket)
    return answer


# The documented defaults: a change here is a change of what is promised.
PROMISED = {
    "packet_bytes_max": 1_000_000,
    "topic_name_bytes_max": 1_024,
    "topic_levels_max": 32,
    "client_id_bytes_max": 128,
    "user_properties_max": 32,
    "user_properties_bytes_max": 8_192,
    "filters_per_subscribe_max": 100,
    "subscriptions_per_client_max": 1_000,
    "receive_maximum_in": 100,
    "receive_maximum_out": 32,
    "topic_alias_maximum": 16,
    "retained_messages_max": 1_000_000,
    "retained_bytes_max": 512 * 1024 * 1024,
    "buffer_messages_max": 1_000,
    "buffer_bytes_max": 1_048_576,
    "keep_alive_factor": 1.5,
    "server_keep_alive_s": 600,
    "replays_per_client_max": 4,
    "replay_messages_per_s": 10_000,
    "connect_packet_bytes_max": 65_536,
    "connect_timeout_s": 10,
    "tls_handshake_timeout_s": 10,
    "authentication_timeout_s": 2,
    "unauthenticated_per_address_max": 50,
    "unauthenticated_per_address_per_s": 20,
    "unauthenticated_max": 1_000,
    "messages_per_s": 1_000,
    "bytes_per_s": 1_048_576,
    "connects_per_s": 500,
    "connect_wait_s_max": 5,
    "failures_per_min": 10,
    "failure_block_s": 300,
    "flapping_per_min": 15,
    "flapping_ban_s": 300,
    "tracked_addresses_max": 10_000,
}


def test_the_defaults_are_the_promised_ones() -> None:
    assert {item.name: getattr(DEFAULTS, item.name) for item in fields(Limits)} == PROMISED


def test_limits_load_from_a_table_over_a_base() -> None:
    loaded = load_limits({"receive_maximum_in": 7, "messages_per_s": 0}, development_limits())
    assert loaded == replace(development_limits(), receive_maximum_in=7, messages_per_s=0)
    assert load_limits({}) == DEFAULTS


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"packet_byte_max": 1}, "no key 'packet_byte_max'"),
        ({"packet_bytes_max": "1"}, "whole number"),
        ({"packet_bytes_max": 1.5}, "whole number"),
        ({"packet_bytes_max": True}, "whole number"),
        ({"packet_bytes_max": 0}, "at least 1"),
        ({"connect_timeout_s": 0}, "at least 1"),
        ({"connect_timeout_s": float("inf")}, "at least 1"),
        ({"connect_timeout_s": float("nan")}, "at least 1"),
        ({"messages_per_s": -1}, "0 (no limit) or more"),
        ({"messages_per_s": float("inf")}, "0 (no limit) or more"),
    ],
)
def test_wrong_limits_are_named(table: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_limits(table)
    assert why in str(caught.value)
    assert next(iter(table)) in str(caught.value)


def test_the_bucket_gives_its_burst_then_its_rate() -> None:
    bucket = TokenBucket(10, 5)
    assert [bucket.take(1, 100.0) for _ in range(5)] == [0.0] * 5
    assert bucket.take(1, 100.0) == pytest.approx(0.1)
    assert bucket.take(1, 100.0) == pytest.approx(0.2)
    assert bucket.take(1, 100.3) == 0.0
    assert bucket.take(5, 1_000.0) == 0.0, "full again, and no fuller than its burst"
    assert bucket.take(1, 1_000.0) > 0


def test_a_take_larger_than_the_burst_is_paid_by_waiting() -> None:
    assert TokenBucket(10, 5).take(105, 0.0) == pytest.approx(10.0)


def test_a_refused_try_takes_nothing() -> None:
    bucket = TokenBucket(10, 2)
    assert bucket.try_take(2, 0.0)
    assert not bucket.try_take(1, 0.05)
    assert not bucket.try_take(1, 0.05)
    assert bucket.try_take(1, 0.1)


def test_rate_zero_is_no_limit() -> None:
    bucket = TokenBucket(0, 1)
    assert bucket.take(1e9, 0.0) == 0.0
    assert bucket.try_take(1e9, 0.0)


@given(
    rate=st.integers(1, 1_000),
    burst=st.integers(1, 1_000),
    steps=st.lists(st.tuples(st.floats(0, 10), st.integers(1, 50)), max_size=50),
)
def test_no_more_than_burst_and_rate_ever_passes(rate: int, burst: int, steps: list[tuple[float, int]]) -> None:
    bucket = TokenBucket(rate, burst)
    now, passed = 0.0, 0
    for pause_s, wanted in steps:
        now += pause_s
        passed += wanted if bucket.try_take(wanted, now) else 0
        assert passed <= burst + rate * now + 1e-2


@given(takes=st.lists(st.integers(1, 5_000), min_size=1, max_size=50))
def test_a_client_that_waits_as_told_holds_the_rate(takes: list[int]) -> None:
    bucket, now, taken = TokenBucket(1_000, 1_000), 0.0, 0
    for n in takes:
        now += bucket.take(n, now)
        taken += n
        assert taken <= 1_000 + 1_000 * now + 1e-3


def test_a_client_is_paused_after_1000_messages_in_a_second() -> None:
    rate = ClientRate(DEFAULTS)
    assert rate.take(1_000, 0, 5.0) == 0.0
    assert rate.take(1, 0, 5.0) == pytest.approx(0.001)


def test_a_client_is_paused_after_a_mebibyte_in_a_second() -> None:
    rate = ClientRate(DEFAULTS)
    assert rate.take(1, 1024 * 1024, 5.0) == 0.0
    assert rate.take(1, 1024 * 1024, 5.0) == pytest.approx(1.0)


def test_an_address_gets_20_new_connections_a_second() -> None:
    gate = ConnectionGate(DEFAULTS)
    for _ in range(20):
        admitted(gate, "192.0.2.1", 7.0).release(authenticated=False)
    assert gate.admit("192.0.2.1", 7.0) is Refusal.ADDRESS_RATE
    admitted(gate, "192.0.2.2", 7.0)
    admitted(gate, "192.0.2.1", 7.06)


def test_an_authenticated_connection_gives_its_token_back() -> None:
    gate = ConnectionGate(DEFAULTS)
    for _ in range(1_000):
        admitted(gate, "192.0.2.1", 7.0).release(authenticated=True)
    assert gate.statistics()["unauthenticated"] == 0


def test_an_address_has_50_unauthenticated_connections() -> None:
    gate = ConnectionGate(DEFAULTS)
    tickets = [admitted(gate, "192.0.2.1", float(second)) for second in range(50)]
    assert gate.admit("192.0.2.1", 60.0) is Refusal.ADDRESS_FULL
    tickets[0].release(authenticated=False)
    admitted(gate, "192.0.2.1", 61.0)


def test_a_ticket_is_released_once() -> None:
    gate = ConnectionGate(DEFAULTS)
    first, _second = admitted(gate, "192.0.2.1", 0.0), admitted(gate, "192.0.2.1", 0.0)
    first.release(authenticated=True)
    first.release(authenticated=False)
    assert gate.statistics()["unauthenticated"] == 1


def test_a_node_has_1000_unauthenticated_connections() -> None:
    gate = ConnectionGate(DEFAULTS)
    for number in range(1_000):
        admitted(gate, f"10.0.{number // 250}.{number % 250}", 0.0)
    assert gate.admit("192.0.2.1", 0.0) is Refusal.NODE_FULL
    assert gate.statistics()["refused_node_full"] == 1


def test_an_address_behind_one_ipv6_customer_is_one_address() -> None:
    gate = ConnectionGate(DEFAULTS)
    for number in range(20):
        admitted(gate, f"2001:db8::{number:x}", 0.0)
    assert gate.admit("2001:db8::ffff", 0.0) is Refusal.ADDRESS_RATE
    admitted(gate, "2001:db8:0:1::1", 0.0)


def test_the_gate_forgets_only_addresses_without_a_connection() -> None:
    limits = replace(DEFAULTS, tracked_addresses_max=10, unauthenticated_max=10, unauthenticated_per_address_max=1)
    gate = ConnectionGate(limits)
    held = [admitted(gate, f"10.0.0.{number}", 0.0) for number in range(5)]
    for number in range(100):
        admitted(gate, f"10.1.0.{number}", 0.0).release(authenticated=False)
    assert gate.statistics()["addresses"] == 10
    assert gate.statistics()["evicted"] == 95
    assert gate.admit("10.0.0.0", 9.0) is Refusal.ADDRESS_FULL
    for ticket in held:
        ticket.release(authenticated=False)
    assert gate.statistics()["unauthenticated"] == 0


def test_a_node_takes_500_connects_a_second_and_lets_the_next_ones_wait() -> None:
    gate = ConnectionGate(DEFAULTS)
    assert [gate.connect(3.0) for _ in range(500)] == [0.0] * 500
    waits = [gate.connect(3.0) for _ in range(2_500)]
    assert waits[0] == pytest.approx(0.002)
    assert waits[-1] == pytest.approx(5.0)
    assert gate.connect(3.0) is None
    assert gate.connect(3.0) is None, "a refused one takes nobody's turn"
    assert gate.connect(3.01) == pytest.approx(4.992)


def test_ten_failures_in_a_minute_block_an_address_for_five_minutes() -> None:
    failures = FailureTracker(DEFAULTS)
    gate = ConnectionGate(DEFAULTS, failures)
    assert [failures.failed("192.0.2.1", float(second)) for second in range(10)] == [False] * 9 + [True]
    assert failures.blocked_s("192.0.2.1", 10.0) == pytest.approx(299.0)
    assert gate.admit("192.0.2.1", 308.9) is Refusal.ADDRESS_BLOCKED
    assert failures.blocked_s("192.0.2.2", 10.0) == 0.0
    admitted(gate, "192.0.2.2", 10.0)
    admitted(gate, "192.0.2.1", 309.0)
    assert failures.statistics() == {"tracked": 0, "blocked": 0, "blocks": 1, "evicted": 0}


def test_failures_spread_over_time_do_not_block() -> None:
    failures = FailureTracker(DEFAULTS)
    assert not any(failures.failed("192.0.2.1", second * 6.7) for second in range(100))


def test_the_same_address_written_differently_is_one() -> None:
    failures = FailureTracker(DEFAULTS)
    for number in range(9):
        failures.failed("::ffff:192.0.2.1" if number % 2 else "192.0.2.1", 0.0)
    assert failures.failed("192.0.2.1", 0.0)


def test_the_failure_table_is_bounded() -> None:
    failures = FailureTracker(replace(DEFAULTS, tracked_addresses_max=10))
    for number in range(200):
        for _ in range(1 + 9 * (number % 2)):
            failures.failed(f"10.0.0.{number}", 0.0)
    figures = failures.statistics()
    assert (figures["blocked"], figures["blocks"]) == (10, 100)
    assert figures["tracked"] <= 10
    assert figures["evicted"] >= 90 + 89


def test_fifteen_connects_in_a_minute_ban_a_client_for_five_minutes() -> None:
    flapping = FlappingTracker(DEFAULTS)
    assert [flapping.connected("pump", second * 4.0) for second in range(15)] == [False] * 14 + [True]
    assert flapping.banned_s("pump", 60.0) == pytest.approx(296.0)
    assert flapping.banned_s("other", 60.0) == 0.0
    assert flapping.banned_s("pump", 357.0) == 0.0
    assert not flapping.connected("pump", 357.0)
    assert flapping.statistics()["blocks"] == 1


def test_development_lifts_the_rates_and_keeps_the_sizes() -> None:
    limits = development_limits()
    gate = ConnectionGate(limits)
    for _ in range(900):
        admitted(gate, "127.0.0.1", 0.0)
    assert [gate.connect(0.0) for _ in range(10_000)] == [0.0] * 10_000
    assert ClientRate(limits).take(10**6, 10**9, 0.0) == 0.0
    assert limits.packet_bytes_max == DEFAULTS.packet_bytes_max
    assert limits.receive_maximum_in == DEFAULTS.receive_maximum_in


@pytest.mark.parametrize(
    ("peer", "key"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix", "unix"),
        ("", ""),
    ],
)
def test_addresses_are_counted_under_one_key(peer: str, key: str) -> None:
    assert address_key(peer) == key
