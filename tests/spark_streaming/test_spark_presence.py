"""Presence without Kafka: one client's logic, the processor, bans, names; the frames with Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.tws_tester import TwsTester
from support.frames import assert_rows

from schemas.errors import ConfigurationError
from schemas.events import Event
from spark_streaming.jobs.presence import read_options
from spark_streaming.presence.banning import BanRules, Judgement, Ledger
from spark_streaming.presence.client import Client, Happening, Rules
from spark_streaming.presence.processor import PresenceProcessor
from spark_streaming.transforms.presence import happenings, presence_records

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

RULES = Rules(connects_max=3, denied_max=2, window_ms=10_000, ban_ms=60_000, forget_ms=3_600_000)


def play(*events: tuple[int, str, str] | tuple[int, str, str, str], rules: Rules = RULES) -> list[dict[str, Any]]:
    """(time in ms, kind, node, action) as one client's changes."""
    client, changes = Client("c"), []
    for offset, (at_ms, kind, node, *action) in enumerate(events):
        client = Client.from_json("c", client.to_json())  # what is not stored is forgotten between batches
        event = Happening(kind, node, at_ms, f"0/{offset}", action[0] if action else None)
        changes += [json.loads(change.to_json()) for change in client.happened(event, rules)]
    return changes


def states(changes: list[dict[str, Any]]) -> list[str]:
    return [change["state"] for change in changes]


def test_time_online_is_counted_over_connections() -> None:
    found = play(
        (0, "connected", "a"), (4_000, "disconnected", "a"), (9_000, "connected", "b"), (9_500, "disconnected", "b")
    )
    assert states(found) == ["online", "offline", "online", "offline"]
    assert (found[1]["online_s"], found[3]["online_s"], found[3]["online_total_s"]) == (4.0, 0.5, 4.5)
    assert [change["id"] for change in found] == ["0/0", "0/1", "0/2", "0/3"]


@pytest.mark.parametrize("late", ["before", "after"])
def test_a_take_over_leaves_the_client_online(late: str) -> None:
    end = [(2_000, "taken_over", "a"), (2_000, "disconnected", "a")]
    begin = [(2_000, "connected", "b")]
    found = play(
        (0, "connected", "a"), *(end + begin if late == "before" else begin + end), (3_000, "disconnected", "b")
    )
    assert states(found)[-2:] == ["online", "offline"]
    assert found[-1]["node_id"] == "b"
    assert (found[-1]["online_total_s"], found[-1]["take_overs"]) == (3.0, 1)


def test_flapping_is_said_once_and_again_when_the_ban_is_over() -> None:
    storm = [(at_ms, "connected", "a") for at_ms in range(0, 12_000, 1_000)]
    found = [change for change in play(*storm) if change["state"] == "flapping"]
    assert [(change["id"], change["count"]) for change in found] == [("0/2", 3)]
    again = [(70_000 + step, "connected", "a") for step in range(3)]
    assert states(play(*storm, *again)).count("flapping") == 2
    slow = [(at_ms, "connected", "a") for at_ms in range(0, 60_000, 5_000)]
    assert "flapping" not in states(play(*slow))


def test_only_what_an_authenticated_client_does_is_abuse() -> None:
    assert states(play((0, "denied", "a", "publish"), (1, "denied", "a", "subscribe"))) == ["abusive"]
    for action in ("connect", "ban", "api"):
        assert play(*[(at_ms, "denied", "a", action) for at_ms in range(50)]) == []


def test_old_judgements_ban_nobody() -> None:
    found = [Judgement("c", "flapping", "0/1", 1_000), Judgement("d", "abusive", "0/2", 3_000)]
    bans, held_back = Ledger().decide(found, BanRules(), 2_000)
    assert [(ban.key, ban.expires_at) for ban in bans] == [("ban/client_id/d", 3.0)]
    assert held_back == []


def test_a_repeated_batch_bans_again_only_if_the_ledger_was_not_stored(tmp_path: Path) -> None:
    found = [Judgement("c", "flapping", "0/1", 10_000)]
    file = tmp_path / "bans.json"
    first = Ledger.load(file)
    (ban,) = first.decide(found, BanRules(), 1_000)[0]
    assert Ledger.load(file).decide(found, BanRules(), 2_000)[0] == [ban]  # killed in between: the same record
    first.save(file)
    assert Ledger.load(file).decide(found, BanRules(), 2_000)[0] == []  # an operator may have lifted it


def test_bans_are_bounded_and_some_are_never_banned() -> None:
    found = [Judgement(f"c{number}", "flapping", f"0/{number}", 500_000) for number in range(5)]
    rules = BanRules(never=("c0", "*4"), per_minute_max=2)
    ledger = Ledger()
    bans, held_back = ledger.decide(found, rules, 1_000)
    assert ([ban.value for ban in bans], [each.client_id for each in held_back]) == (["c1", "c2"], ["c3"])
    assert [ban.value for ban in ledger.decide(found, rules, 62_000)[0]] == ["c3"]
    assert ledger.banned.keys() == {"0/1", "0/2", "0/3"}
    ledger.decide([], rules, 500_001)
    assert ledger.banned == {}
    assert Ledger().decide([Judgement("c", "online", "0/1", 0)], BanRules(), 0) == ([], [])


def test_the_processor_keeps_a_client_and_forgets_it() -> None:
    tester = TwsTester(PresenceProcessor(RULES), timeMode="EventTime", eventTimeExtractor=lambda row: row.at_ms)

    def row(kind: str, offset: int, at_ms: int) -> Row:
        timestamp = datetime.fromtimestamp(at_ms / 1000, UTC)
        return Row(
            kind=kind, node_id="a", at_ms=at_ms, partition=0, offset=offset, action=None, peer=None, reason=None,
            timestamp=timestamp,
        )  # fmt: skip

    found = tester.test("c", [row("disconnected", 1, 2_000), row("connected", 0, 1_000)])
    assert [one.state for one in found] == ["online", "offline"]
    assert tester.peekValueState("client", "c") is not None
    tester.setWatermark(1_000 + RULES.forget_ms + 10)  # the timer rings, but 2_000 is not long enough ago
    assert tester.peekValueState("client", "c") is not None
    tester.setWatermark(2_000 + RULES.forget_ms + 10)
    assert tester.peekValueState("client", "c") is None


def test_events_are_read_and_changes_written(spark: SparkSession) -> None:
    at = datetime(2026, 6, 1, tzinfo=UTC)
    values = [
        Event("connected", "a/b+#%", "edge-1", 5, {"peer": "10.0.0.1", "user": "u"}).to_json(),
        Event("subscribed", "c", "edge-1", 5, {"topic_filters": ["x"]}).to_json(),
        Event("denied", "c", "edge-1", 5, {"action": "publish", "left_out": 3}).to_json(),
        Event("denied", "", "edge-1", 5, {"action": "api"}).to_json(),
        Event("disconnected", "c", "edge-1", 5, {"reason": "its edge is gone", "of_node": "edge-2"}).to_json(),
        b"{bad",
        b"\xff",
        None,
    ]
    rows = [(value, 1, offset, at) for offset, value in enumerate(values)]
    frame = spark.createDataFrame(rows, "value binary, partition int, offset long, timestamp timestamp")
    at_ms = round(at.timestamp() * 1000)
    assert_rows(
        happenings(frame),
        [
            ("a/b+#%", "connected", "edge-1", at_ms, 1, 0, None, "10.0.0.1", None, at),
            ("c", "denied", "edge-1", at_ms, 1, 2, "publish", None, None, at),
            ("c", "disconnected", "edge-2", at_ms, 1, 4, None, None, "its edge is gone", at),
        ],
    )
    changed = [
        ("a/b+#%", "online", "1/0", 0, "{}"),
        ("c", "flapping", "1/2", 9, "{}"),
        ("flapping", "offline", "1/3", 0, "{}"),
    ]
    records = presence_records(
        spark.createDataFrame(changed, "client_id string, state string, id string, until_ms long, body string")
    ).collect()
    assert [row.headers[0]["value"].decode() for row in records] == [
        "analytics/presence/a%2Fb%2B%23%25",
        "analytics/presence/flapping/c",
        "analytics/presence/flapping",
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--trigger", "realtime:5m"], "micro-batches"),
        (["--connects-max", "0"], "--connects-max"),
        (["--bans-per-minute", "-1"], "--bans-per-minute"),
        (["--ban-for", "soon"], "--ban-for"),
    ],
)
def test_wrong_options_say_what_to_write(arguments: list[str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        read_options(arguments)
