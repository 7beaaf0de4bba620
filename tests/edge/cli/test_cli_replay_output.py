"""How records are shown, and the progress bar."""

from __future__ import annotations

import io
import json

import pytest

from bridge.replay.lines import LineRecord
from bridge.replay.run import Progress
from bridge.replay.selection import Item
from edge.cli.replay_output import OutputForm, ScreenSink, progress_bar


def item(payload: bytes | None, topic_name: str = "a/b", **headers: bytes) -> Item:
    fields = [("mqtt.topic", topic_name.encode()), *((f"mqtt.{name}", value) for name, value in headers.items())]
    record = LineRecord(3, 1_795_248_000_123, b"k", payload, fields)
    return record.timestamp, ("mqtt.messages", 1), record, topic_name.encode()


async def shown(form: OutputForm, capsys: pytest.CaptureFixture[str], *items: Item) -> str:
    sink = ScreenSink(form)
    await sink.open(None)
    await sink.write(items)
    await sink.finish({"records": len(items)})
    await sink.close()
    return capsys.readouterr().out


async def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    first, second, end = (await shown(OutputForm.JSON, capsys, item(b"\x1b[31m"), item(None))).splitlines()
    assert "\x1b" not in first
    assert json.loads(first)["payload"] == "\x1b[31m"
    assert json.loads(second)["payload"] is None
    assert json.loads(end) == {"end": {"records": 2}}


async def test_pretty(capsys: pytest.CaptureFixture[str]) -> None:
    text = await shown(
        OutputForm.PRETTY, capsys, item(b'{"t": 1}\n\x1b[31m', client_id=b"x\x07", qos=b"2", retain=b"1")
    )
    assert text == '2026-11-21T08:00:00.123Z  a/b  (QoS 2, retained from x\ufffd)\n    {"t": 1}\ufffd\ufffd[31m\n'
    assert "(3 bytes) ff 00 01" in await shown(OutputForm.PRETTY, capsys, item(b"\xff\x00\x01"))


async def test_a_table_has_columns_of_one_width(capsys: pytest.CaptureFixture[str]) -> None:
    text = await shown(OutputForm.TABLE, capsys, item(b"short"), item(b"y" * 500, "n" * 99, client_id=b"c" * 99))
    head, first, second = text.splitlines()
    assert head.index("payload") == first.index("short") == second.index("yyy")
    assert len(second) <= 160
    assert head.split() == ["time", "QoS", "client", "topic", "name", "payload"]


def test_no_bar_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(True) as bar:
        bar.show(Progress(records=5, done=5, total=10, time_ms=1))
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stderr", terminal)
    with progress_bar(True) as bar:
        bar.show(Progress(records=5_000, done=5, total=10, time_ms=1_795_248_000_123))
    assert "2026-11-21T08:00:00.123Z" in terminal.getvalue()
    assert "5,000 records" in terminal.getvalue()
    assert "50%" in terminal.getvalue()
