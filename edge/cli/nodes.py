"""`headwater nodes`: the edges of the cluster, what each reads from Kafka and how far behind it is; and their drain."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

import typer
from rich.table import Table

from bridge.cluster import STALE, Consumed, NodeStatus, read_cluster
from bridge.kafka_log import KafkaLog
from edge.cli.console import Cluster, ConfigOption, JsonOption, KafkaOption, cluster, output, print_json
from edge.cli.control import Operator, operator
from schemas.control import NodeCommand
from schemas.errors import ConfigurationError
from schemas.nodes import STATE_DRAINING, STATE_UP, NodeHeartbeat

app = typer.Typer(help="List the edges, or drain one.")

POLL_S = 0.5
OBEYS_WITHIN_S = 10.0  # a heartbeat says that the node drains; they come every 2 s


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context, kafka: KafkaOption = None, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """List the edges: state, age of the last heartbeat, connections, partitions consumed and their lag."""
    if context.invoked_subcommand is not None:
        return
    nodes = asyncio.run(_read(cluster(kafka, config)))
    if as_json:
        print_json([node.to_dict() for node in nodes])
    elif nodes:
        output().print(table(nodes))
    else:
        output().print("no edge has announced itself")


@app.command("drain")
def drain(
    node_id: Annotated[str, typer.Argument(metavar="NODE")],
    rate: Annotated[
        float | None, typer.Option(min=0.1, metavar="CLIENTS/S", help="Else drain_clients_per_s of the edge.")
    ] = None,
    wait_s: Annotated[
        float, typer.Option("--wait", min=0, metavar="SECONDS", help="Wait for the edge to be gone, at most so long.")
    ] = 0.0,
    kafka: KafkaOption = None,
    config: ConfigOption = None,
) -> None:
    """Take an edge out of service: it lets nobody in, moves its clients to the other edges and ends."""
    clients, is_gone = asyncio.run(_drain(cluster(kafka, config), node_id, rate, wait_s))
    if is_gone:
        output().print(f"{node_id} has moved its clients and is gone")
        return
    output().print(f"{node_id} drains: {clients} clients move to the other edges")
    if wait_s:
        raise ConfigurationError(f"{node_id} is not gone after {wait_s:.0f} s; it goes on")


async def _drain(target: Cluster, node_id: str, rate: float | None, wait_s: float) -> tuple[int, bool]:
    """How many clients it had, and whether it is gone."""
    async with operator(target) as who:
        nodes = {node.heartbeat.node_id: node for node in await read_cluster(who.log, _now_ms())}
        node = nodes.pop(node_id, None)
        if node is None or node.state == STALE:
            raise ConfigurationError(f"there is no edge {node_id}: `headwater nodes` lists them")
        if not any(other.state == STATE_UP for other in nodes.values()):
            raise ConfigurationError("no other edge is up to take the clients; SIGTERM ends the process all the same")
        beat = node.heartbeat
        command = NodeCommand(node_id, beat.incarnation, clients_per_s=rate, created_by=who.name)
        await who.put("drain", command, node=node_id, clients_per_s=rate)
        return beat.sessions, await _until_gone(who, beat, max(wait_s, OBEYS_WITHIN_S), waits=wait_s > 0)


async def _until_gone(who: Operator, beat: NodeHeartbeat, within_s: float, *, waits: bool) -> bool:
    """Whether the process has left; without ``waits`` it is enough that it drains. Raises TimeoutError when it does not
    even do that."""
    give_up_at = time.monotonic() + within_s
    has_obeyed = False
    while time.monotonic() < give_up_at:
        nodes = {node.heartbeat.node_id: node for node in await read_cluster(who.log, _now_ms())}
        node = nodes.get(beat.node_id)
        if node is None or node.heartbeat.incarnation != beat.incarnation:
            return True
        has_obeyed = has_obeyed or node.state == STATE_DRAINING
        if has_obeyed and not waits:
            return False
        await asyncio.sleep(POLL_S)
    if not has_obeyed:
        raise TimeoutError(f"{beat.node_id} does not say that it drains; is it alive?")
    return False


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _read(target: Cluster) -> tuple[NodeStatus, ...]:
    log = KafkaLog(target.bootstrap, client_id="headwater-nodes", options=target.client_options)
    await log.start()
    try:
        return await read_cluster(log, _now_ms())
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
