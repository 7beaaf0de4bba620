"""The plain Python side of the Spark benchmark counts what device_stats counts."""

from __future__ import annotations

import json
import math
import os
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.spark.jobs import _cpu_s, _descendants
from benchmarks.spark.throughput import WINDOW_MS, _count, _result

BASE_MS = 1_780_000_000_000


def record(value: float, at_ms: int, offset: int) -> Any:
    body = json.dumps({"ts": at_ms, "t": value, "name": "x", "on": True}).encode()
    headers = [("mqtt.topic", b"sensors/a/b/state")]
    return SimpleNamespace(headers=headers, value=body, timestamp=at_ms, offset=offset)


def test_the_windows_of_the_plain_consumer() -> None:
    groups: dict[tuple[str, str, int], list[Any]] = {}
    for offset, (value, second) in enumerate([(5.0, 1), (1.0, 9), (3.0, 4), (9.0, 10)]):
        _count(groups, record(value, BASE_MS + second * 1000, offset), True)
    assert [(device, metric) for device, metric, _ in groups] == [("a/b", "t")] * 2
    first = _result("a/b", "t", BASE_MS // WINDOW_MS, groups["a/b", "t", BASE_MS // WINDOW_MS], True)
    assert {name: first[name] for name in ("count", "min", "max", "mean", "last", "p50", "p99")} == {
        "count": 3,
        "min": 1.0,
        "max": 5.0,
        "mean": 3.0,
        "last": 1.0,
        "p50": 3.0,
        "p99": 5.0,
    }
    assert first["stddev"] == pytest.approx(math.sqrt(4.0))


def test_cpu_time_of_a_process_and_those_below_it() -> None:
    assert os.getpid() in _descendants(os.getppid())
    assert _cpu_s(os.getpid()) > 0
