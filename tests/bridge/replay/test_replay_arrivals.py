"""What arrived against what was sent."""

from __future__ import annotations

from bridge.replay.arrivals import Arrivals


def told(sent: str, arrived: str, qos: int = 1) -> tuple[int, int, int, int]:
    """Missing, extra, reordered, with another payload: each letter is a message of one Topic Name."""
    arrivals = Arrivals()
    for letter in sent:
        arrivals.sent(b"a", qos, letter.encode())
    for letter in arrived:
        arrivals.arrived(b"a", qos, letter.encode())
    found = arrivals.report()
    assert (found["sent"], found["arrived"]) == (len(sent), len(arrived))
    assert bool(arrivals.differences()) == (sent != arrived)
    return found["missing"], found["extra"], found["reordered"], found["payload"]


def test_each_kind_of_difference() -> None:
    assert told("abc", "abc") == (0, 0, 0, 0)
    assert told("aaa", "aaa") == (0, 0, 0, 0)
    assert told("abc", "ac") == (1, 0, 0, 0)
    assert told("abc", "abbc") == (0, 1, 0, 0)
    assert told("abc", "acb") == (0, 0, 1, 0)
    assert told("abc", "cab") == (0, 0, 2, 0)
    assert told("abc", "axc") == (0, 0, 0, 1)
    assert told("abc", "") == (3, 0, 0, 0)
    assert told("", "x") == (0, 1, 0, 0)


def test_topic_names_and_qos_have_orders_of_their_own() -> None:
    arrivals = Arrivals()
    arrivals.sent(b"a", 1, b"1")
    arrivals.sent(b"a", 2, b"2")
    arrivals.sent(b"b", 1, b"3")
    arrivals.arrived(b"b", 1, b"3")
    arrivals.arrived(b"a", 2, b"2")
    assert arrivals.waiting_total == 1
    arrivals.arrived(b"a", 1, b"1")
    assert not arrivals.differences()
    arrivals.arrived(b"a", 0, b"1")
    assert {name: each.extra for name, each in arrivals.differences().items()} == {"a": 1}
