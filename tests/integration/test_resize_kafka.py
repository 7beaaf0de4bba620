"""`headwater topics resize` on a real Kafka with two real edges, under load: 12 -> 24 -> 6."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from support.edges import Up
from support.resize import DURABLE, Load, Seen, connected, shared_whole

pytestmark = pytest.mark.kafka


async def resize(kafka: str, config: Path, *arguments: str) -> dict[str, Any]:
    """What the command says; it has to succeed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "edge.cli.app", "topics", "resize", *arguments),
        *("--kafka", kafka, "--routes", str(config), "--json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await process.communicate()
    assert process.returncode == 0, error.decode()
    said: dict[str, Any] = json.loads(out)
    return said


async def test_twelve_to_twenty_four_to_six_under_load(kafka_bootstrap: str, tmp_path: Path) -> None:
    prefix = f"t{uuid.uuid4().hex[:12]}"
    config = tmp_path / "edge.toml"
    config.write_text(
        f"""
        [[routes]]
        filter = "{prefix}/{{site}}/{{device}}/#"
        kafka_topic = "mqtt.{prefix}"
        key = "{{site}}/{{device}}"
        partitions = 12
        [[routes]]
        filter = "#"
        kafka_topic = "mqtt.messages"
        partitions = 12
        """
    )
    up = await asyncio.to_thread(lambda: Up(tmp_path, kafka_bootstrap, more=["--config", str(config)]))
    try:
        one, two = (edge.mqtt for edge in up.edges)
        async with AsyncExitStack() as stack:
            live, durable, late = Seen(), Seen(), Seen()
            await (await connected(stack, one, live)).subscribe(f"{prefix}/#", 2)
            client = await connected(stack, two, durable, client_id=f"{prefix}-durable", **DURABLE)
            await client.subscribe(f"{prefix}/#", 2)
            members = [Seen(), Seen()]
            for address, seen in zip((one, two), members, strict=True):
                await (await connected(stack, address, seen)).subscribe(f"$share/g/{prefix}/#", 2)
            absent = [f"{prefix}/#", f"$share/absent/{prefix}/#"]
            for number, topic_filter in enumerate(absent):
                client = await connected(stack, one, client_id=f"{prefix}-absent-{number}", **DURABLE)
                await client.subscribe(topic_filter, 2)
                await client.disconnect()
            loads = [Load(1, prefix, pause_s=0.3), Load(2, prefix, pause_s=0.3)]
            for load in loads:
                load.begin([await connected(stack, address) for address in (one, two)])
            for partitions in ("24", "6"):
                said = await resize(kafka_bootstrap, config, prefix, partitions, "--wait", "0")
                assert said["status"]["partitions"] == int(partitions)
                assert [step["step"] for step in said["steps"]][:4] == ["create", "read", "freeze", "switch"]
            assert said["status"]["read"] == [12, 24, 6]
            assert said["status"]["kafka_partitions"] == 24
            for load in loads:
                await load.end()
            shared_late = Seen()
            for number, seen in enumerate((late, shared_late)):
                await connected(stack, two, seen, client_id=f"{prefix}-absent-{number}", clean_start=False, **DURABLE)
            for who, seen in (("live", live), ("durable", durable), ("offline", late)):
                await seen.whole(loads, who=who)
            await shared_whole(members, loads, who="the group")
            await shared_whole([shared_late], loads, who="the group of an absent client")
            said = await resize(kafka_bootstrap, config, prefix, "6", "--wait", "30")
            assert said["status"]["read"] == [6], said
    finally:
        up.stop()
