"""`headwater nodes`: the edges of the cluster, what each reads from Kafka and how far behind it is."""

from __future__ import annotations

import asyncio
import time

from rich.table import Table

from bridge.cluster import Consumed, NodeStatus, read_cluster
from bridge.kafka_log import KafkaLog
from edge.cli.console import Cluster, ConfigOption, JsonOption, KafkaOption, cluster, output, print_json


def run(kafka: KafkaOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the edges: state, age of the last heartbeat, connections, partitions consumed and their lag."""
    nodes = asyncio.run(_read(cluster(kafka, config)))
    if as_json:
        print_json([node.to_dict() for node in nodes])
    elif nodes:
        output().print(table(nodes))
    else:
        output().print("no edge has announced itself")


async def _read(target: Cluster) -> tuple[NodeStatus, ...]:
    log = KafkaLog(target.bootstrap, client_id="headwater-nodes", options=target.client_options)
    await log.start()
    try:
        return await read_cluster(log, time.time_ns() // 1_000_000)
    finally:
        await log.stop()


def table(nodes: tuple[NodeStatus, ...]) -> Table:
    """One row per node, one line per partition that it consumes."""
    columns = ("node", "state", "age", "MQTT", "connections", "sessions", "consumes", "lag")
    made = Table(*columns)
    for node in nodes:
        beat = node.heartbeat
        made.add_row(
            beat.node_id,
            node.state,
            f"{node.age_s:.1f} s",
            beat.mqtt_address,
            str(beat.connections),
            str(beat.sessions),
            "\n".join(f"{one.kafka_topic} \\[{one.partition}]" for one in node.consumed) or "nothing",
            "\n".join(map(_lag, node.consumed)),
        )
    return made


def _lag(one: Consumed) -> str:
    return "?" if one.lag_records is None else str(one.lag_records)
