"""The checks of the session scenarios find what is planted, and nothing else (design section 10)."""

from __future__ import annotations

from benchmarks.sessions.outcome import Outcome, disordered, missing, repeated, summed_up, unknown

SENT = {"a": [0, 2, 4], "b": [1, 3]}
RIGHT = [("a", 0), ("b", 1), ("a", 2), ("b", 3), ("a", 4)]


def test_what_is_right_has_no_faults() -> None:
    assert missing(SENT, RIGHT) == repeated(RIGHT) == disordered(RIGHT) == []
    assert unknown({"a": 5, "b": 4}, RIGHT) == []


def test_a_message_is_missing() -> None:
    assert missing(SENT, [each for each in RIGHT if each != ("a", 2)]) == ["a 2 is missing"]


def test_a_message_comes_again() -> None:
    assert repeated([*RIGHT, ("b", 1)]) == ["b 1 came 2 times"]


def test_messages_are_out_of_order() -> None:
    assert disordered([("a", 0), ("a", 4), ("a", 2)]) == ["a 2 came after 4"]


def test_a_repetition_is_no_disorder() -> None:
    assert disordered([("a", 0), ("a", 2), ("a", 0), ("a", 4)]) == []


def test_a_message_that_nobody_sent() -> None:
    assert unknown({"a": 5}, [("a", 4), ("a", 5), ("c", 0)]) == ["a 5 was never sent", "c 0 was never sent"]


def test_an_outcome_says_what_was_found() -> None:
    outcome = Outcome({"seconds": 1.5, "messages": 1_000, "last words": "none"})
    outcome.expect(True, "not this")
    outcome.expect_equal("owners", 2, 1)
    outcome.faults += summed_up(["x"] * 7, "were wrong") + summed_up([], "were right")
    assert outcome.faults == ["owners: 2, not 1", "7 were wrong: x, x, x, x, x"]
    assert outcome.text().splitlines()[:3] == [
        f"  {'seconds':42} 1.500",
        f"  {'messages':42} 1,000",
        f"  {'last words':42} none",
    ]
