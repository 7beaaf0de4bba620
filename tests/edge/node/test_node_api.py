"""The state API: who may ask, what it tells, what it does, and that every write leaves a record."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from support.edges import edge_config, http_address, memory_edge, mqtt_address, records_of, until
from support.wire_client import connected, dial
from yarl import URL

from bridge.log import LogUnavailable
from bridge.memory_log import MemoryLog
from edge.access.api_tokens import ROLES, add_token
from edge.node import http_state
from edge.node.node import EdgeNode
from edge.wire import (
    Disconnect,
    Properties,
    Puback,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from schemas.control import AclRules, Ban
from schemas.errors import ConfigurationError
from schemas.nodes import NodeHeartbeat

STAYS: dict[str, Any] = {"properties": Properties(session_expiry_interval_s=600), "clean_start": False}


@dataclass
class Answer:
    status: int
    body: Any
    headers: Any


class Api:
    """Asks with one token."""

    def __init__(self, node: EdgeNode, session: aiohttp.ClientSession, tokens: dict[str, str]) -> None:
        self.node = node
        self.tokens = tokens
        self._session = session

    async def ask(
        self, method: str, path: str, role: str | None = "admin", *, token: str | None = None, **more: Any
    ) -> Answer:
        host, port = http_address(self.node)
        headers = more.pop("headers", {})
        if token is not None or role is not None:
            headers["Authorization"] = f"Bearer {token if token is not None else self.tokens[role or '']}"
        url = URL(f"http://{host}:{port}{path}", encoded=True)
        async with self._session.request(method, url, headers=headers, **more) as response:
            text = await response.text()
            is_json = response.headers.get("Content-Type", "").startswith("application/json")
            return Answer(response.status, json.loads(text) if is_json else text, response.headers)

    async def get(self, path: str, status: int = 200) -> Any:
        answer = await self.ask("GET", "/api/v1" + path)
        assert answer.status == status, answer
        return answer.body

    async def pages(self, path: str, limit: int) -> list[Any]:
        """All items, page by page; a bound on the number of pages."""
        items: list[Any] = []
        after = ""
        for _ in range(100):
            more = "&" if "?" in path else "?"
            page = await self.get(f"{path}{more}limit={limit}" + (f"&after={after}" if after else ""))
            assert len(page["items"]) <= limit
            items += page["items"]
            if page["next"] is None:
                return items
            after = quote(page["next"])
        raise AssertionError("the pages do not end")


@pytest.fixture
def tokens(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    path = tmp_path / "tokens"
    return path, {role: add_token(path, f"the-{role}", role) for role in ROLES}


@asynccontextmanager
async def api_of(node: EdgeNode, tokens: tuple[Path, dict[str, str]]) -> AsyncIterator[Api]:
    async with aiohttp.ClientSession() as session:
        yield Api(node, session, tokens[1])


@asynccontextmanager
async def served(
    tokens: tuple[Path, dict[str, str]], log: MemoryLog | None = None, http: dict[str, Any] | None = None, **table: Any
) -> AsyncIterator[Api]:
    more = {"http": {"port": 0, "tokens": str(tokens[0])} | (http or {})} | table
    async with memory_edge(log, **more) as node, api_of(node, tokens) as api:
        yield api


def audited(log: MemoryLog) -> list[dict[str, Any]]:
    events = [json.loads(record.value or b"{}") for record in records_of(log, "headwater.events")]
    return [event for event in events if event["kind"] == "admin"]


# Who may ask ---------------------------------------------------------------------------------------------------------


async def test_only_livez_and_readyz_need_no_token(tokens: Any) -> None:
    """SECURITY: with --dev /metrics, too."""
    async with served(tokens) as api:
        for path in ("/livez", "/readyz", "/metrics"):
            assert (await api.ask("GET", path, None)).status == 200
        for path in ("/nodes", "/clients", "/bans", "/sessions", "/subscriptions", "/retained", "/acl"):
            answer = await api.ask("GET", "/api/v1" + path, None)
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
            assert answer.body["remedy"]
            assert (await api.ask("GET", "/api/v1" + path, "viewer")).status == 200


async def test_metrics_need_a_token_without_dev(tokens: Any) -> None:
    hardened = {"dev": False, "authentication": {"anonymous": True}}
    async with served(tokens, **hardened) as api:
        assert (await api.ask("GET", "/metrics", None)).status == 401
        assert "headwater_connections" in (await api.ask("GET", "/metrics", "viewer")).body
        assert (await api.ask("GET", "/readyz", None)).status == 200


@pytest.mark.parametrize(
    ("method", "path", "needs"),
    [
        ("DELETE", "/clients/x", "operator"),
        ("POST", "/nodes/x/drain", "operator"),
        ("POST", "/bans", "admin"),
        ("DELETE", "/bans/user/x", "admin"),
    ],
)
async def test_roles(tokens: Any, method: str, path: str, needs: str) -> None:
    log = MemoryLog()
    async with served(tokens, log) as api:
        for role in ROLES:
            answer = await api.ask(method, "/api/v1" + path, role)
            if ROLES.index(role) < ROLES.index(needs):
                assert answer.status == 403
                assert needs in answer.body["error"]
            else:
                assert answer.status in (400, 404)  # there is no such thing: that it may ask is what counts
        assert audited(log) == []


async def test_without_tokens_nobody_may_ask() -> None:
    async with memory_edge() as node, aiohttp.ClientSession() as session:
        answer = await Api(node, session, {}).ask("GET", "/api/v1/nodes", None, token="hw_anything")
        assert answer.status == 401
        assert "headwater tokens add" in answer.body["remedy"]


async def test_wrong_tokens_are_counted_and_limited(tokens: Any) -> None:
    log = MemoryLog()
    async with served(tokens, log, limits={"failures_per_min": 3}) as api:
        for _ in range(3):
            assert (await api.ask("GET", "/api/v1/nodes", token="hw_wrong")).status == 401
        answer = await api.ask("GET", "/api/v1/nodes", "admin")
        assert answer.status == 429
        assert 290 <= int(answer.headers["Retry-After"]) <= 300
        async with connected(mqtt_address(api.node), "c"):  # MQTT counts for itself
            pass
        await until(lambda: len(denied(log)) == 3)
        assert [each["detail"]["blocked"] for each in denied(log)] == [False, False, True]
        assert "hw_wrong" not in str(denied(log))


def denied(log: MemoryLog) -> list[dict[str, Any]]:
    events = [json.loads(record.value or b"{}") for record in records_of(log, "headwater.events")]
    return [event for event in events if event["kind"] == "denied" and event["detail"]["action"] == "api"]


async def test_what_is_no_bearer_token(tokens: Any) -> None:
    async with served(tokens) as api:
        token = tokens[1]["admin"]
        for header in ("", "Bearer", "Bearer ", f"Basic {token}", token, f"Bearer {'x' * 2_000}"):
            answer = await api.ask("GET", "/api/v1/nodes", None, headers={"Authorization": header})
            assert answer.status == 401, header
        for header in (f"bearer {token}", f"Bearer  {token} "):
            answer = await api.ask("GET", "/api/v1/nodes", None, headers={"Authorization": header})
            assert answer.status == 200, header


async def test_other_networks_are_not_answered(tokens: Any) -> None:
    async with served(tokens, http={"api_networks": ["192.0.2.0/24"]}) as api:
        answer = await api.ask("GET", "/api/v1/nodes")
        assert answer.status == 403
        assert "api_networks" in answer.body["remedy"]
        assert (await api.ask("GET", "/metrics", None)).status == 200


async def test_tokens_that_cannot_be_read_stop_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="token file"):
        async with memory_edge(http={"port": 0, "tokens": str(tmp_path / "none")}):
            pass


# What it tells -------------------------------------------------------------------------------------------------------


async def test_nodes(tokens: Any) -> None:
    log = MemoryLog()
    async with served(tokens, log, node_id="a") as api, memory_edge(log, node_id="b") as b:
        await until(lambda: len(http_state.nodes(api.node._membership)) == 2)  # type: ignore[arg-type]
        items = (await api.get("/nodes"))["items"]
        assert [(node["node_id"], node["state"]) for node in items] == [("a", "up"), ("b", "up")]
        found = await api.get("/nodes/b")
        assert found["mqtt_address"] == b.heartbeat().mqtt_address
        assert (await api.get("/nodes/c", 404))["remedy"] == "GET /api/v1/nodes lists them"


async def test_a_silent_node_is_stale_and_cannot_be_drained(tokens: Any) -> None:
    log = MemoryLog(lambda: int(time.time() * 1000) - 60_000)
    gone = NodeHeartbeat("gone", "1", 0, 0, "127.0.0.1:1", "127.0.0.1:2")
    log.put("headwater.nodes", 0, b"gone", gone.to_json())
    log._clock_ms = lambda: int(time.time() * 1000)
    async with served(tokens, log) as api:
        assert (await api.get("/nodes/gone"))["state"] == "stale"
        answer = await api.ask("POST", "/api/v1/nodes/gone/drain")
        assert (answer.status, "silent" in answer.body["error"]) == (409, True)


async def test_a_client(tokens: Any) -> None:
    async with served(tokens) as api, connected(mqtt_address(api.node), "a/b c%ü", **STAYS) as client:
        requests = (SubscriptionRequest("x/#", 1), SubscriptionRequest("a"), SubscriptionRequest("$share/g/s"))
        await client.send(Subscribe(1, requests))
        await client.receive(Suback)
        await client.send(Publish(b"x/1", b"m", 1, packet_id=1))
        await client.receive(object)
        await client.receive(object)
        path = "/clients/" + "a%2Fb%20c%25%C3%BC"
        found = await api.get(path)
        assert found | {"connected_at": "", "keep_alive_s": 0} == {
            "client_id": "a/b c%ü",
            "node": "edge-test",
            "user": "anonymous",
            "peer": "127.0.0.1",
            "protocol_version": 5,
            "connected_at": "",
            "keep_alive_s": 0,
            "session_expiry_s": 600,
            "subscriptions": 3,
            "received": 1,
            "unacknowledged": 0,
            "sent": 1,
            "inflight": 1,
            "queue": 0,
            "queue_bytes": 0,
            "dropped": 0,
            "is_behind": False,
        }
        assert found["connected_at"].startswith(time.strftime("%Y-"))
        subscriptions = (await api.get(path + "/subscriptions"))["items"]
        assert [(each["topic_filter"], each["qos"]) for each in subscriptions] == [
            ("$share/g/s", 0),
            ("a", 0),
            ("x/#", 1),
        ]
        assert "is not connected" in (await api.get("/clients/nobody", 404))["error"]


@pytest.mark.parametrize("limit", [1, 2, 7, 8, 1_000])
async def test_lists_come_in_pages(tokens: Any, limit: int) -> None:
    async with served(tokens) as api, AsyncExitStack() as stack:
        for number in range(8):
            client = await stack.enter_async_context(connected(mqtt_address(api.node), f"c{number}", **STAYS))
            if number % 2:
                filters = tuple(SubscriptionRequest(f"t/{each}") for each in range(number))
                await client.send(Subscribe(1, filters))
                await client.receive(Suback)
            await client.send(Publish(b"r/%d" % number, b"kept", 1, retain=True, packet_id=1))
            await client.receive(Puback)
            assert api.node.control is not None
            await api.node.control.put(Ban("user", f"u{number}"))
        await until(lambda: len(api.node.services.sessions.view) == 8)
        expected = [f"c{number}" for number in range(8)]
        assert [each["client_id"] for each in await api.pages("/clients", limit)] == expected
        assert [each["client_id"] for each in await api.pages("/sessions", limit)] == expected
        assert [each["value"] for each in await api.pages("/bans", limit)] == [f"u{n}" for n in range(8)]
        names = [each["topic_name"] for each in await api.pages("/retained", limit)]
        assert names == [f"r/{number}" for number in range(8)]
        subscriptions = await api.pages("/subscriptions", limit)
        pairs = [(each["client_id"], each["topic_filter"]) for each in subscriptions]
        assert pairs == [(f"c{number}", f"t/{each}") for number in (1, 3, 5, 7) for each in range(number)]


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "limit=-1", "limit=1e3"])
async def test_a_bad_page_is_told(tokens: Any, query: str) -> None:
    async with served(tokens) as api:
        assert "1 to 1000" in (await api.get(f"/clients?{query}", 400))["error"]
        assert "as it is" in (await api.get("/subscriptions?after=%21", 400))["error"]


async def test_a_client_on_another_node_is_named_there(tokens: Any) -> None:
    log = MemoryLog()
    async with (
        served(tokens, log, node_id="a") as api,
        memory_edge(log, node_id="b") as b,
        connected(mqtt_address(b), "c"),
    ):
        await until(lambda: api.node.services.ownership.owner("c") and len(http_state.nodes(api.node._membership)) == 2)  # type: ignore[arg-type]
        for method in ("GET", "DELETE"):
            answer = await api.ask(method, "/api/v1/clients/c")
            assert answer.status == 421
            assert (answer.body["node"], answer.body["url"]) == (
                "b",
                f"http://{b.heartbeat().http_address}/api/v1/clients/c",
            )


async def test_sessions_that_are_away(tokens: Any) -> None:
    async with served(tokens) as api:
        async with connected(mqtt_address(api.node), "c", **STAYS) as client:
            await client.send(Subscribe(1, (SubscriptionRequest("x/#", 1),)))
            await client.receive(Suback)
        view = api.node.services.sessions.view
        await until(lambda: (held := view.get("c")) is not None and not held.state.connected)
        found = await api.get("/sessions/c")
        assert (found["user"], found["connected"], found["expiry_s"]) == ("anonymous", False, 600)
        assert found["subscriptions"] == [{"topic_filter": "x/#", "qos": 1}]
        assert found["expires_at"] > found["disconnected_at"]
        assert found["positions"]
        assert (await api.get("/sessions"))["items"][0]["subscriptions"] == 1
        await api.get("/sessions/nobody", 404)


async def test_retained_names_by_filter(tokens: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_state, "RETAINED_VISITS_MAX", 2)
    async with served(tokens) as api, connected(mqtt_address(api.node), "c") as client:
        for number, name in enumerate((b"a/1", b"a/2", b"b/1", b"b/2", b"c"), 1):
            await client.send(Publish(name, b"kept", 1, retain=True, packet_id=number))
            await client.receive(Puback)
        assert [each["topic_name"] for each in await api.pages("/retained?filter=%2B/2", 10)] == ["a/2", "b/2"]
        [item] = await api.pages("/retained?filter=c", 1)
        assert (item["payload_bytes"], item["expires_at"]) == (4, None)
        assert "filter=a/#/b" in (await api.get("/retained?filter=a/%23/b", 400))["error"]


async def test_the_acl_in_force(tokens: Any) -> None:
    rule = {"permit": "allow", "action": "all", "filter": "a/#", "user": "ann"}
    async with served(tokens) as api:
        assert await api.get("/acl") == {"revision": None, "applied_at": None, "created_by": None, "rules": None}
        assert api.node.control is not None
        revision = await api.node.control.put(AclRules((rule,), "root"))
        found = await api.get("/acl")
        assert (found["revision"], found["created_by"], found["rules"]) == (revision, "root", [rule])


async def test_what_there_is_not(tokens: Any) -> None:
    async with served(tokens) as api:
        for method, path, status in (
            ("GET", "/api/v1/nothing", 404),
            ("PUT", "/api/v1/bans", 405),
            ("GET", "/api", 404),
        ):
            answer = await api.ask(method, path)
            assert answer.status == status
            assert answer.body["remedy"]
        assert (await api.ask("GET", "/nothing", None)).body == "there is no such page\n"


# What it does --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 5])
async def test_a_kick(tokens: Any, version: int) -> None:
    log = MemoryLog()
    async with served(tokens, log) as api, connected(mqtt_address(api.node), "c", version) as client:
        answer = await api.ask("DELETE", "/api/v1/clients/c", "operator")
        assert (answer.status, answer.body) == (204, "")
        packets = await client.until_closed()
        if version == 5:
            [packet] = packets
            assert isinstance(packet, Disconnect)
            assert packet.reason_code is ReasonCode.ADMINISTRATIVE_ACTION
        [event] = audited(log)
        assert event["client_id"] == "c"
        assert event["detail"] == {"by": "the-operator", "action": "kick", "role": "operator", "peer": "127.0.0.1"}
        assert (await api.ask("DELETE", "/api/v1/clients/c")).status == 404
        async with connected(mqtt_address(api.node), "c", version):
            pass  # it may come back: a ban is something else


async def test_a_ban_and_its_end(tokens: Any) -> None:
    log = MemoryLog()
    async with served(tokens, log) as api, connected(mqtt_address(api.node), "bad") as client:
        body = {"kind": "client_id", "value": "bad", "expires_in_s": 60, "reason": "noisy"}
        answer = await api.ask("POST", "/api/v1/bans", json=body)
        assert answer.status == 201
        assert answer.body["created_by"] == "the-admin"
        await client.until_closed()
        [ban] = (await api.get("/bans"))["items"]
        assert (ban["kind"], ban["value"], ban["reason"]) == ("client_id", "bad", "noisy")
        async with dial(mqtt_address(api.node)) as again:
            assert (await again.connect("bad")).reason_code is ReasonCode.BANNED
        assert (await api.ask("DELETE", "/api/v1/bans/client_id/bad")).status == 204
        assert (await api.ask("DELETE", "/api/v1/bans/client_id/bad")).status == 404
        async with connected(mqtt_address(api.node), "bad"):
            pass
        assert [(event["detail"]["action"], event["detail"]["ban"]) for event in audited(log)] == [
            ("ban", "ban/client_id/bad"),
            ("unban", "ban/client_id/bad"),
        ]


async def test_a_network_is_banned_and_lifted_by_its_path(tokens: Any) -> None:
    async with served(tokens) as api:
        for path in ("192.0.2.0/24", "192.0.2.7%2F24"):
            answer = await api.ask("POST", "/api/v1/bans", json={"kind": "address", "value": "192.0.2.7/24"})
            assert (answer.status, answer.body["value"]) == (201, "192.0.2.0/24")
            assert (await api.ask("DELETE", f"/api/v1/bans/address/{path}")).status == 204


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{", "not JSON"),
        (b"[]", "no JSON object"),
        (b"", "a ban is by"),
        (b'{"kind":"colour","value":"x"}', "a ban is by"),
        (b'{"kind":"user"}', "must not be empty"),
        (b'{"kind":"user","value":5}', "value must be text"),
        (b'{"kind":"address","value":"here"}', "no address"),
        (b'{"kind":"user","value":"x","expires_in_s":0}', "above 0"),
        (b'{"kind":"user","value":"x","expires_in_s":1e300}', "at most"),
        (b'{"kind":"user","value":"x","expires_in_s":true}', "a number"),
        (b'{"kind":"user","value":"x","expires_at":5}', "over already"),
    ],
)
async def test_a_ban_that_cannot_be_is_told(tokens: Any, body: bytes, expected: str) -> None:
    log = MemoryLog()
    async with served(tokens, log) as api:
        answer = await api.ask("POST", "/api/v1/bans", data=body)
        assert answer.status == 400
        assert expected in answer.body["error"]
        assert audited(log) == []


async def test_a_body_is_bounded(tokens: Any) -> None:
    async with served(tokens) as api:
        assert (await api.ask("POST", "/api/v1/bans", data=bytes(70_000))).status == 413


async def test_a_drain(tokens: Any) -> None:
    log = MemoryLog()
    nodes = [
        EdgeNode(edge_config(node_id=name, http={"port": 0, "tokens": str(tokens[0])}), log) for name in ("a", "b")
    ]
    await nodes[0].start()
    try:
        async with api_of(nodes[0], tokens) as api:
            answer = await api.ask("POST", "/api/v1/nodes/a/drain")
            assert (answer.status, "no other node" in answer.body["error"]) == (409, True)
            await nodes[1].start()
            await until(lambda: len(http_state.nodes(nodes[0]._membership)) == 2)  # type: ignore[arg-type]
            async with connected(mqtt_address(nodes[1]), "c") as client:
                path = "/api/v1/nodes/b/drain"
                answer = await api.ask("POST", path, "operator", json={"clients_per_s": 50})
                assert (answer.status, answer.body["command"]) == (202, "drain")
                [packet] = await client.until_closed()
                assert isinstance(packet, Disconnect)
                assert packet.reason_code is ReasonCode.USE_ANOTHER_SERVER
            await until(nodes[1].drained.is_set)
            [event] = audited(log)
            assert (event["detail"]["node"], event["detail"]["clients_per_s"]) == ("b", 50.0)
            assert (await api.ask("POST", "/api/v1/nodes/b/drain", json={"clients_per_s": -1})).status == 400
            assert (await api.ask("POST", "/api/v1/nodes/c/drain")).status == 404
    finally:
        for node in reversed(nodes):
            await node.stop()


async def test_without_kafka_nothing_is_done(tokens: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record comes first: what cannot be written down is not done."""
    async with served(tokens) as api, connected(mqtt_address(api.node), "c") as client:

        async def unavailable(*_: object, **__: object) -> None:
            raise LogUnavailable("no answer")

        monkeypatch.setattr("edge.node.http_api.audit", unavailable)
        answer = await api.ask("DELETE", "/api/v1/clients/c")
        assert (answer.status, answer.body["error"]) == (503, "Kafka: no answer")
        assert "c" in api.node.services.clients
        await client.send(Disconnect())
