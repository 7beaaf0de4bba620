"""A recorded history: what went over the wire between clients and edges, as JSON lines; and what it means.

`Recorder` writes one line per packet, connection and fault. `replay` reads the lines back into a
`simulation_history.History`, which the checkers look at, and notices on the way what a server may not do on the wire
(invariants I6 and I14). It knows nothing of how clients or edges work: only what was sent, and what the MQTT rules are.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.simulation_history import Connection, Fault, History, Message, Receipt, SubscriptionSpan
from support.simulation_loop import EPOCH_S

from edge.wire import (
    Connack,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)

SHARE_PREFIX = "$share/"
_TAKEN_OVER = 0x8E
_OUR_FAULT = (0x80, 0x81, 0x82, 0x83, 0x93)  # DISCONNECT: the server finds fault with the client
_WITHOUT_MEANING = frozenset({"Pingreq", "Pingresp", "Connect", "Auth"})

Line = dict[str, Any]


class Recorder:
    """Appends lines to a file; nothing else holds them. `answered` is set by each PUBACK and PUBREC to a client."""

    def __init__(self, path: Path) -> None:
        self.answered = asyncio.Event()
        self._file = path.open("w", encoding="utf-8")

    def write(self, event: str, **values: Any) -> None:
        """One line: when, what, and what belongs to it."""
        self._file.write(json.dumps({"t": time.time(), "e": event} | values) + "\n")

    def packet(self, client: str, connection: int, direction: str, packet: Packet) -> None:
        """A packet as it went over the wire; `direction` is "in" (to the client) or "out"."""
        if direction == "in" and isinstance(packet, Puback | Pubrec):
            self.answered.set()
        self.write(direction, client=client, conn=connection, **packet_line(packet))

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> list[Line]:
    """The lines of a history."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def packet_line(packet: Packet) -> Line:
    """What a line says of a packet."""
    line: Line = {"p": type(packet).__name__}
    match packet:
        case Publish():
            name = packet.topic_name_utf8.decode()
            line |= {"topic_name": name, "payload": packet.payload.decode("latin-1"), "qos": packet.qos}
            line |= {"dup": packet.dup, "retain": packet.retain, "id": packet.packet_id}
            if packet.properties is not None and packet.properties.message_expiry_interval_s is not None:
                line["expiry_s"] = packet.properties.message_expiry_interval_s
        case Puback() | Pubrec() | Pubrel() | Pubcomp():
            line |= {"id": packet.packet_id, "code": int(packet.reason_code)}
        case Connack():
            line |= {"code": int(packet.reason_code), "session_present": packet.session_present}
            line |= {"receive_maximum": packet.properties.receive_maximum}
        case Subscribe():
            filters = [[each.topic_filter, each.qos, each.no_local] for each in packet.subscriptions]
            line |= {"id": packet.packet_id, "filters": filters}
        case Unsubscribe():
            line |= {"id": packet.packet_id, "filters": list(packet.topic_filters)}
        case Suback() | Unsuback():
            line |= {"id": packet.packet_id, "codes": [int(code) for code in packet.reason_codes]}
        case Disconnect():
            line |= {"code": int(packet.reason_code)}
    return line


def will_line(will: Will) -> Line:
    """What a line says of the will of a CONNECT."""
    return {
        "topic_name": will.topic_name,
        "payload": will.payload.decode("latin-1"),
        "qos": will.qos,
        "retain": will.retain,
        "delay_s": will.properties.will_delay_interval_s or 0,
    }


@dataclass(frozen=True, slots=True)
class Sample:
    """What an edge had at a time. `phase`: "start" without clients, "run", "left" when all clients are gone. `tasks`:
    None when it gave no answer."""

    at: float
    edge: str
    phase: str
    memory_kb: int
    files: int
    tasks: int | None


@dataclass(slots=True)
class Recorded:
    """What the lines say. `shared`: spans of shared subscriptions by group and filter; `marks`: notes of the run."""

    history: History = field(default_factory=History)
    shared: dict[str, list[SubscriptionSpan]] = field(default_factory=dict)
    marks: dict[str, Any] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)


@dataclass(slots=True)
class _Flow:
    message: Message
    is_released: bool = False


@dataclass(slots=True)
class _Client:
    """A client's session, as the rules have it (section 4.1)."""

    name: str
    session: int = 0
    has_session: bool | None = False  # None: nobody knows
    connection: Connection | None = None
    is_connected: bool = False
    flows: dict[int, _Flow] = field(default_factory=dict)
    received: dict[int, bytes] = field(default_factory=dict)  # QoS 2 packet ids that are not released, with the payload
    unacknowledged: dict[int, Receipt] = field(default_factory=dict)
    expected: list[int] = field(default_factory=list)  # QoS 1 packet ids in the order in which PUBACK must come
    requests: dict[int, tuple[float, list[list[Any]]]] = field(default_factory=dict)
    spans: dict[str, SubscriptionSpan] = field(default_factory=dict)


class _Replay:
    def __init__(self) -> None:
        self.recorded = Recorded()
        self.history = self.recorded.history
        self.clients: dict[str, _Client] = {}
        self.at = 0.0
        self.numbers: dict[str, int] = {}

    def take(self, line: Line) -> None:
        self.at = line["t"] - EPOCH_S
        match line["e"]:
            case "open":
                self._open(line)
            case "in" | "out" as direction:
                client = self.clients[line["client"]]
                if client.connection is None or client.connection.number != line["conn"]:
                    return  # of a connection that the client has left
                if line["p"] not in _WITHOUT_MEANING:
                    getattr(self, f"_{direction}_{line['p'].lower()}")(client, line)
            case "closed":
                self._closed(line)
            case "fault":
                self.history.faults.append(Fault(line["edge"], line["kind"], self.at))
            case "healed":
                for fault in self.history.faults:
                    if (fault.edge, fault.kind) == (line["edge"], line["kind"]):
                        fault.until_at = min(fault.until_at, self.at)
            case "mark":
                self.recorded.marks |= line["values"]
                for name in line["values"].get("truncated", ()):
                    self.clients[name].has_session = None  # Kafka has deleted what it had not got
            case "sample":
                self.recorded.samples.append(
                    Sample(self.at, line["edge"], line["phase"], line["memory_kb"], line["files"], line["tasks"])
                )
            case "end":
                self.history.ended_at = self.at
            case event:
                raise ValueError(f"no such event: {event}")

    # Connections

    def _open(self, line: Line) -> None:
        client = self.clients.setdefault(line["client"], _Client(line["client"]))
        will = line.get("will")
        message = None
        if will is not None:
            payload = will["payload"].encode("latin-1")
            message = Message(payload, will["topic_name"], will["qos"], will["retain"], client.name, 0, is_will=True)
            self.history.messages[payload] = message
        client.connection = Connection(
            client.name,
            line["conn"],
            line["edge"],
            line["version"],
            line["clean"],
            line["expiry_s"],
            self.at,
            expected=False if line["clean"] else client.has_session,
            will=message,
            will_delay_s=will["delay_s"] if will is not None else 0,
            user=line.get("user") or "",
            receive_maximum=line["receive_maximum"],
        )
        self.history.connections.append(client.connection)
        client.is_connected = False
        client.unacknowledged.clear()
        client.expected.clear()
        client.requests.clear()
        if line["clean"]:
            self._session_over(client)
        if client.has_session is not True:
            client.has_session = None

    def _closed(self, line: Line) -> None:
        client = self.clients[line["client"]]
        connection = client.connection
        if connection is None or connection.number != line["conn"]:
            return
        if connection.ended_at is None:
            connection.ended_at, connection.end = self.at, line["how"]
        client.connection, client.is_connected = None, False
        if connection.accepted_at is not None and connection.expiry_s == 0:
            client.has_session = False
            self._spans_end(client)

    def _session_over(self, client: _Client) -> None:
        self._spans_end(client)
        client.received.clear()
        client.session += 1

    def _spans_end(self, client: _Client) -> None:
        for span in client.spans.values():
            span.until_at = min(span.until_at, self.at)
        client.spans.clear()

    def _in_connack(self, client: _Client, line: Line) -> None:
        connection = client.connection
        assert connection is not None
        if client.is_connected:
            self._wrong("I6", client, "a second CONNACK")
        if line["code"] >= 0x80:
            connection.refused_code = line["code"]
            return
        client.is_connected = client.has_session = True
        connection.accepted_at, connection.session_present = self.at, line["session_present"]
        if not line["session_present"]:
            self._session_over(client)
            for flow in client.flows.values():
                flow.message.is_abandoned = True
            client.flows.clear()

    def _in_disconnect(self, client: _Client, line: Line) -> None:
        assert client.connection is not None
        client.connection.ended_at = self.at
        client.connection.end = "taken over" if line["code"] == _TAKEN_OVER else "server"
        if line["code"] in _OUR_FAULT:
            self._wrong("I6", client, f"the server finds fault with the client: 0x{line['code']:02x}")

    def _out_disconnect(self, client: _Client, line: Line) -> None:
        assert client.connection is not None
        client.connection.ended_at = self.at
        client.connection.end = "disconnect" if line["code"] == 0 else "disconnect with will"

    # What a client publishes

    def _out_publish(self, client: _Client, line: Line) -> None:
        connection = client.connection
        assert connection is not None
        payload = line["payload"].encode("latin-1")
        message = self.history.messages.get(payload)
        if message is None:
            number = self.numbers[client.name] = self.numbers.get(client.name, 0) + 1
            message = Message(
                payload, line["topic_name"], line["qos"], line["retain"], client.name, number, line.get("expiry_s")
            )
            self.history.messages[payload] = message
        message.sends.append((self.at, connection.number))
        if line["qos"]:
            client.flows.setdefault(line["id"], _Flow(message))
        if line["qos"] == 1:
            client.expected.append(line["id"])

    def _in_puback(self, client: _Client, line: Line) -> None:
        packet_id = line["id"]
        if not self._is_connected(client, line):
            return
        flow = client.flows.pop(packet_id, None)
        if flow is None or flow.message.qos != 1:
            self._wrong("I6", client, f"PUBACK {packet_id} for nothing")
            return
        if client.expected[:1] != [packet_id]:
            self._wrong("I6", client, f"PUBACK {packet_id} is out of order, {client.expected[:5]} are expected")
        if packet_id in client.expected:
            client.expected.remove(packet_id)
        if line["code"] >= 0x80:
            flow.message.is_refused = True
        else:
            flow.message.answered_at = flow.message.completed_at = self.at

    def _in_pubrec(self, client: _Client, line: Line) -> None:
        if not self._is_connected(client, line):
            return
        flow = client.flows.get(line["id"])
        if flow is None or flow.message.qos != 2:
            self._wrong("I6", client, f"PUBREC {line['id']} for nothing")
        elif line["code"] >= 0x80:
            flow.message.is_refused = True
            del client.flows[line["id"]]
        elif flow.message.answered_at is None:
            flow.message.answered_at = self.at

    def _out_pubrel(self, client: _Client, line: Line) -> None:
        if line["id"] in client.flows:
            client.flows[line["id"]].is_released = True

    def _in_pubcomp(self, client: _Client, line: Line) -> None:
        if not self._is_connected(client, line):
            return
        flow = client.flows.pop(line["id"], None)
        if flow is None or not flow.is_released:
            self._wrong("I6", client, f"PUBCOMP {line['id']} for nothing")
        else:
            flow.message.completed_at = self.at

    # What comes to a client

    def _in_publish(self, client: _Client, line: Line) -> None:
        if not self._is_connected(client, line):
            return
        connection = client.connection
        assert connection is not None
        payload, packet_id = line["payload"].encode("latin-1"), line["id"]
        receipt = Receipt(
            self.at,
            client.name,
            connection.number,
            client.session,
            payload,
            line["topic_name"],
            line["qos"],
            line["retain"],
            line["dup"],
            is_new=True,
        )
        if line["qos"]:
            if packet_id in client.unacknowledged:
                self._wrong("I6", client, f"packet id {packet_id} is used again: {payload!r}")
            client.unacknowledged[packet_id] = receipt
            if len(client.unacknowledged) > connection.receive_maximum:
                count, most = len(client.unacknowledged), connection.receive_maximum
                self._wrong("I6", client, f"{count} are in flight, {most} allowed")
        if line["qos"] == 2:
            receipt.is_new = packet_id not in client.received
            if not receipt.is_new and (not line["dup"] or client.received[packet_id] != payload):
                self._wrong("I6", client, f"QoS 2 packet id {packet_id} is not released and used for {payload!r}")
            client.received[packet_id] = payload
        self.history.receipts.append(receipt)

    def _out_puback(self, client: _Client, line: Line) -> None:
        receipt = client.unacknowledged.pop(line["id"], None)
        if receipt is not None:
            receipt.acknowledged_at = self.at

    def _out_pubrec(self, client: _Client, line: Line) -> None:
        receipt = client.unacknowledged.get(line["id"])
        if receipt is not None:
            receipt.acknowledged_at = self.at

    def _in_pubrel(self, client: _Client, line: Line) -> None:
        if not self._is_connected(client, line):
            return
        receipt = client.unacknowledged.get(line["id"])
        if receipt is not None and (receipt.qos != 2 or receipt.acknowledged_at is None):
            self._wrong("I6", client, f"PUBREL {line['id']} before PUBREC")
        client.received.pop(line["id"], None)

    def _out_pubcomp(self, client: _Client, line: Line) -> None:
        client.unacknowledged.pop(line["id"], None)

    # Subscriptions

    def _out_subscribe(self, client: _Client, line: Line) -> None:
        client.requests[line["id"]] = (self.at, line["filters"])
        self.history.asked.update((client.name, plain_filter(each[0])) for each in line["filters"])

    def _out_unsubscribe(self, client: _Client, line: Line) -> None:
        client.requests[line["id"]] = (self.at, [])
        for topic_filter in line["filters"]:
            span = client.spans.pop(topic_filter, None)
            if span is not None:
                span.until_at = self.at

    def _in_suback(self, client: _Client, line: Line) -> None:
        request = client.requests.pop(line["id"], None)
        if not self._is_connected(client, line):
            return
        if request is None or len(request[1]) != len(line["codes"]):
            self._wrong("I6", client, f"SUBACK {line['id']} for nothing")
            return
        for (topic_filter, _, no_local), code in zip(request[1], line["codes"], strict=True):
            if code >= 0x80 or topic_filter in client.spans:
                continue
            span = SubscriptionSpan(
                client.name, client.session, plain_filter(topic_filter), code, request[0], self.at, no_local=no_local
            )
            client.spans[topic_filter] = span
            if topic_filter.startswith(SHARE_PREFIX):
                self.recorded.shared.setdefault(topic_filter, []).append(span)
            else:
                self.history.spans.append(span)

    def _in_unsuback(self, client: _Client, line: Line) -> None:
        if client.requests.pop(line["id"], None) is None:
            self._wrong("I6", client, f"UNSUBACK {line['id']} for nothing")

    def _is_connected(self, client: _Client, line: Line) -> bool:
        if not client.is_connected:
            self._wrong("I14", client, f"{line['p']} before CONNACK")
        return client.is_connected

    def _wrong(self, invariant: str, client: _Client, text: str) -> None:
        number = client.connection.number if client.connection is not None else 0
        self.history.violation(invariant, f"{client.name}/{number} at {self.at:.3f}: {text}")


def plain_filter(topic_filter: str) -> str:
    """Without `$share/<group>/`."""
    return topic_filter.split("/", 2)[2] if topic_filter.startswith(SHARE_PREFIX) else topic_filter


def replay(lines: Iterable[Line]) -> Recorded:
    """What a history means; raises KeyError or ValueError for lines that are none."""
    machine = _Replay()
    for line in lines:
        machine.take(line)
    return machine.recorded
