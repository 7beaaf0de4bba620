"""The ledger finds what it is for: each kind of fault is planted and must show."""

from edge.demo.ledger import Latencies, Ledger
from edge.demo.limits import devices_that_fit, raise_file_limit
from edge.demo.report import Report


def ledger_of(published: int, acknowledged: int | None = None) -> Ledger:
    ledger = Ledger()
    for seq in range(1, published + 1):
        assert ledger.next_sequence("a") == seq
    for seq in range(1, (published if acknowledged is None else acknowledged) + 1):
        ledger.record_acknowledged("a", seq)
    return ledger


def deliver(ledger: Ledger, *numbers: int) -> Ledger:
    for seq in numbers:
        ledger.record_delivered("a", seq, 1.0)
    return ledger


def test_all_in_order() -> None:
    ledger = deliver(ledger_of(3), 1, 2, 3)
    assert ledger.is_settled
    assert (ledger.delivered, ledger.lost, ledger.duplicated, ledger.out_of_order, ledger.gaps) == (3, 0, 0, 0, 0)


def test_one_lost_in_the_middle_and_one_at_the_end() -> None:
    ledger = deliver(ledger_of(4), 1, 3)
    assert (ledger.lost, ledger.gaps, ledger.is_settled) == (2, 1, False)


def test_what_was_not_acknowledged_is_not_lost() -> None:
    assert deliver(ledger_of(3, acknowledged=2), 1, 2).lost == 0
    assert deliver(ledger_of(3, acknowledged=2), 1, 3).lost == 1


def test_duplicates_and_late_ones() -> None:
    ledger = deliver(ledger_of(4), 1, 1, 3, 2, 2, 4)
    assert (ledger.delivered, ledger.duplicated, ledger.out_of_order, ledger.lost) == (4, 2, 1, 0)


def test_messages_that_nobody_sent() -> None:
    ledger = ledger_of(1)
    ledger.record_delivered("b", 1, 1.0)
    ledger.record_delivered("a", 2, 1.0)
    ledger.record_delivered("a", 0, 1.0)
    assert (ledger.unknown, ledger.delivered) == (3, 0)


def test_devices_are_told_apart() -> None:
    ledger = deliver(ledger_of(1), 1)
    ledger.next_sequence("b")
    ledger.record_acknowledged("b", 1)
    assert ledger.lost == 1
    ledger.record_delivered("b", 1, 1.0)
    assert ledger.lost == 0
    assert ledger.is_settled


def test_percentiles_are_within_a_bucket() -> None:
    latencies = Latencies()
    assert latencies.percentile(0.5) is None
    for value in range(1, 1_001):
        latencies.add(float(value))
    for share in (0.01, 0.5, 0.99, 1.0):
        found = latencies.percentile(share)
        assert found is not None
        assert share * 1_000 <= found <= share * 1_000 * 1.09
    latencies.add(1e9)
    assert latencies.percentile(1.0) is not None


def report(**changes: int | None) -> Report:
    figures = {
        "devices": 4,
        "edges": 2,
        "seconds": 1.0,
        "published": 9,
        "acknowledged": 9,
        "delivered": 9,
        "lost": 0,
        "duplicated": 0,
        "out_of_order": 0,
        "refused": 0,
        "reconnects": 0,
        "p50_ms": 1.0,
        "p99_ms": None,
        "windows": 3,
        "results": 5,
    }
    return Report(**(figures | changes))  # type: ignore[arg-type]


def test_a_good_run_has_no_faults_and_each_fault_is_one() -> None:
    assert report().faults() == []
    assert report(windows=None).faults() == []
    for fault in (
        {"lost": 1},
        {"duplicated": 1},
        {"out_of_order": 1},
        {"refused": 1},
        {"windows": 0},
        {"acknowledged": 8},
        {"published": 0, "delivered": 0, "acknowledged": 0},
    ):
        assert len(report(**fault).faults()) == 1, fault
    assert dict(report().rows())["latency p50 / p99"] == "1.0 ms / -"


def test_fewer_devices_where_files_are_few() -> None:
    assert devices_that_fit(20_000, 4_046) == 4_046
    assert devices_that_fit(1_024, 4_046) == 256
    assert devices_that_fit(100, 4_046) == 0
    assert raise_file_limit(10) >= 10 * 2
