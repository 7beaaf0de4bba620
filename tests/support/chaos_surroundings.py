"""Faults of what is around edges and Kafka: the clock, the disk, and Kafka's own housekeeping."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from support.chaos_checks import Log
from support.chaos_context import Context, NotHere
from support.chaos_site import Site

from bridge import topics_admin
from schemas.catalogue import RETAINED, SESSIONS, catalogue

HOUR_S = 3_600
CLOCK_S = 12
DISK_MB = 400
FULL_S = 8
BLOCK = b"\0" * (1 << 20)
COMPACTED_WITHIN_S = 60.0


def need_libfaketime(_: Site) -> None:
    """It changes what clock_gettime says, of one process."""
    _libfaketime()


def _libfaketime() -> str:
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not libraries:
        raise NotHere("libfaketime is not installed (on Debian: apt-get install faketime)")
    return str(libraries[0])


async def clock(context: Context) -> None:
    """One edge's wall clock jumps an hour ahead, two back, and is right again."""
    edge, shown = context.site.edges[0], context.site.folder / "clock"
    shown.write_text("+0")
    await edge.terminate()
    edge.environment = {
        "LD_PRELOAD": _libfaketime(),
        "FAKETIME_TIMESTAMP_FILE": str(shown),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    await edge.start()
    await asyncio.sleep(3)
    async with context.site.fault("clock", edge.node_id):
        for offset_s in (HOUR_S, -HOUR_S):
            shown.write_text(f"{offset_s:+d}")
            await asyncio.sleep(CLOCK_S)
        shown.write_text("+0")
        await asyncio.sleep(2)


def small_disk(site: Site) -> None:
    """Kafka's folder is a tmpfs of its own."""
    folder = site.kafka.data
    folder.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        raise NotHere(f"a small tmpfs cannot be mounted ({mounted.stderr.strip()}): it takes root")
    site.at_end.callback(subprocess.run, ["umount", str(folder)], check=False)


async def disk_full(context: Context) -> None:
    """The disk fills up and stays full for 8 s; Kafka may end, as it does when its only disk fails: then it is started
    again once there is room."""
    site = context.site
    ballast = site.kafka.data / "ballast"
    async with site.fault("disk full"):
        await asyncio.to_thread(_fill, ballast)
        for _ in range(FULL_S * 10):
            await asyncio.sleep(0.1)
            await asyncio.to_thread(_fill, ballast)
        context.figures["Kafka ended"] = float(not site.kafka.is_running)
        ballast.unlink()
        if not site.kafka.is_running:
            await asyncio.to_thread(site.kafka.kill)
            await asyncio.to_thread(site.kafka.start)


def _fill(path: Path) -> None:
    """Write until there is no room."""
    with path.open("ab") as file:
        try:
            while True:  # the tmpfs is bounded
                os.write(file.fileno(), BLOCK)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


async def compaction(context: Context) -> None:
    """What is compacted is compacted at once, tombstones included; then all edges start anew from what is left."""
    site = context.site
    await asyncio.sleep(8)  # sessions have changed, so that there is something to compact
    site.before_deletion = await site.read_log()
    forced = {
        "segment.ms": "1000",
        "min.compaction.lag.ms": "0",
        "max.compaction.lag.ms": "1000",
        "min.cleanable.dirty.ratio": "0.0",
        "delete.retention.ms": "1000",
    }
    specs = [
        replace(each, config={**each.config, **forced}) for each in catalogue() if each.name in (SESSIONS, RETAINED)
    ]
    async with site.fault("compaction"):
        await topics_admin.apply(site.kafka.bootstrap, specs, 1)
        before, left = _count(site.before_deletion), float("inf")
        for _ in range(int(COMPACTED_WITHIN_S)):
            await asyncio.sleep(1)
            left = _count(await site.read_log(), upto=site.before_deletion)
            if left < before / 2:
                break
        await asyncio.gather(*(edge.terminate() for edge in site.edges))
        await asyncio.gather(*(edge.start() for edge in site.edges))
    context.must("records of sessions left of what there was", left / before, 0.5)


def _count(log: Log, upto: Log | None = None) -> int:
    """Records of `headwater.sessions`; with `upto` those alone that were there then."""
    last: Mapping[tuple[str, int], int] = {
        place: records[-1].offset for place, records in (upto or {}).items() if records
    }
    return sum(
        upto is None or each.offset <= last.get(place, -1)
        for place, records in log.items()
        if place[0] == SESSIONS
        for each in records
    )
