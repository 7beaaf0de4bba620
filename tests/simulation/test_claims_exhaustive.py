"""The claim protocol explored exhaustively: two edges, one client, every interleaving to a stated depth."""

from __future__ import annotations

import pytest
from support.claims_exploration import Rules, Violation, explore

DEPTH = 13  # `python -m support.claims_exploration --depth 24` goes on


def test_no_interleaving_breaks_i7() -> None:
    count = explore(DEPTH)
    print(f"{count:,} states within {DEPTH} steps")
    assert count > 20_000


def test_two_connections_to_their_end() -> None:
    """Fewer claims, deeper: nothing new comes any more."""
    rules = Rules(connects_max=2, crashes_max=0)
    assert explore(24, rules) == explore(30, rules)


@pytest.mark.parametrize(
    "rules",
    [Rules(crashes_max=0, fences=False), Rules(crashes_max=0, renounces=False), Rules(crashes_max=0, checks=False)],
    ids=["nobody is fenced", "who was fenced renounces nothing", "nobody asks before writing"],
)
def test_a_planted_bug_is_found(rules: Rules) -> None:
    with pytest.raises(Violation, match="commits 0 after 1"):
        explore(16, rules)
