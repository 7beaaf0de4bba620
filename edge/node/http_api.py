"""The state API under `/api/v1`: what this node and the cluster are doing, and what an operator may do about it.

`docs/http-api.md` has every resource. Each request needs a bearer token; what it may do follows from the token's role.
Whatever changes something is written down in `headwater.events` first (`bridge.audit`). Errors are JSON: `error` says
what is wrong, `remedy` what to do.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

import orjson
from aiohttp import web

from bridge.audit import audit
from bridge.control import Control, ControlRefused
from bridge.log import LogError
from bridge.membership import Membership
from edge.access.api_tokens import TOKEN_LENGTH_MAX, ApiToken, ApiTokens
from edge.access.limits import FailureTracker
from edge.handler.services import EdgeServices
from edge.node import http_state
from edge.node.config import HttpConfig
from edge.node.http_peer import remote_of
from edge.node.http_state import TIMESTAMP_S_MAX, Page
from edge.wire import ReasonCode
from schemas.control import Ban, NodeCommand, normal_address
from schemas.errors import ConfigurationError
from schemas.nodes import STATE_UP

PREFIX: Final = "/api/v1"
PAGE_MAX: Final = 1_000
PAGE_DEFAULT: Final = 100
BODY_BYTES_MAX: Final = 64 * 1024
_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Resource = Callable[[web.Request, "Caller"], Awaitable[web.Response]]


class ApiError(Exception):
    """An answer that says what is wrong and what to do about it."""

    def __init__(
        self, status: int, error: str, remedy: str, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(error)
        self.status = status
        self.body = {"error": error, "remedy": remedy, **more}
        self.headers = dict(headers or {})

    def response(self) -> web.Response:
        """As JSON."""
        return _json(self.body, self.status, self.headers)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    token: ApiToken
    peer: str


class StateApi:
    """The resources, and who may ask for them. Raises ConfigurationError when the tokens cannot be read."""

    def __init__(
        self, services: EdgeServices, config: HttpConfig, dev: bool, control: Control, membership: Membership
    ) -> None:
        self._services = services
        self._config = config
        self._dev = dev
        self._control = control
        self._membership = membership
        self._tokens = ApiTokens(config.tokens) if config.tokens is not None else None
        self._failures = FailureTracker(services.limits)

    def add_to(self, application: web.Application) -> None:
        """Serve it; the application starts and stops what runs beside."""
        application.middlewares.append(_errors_as_json)
        application.on_startup.append(self._start)
        application.on_cleanup.append(self._stop)
        get, post, delete = web.get, web.post, web.delete
        routes: tuple[tuple[Callable[..., web.RouteDef], str, str, Resource], ...] = (
            (get, "/nodes", "viewer", self._nodes),
            (get, "/nodes/{node_id}", "viewer", self._node),
            (post, "/nodes/{node_id}/drain", "operator", self._drain),
            (get, "/clients", "viewer", self._clients),
            (get, "/clients/{client_id}", "viewer", self._client),
            (delete, "/clients/{client_id}", "operator", self._kick),
            (get, "/clients/{client_id}/subscriptions", "viewer", self._client_subscriptions),
            (get, "/subscriptions", "viewer", self._subscriptions),
            (get, "/sessions", "viewer", self._sessions),
            (get, "/sessions/{client_id}", "viewer", self._session),
            (get, "/retained", "viewer", self._retained),
            (get, "/acl", "viewer", self._acl),
            (get, "/bans", "viewer", self._bans),
            (post, "/bans", "admin", self._ban),
            (delete, "/bans/{kind}/{value:.+}", "admin", self._unban),
        )
        application.add_routes([method(PREFIX + path, self._for(role, to)) for method, path, role, to in routes])

    def guard_metrics(self, handler: Handler) -> Handler:
        """`/metrics` is open with `--dev`, and needs a token else."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            if not self._dev:
                try:
                    self._caller(request, "viewer")
                except ApiError as error:
                    return error.response()
            return await handler(request)

        return guarded

    async def _start(self, _: web.Application) -> None:
        if self._tokens is not None:
            self._tokens.start()

    async def _stop(self, _: web.Application) -> None:
        if self._tokens is not None:
            await self._tokens.stop()

    # Who may ask -----------------------------------------------------------------------------------------------------

    def _for(self, role: str, resource: Resource) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                self._check_network(remote_of(request))
                return await resource(request, self._caller(request, role))
            except ApiError as error:
                return error.response()
            except ConfigurationError as error:
                return ApiError(400, str(error), "put it right and ask again").response()
            except ControlRefused as error:
                return ApiError(409, str(error), "put it right and ask again").response()
            except LogError as error:
                return ApiError(503, f"Kafka: {error}", "ask again when it is there").response()

        return answer

    def _check_network(self, peer: str) -> None:
        try:
            address = ip_address(normal_address(peer.partition("%")[0]))
        except ValueError:
            address = None
        if address is None or not any(address in network for network in self._config.api_networks):
            raise ApiError(
                403, f"the API is not served to {peer or 'this address'}", "name its network in http.api_networks"
            )

    def _caller(self, request: web.Request, role: str) -> Caller:
        """Whose token it is. Raises ApiError: 401 without a right one, 403 when its role does not suffice, 429 after
        too many wrong ones from this address."""
        peer, now = remote_of(request), self._services.loop.time()
        blocked_s = self._failures.blocked_s(peer, now)
        if blocked_s > 0:
            wait_s = math.ceil(blocked_s)
            raise ApiError(
                429, "too many wrong tokens from this address", f"wait {wait_s} s", {"Retry-After": str(wait_s)}
            )
        if self._tokens is None:
            raise _unauthorised(
                "there are no API tokens", "`headwater tokens add FILE NAME`, and name the FILE in http.tokens"
            )
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise _unauthorised("a token is needed", "send the header Authorization: Bearer TOKEN")
        found = self._tokens.find(token.strip()) if len(token) <= TOKEN_LENGTH_MAX else None
        if found is None:
            blocked = self._failures.failed(peer, now)
            self._services.event("denied", "", action="api", peer=peer, path=request.path, blocked=blocked)
            raise _unauthorised("the token is wrong", "`headwater tokens add FILE NAME` makes one")
        if not found.may(role):
            self._services.event("denied", "", action="api", peer=peer, path=request.path, by=found.name)
            raise ApiError(403, f"this needs the role {role}; {found.name} is {found.role}", "use a token of that role")
        return Caller(found, peer)

    async def _audit(self, caller: Caller, action: str, client_id: str = "", **more: Any) -> None:
        append_future, node_id = self._services.publisher.append_future, self._services.node_id
        token = caller.token
        await audit(append_future, node_id, token.name, action, client_id, role=token.role, peer=caller.peer, **more)

    # Nodes -----------------------------------------------------------------------------------------------------------

    async def _nodes(self, request: web.Request, _: Caller) -> web.Response:
        return _json({"items": http_state.nodes(self._membership), "next": None})

    async def _node(self, request: web.Request, _: Caller) -> web.Response:
        return _json(self._known_node(request.match_info["node_id"]))

    async def _drain(self, request: web.Request, caller: Caller) -> web.Response:
        node = self._known_node(request.match_info["node_id"])
        node_id, rate = node["node_id"], _number(await _body(request), "clients_per_s", 1e6)
        if node["state"] == http_state.STALE:
            raise ApiError(409, f"{node_id} is silent: nobody is there to obey", "end its process, if there is one")
        others = [each for each in http_state.nodes(self._membership) if each["node_id"] != node_id]
        if not any(each["state"] == STATE_UP for each in others):
            raise ApiError(409, "no other node is up to take the clients", "start one, or end the process by SIGTERM")
        await self._audit(caller, "drain", node=node_id, clients_per_s=rate)
        await self._control.put(
            NodeCommand(node_id, node["incarnation"], clients_per_s=rate, created_by=caller.token.name)
        )
        return _json({"node_id": node_id, "command": "drain", "clients": node["clients"]}, 202)

    def _known_node(self, node_id: str) -> dict[str, Any]:
        for node in http_state.nodes(self._membership):
            if node["node_id"] == node_id:
                return node
        raise ApiError(404, f"there is no node {node_id!r}", f"GET {PREFIX}/nodes lists them")

    # Clients ---------------------------------------------------------------------------------------------------------

    async def _clients(self, request: web.Request, _: Caller) -> web.Response:
        return _page(http_state.clients(self._services, *_range(request)))

    async def _client(self, request: web.Request, _: Caller) -> web.Response:
        return _json(http_state.client(self._connected(request)))

    async def _client_subscriptions(self, request: web.Request, _: Caller) -> web.Response:
        return _json({"items": http_state.subscriptions_of(self._connected(request)), "next": None})

    async def _kick(self, request: web.Request, caller: Caller) -> web.Response:
        client_id = self._connected(request).client_id
        await self._audit(caller, "kick", client_id)
        handler = self._connected(request)  # it may have gone meanwhile
        handler.disconnect(ReasonCode.ADMINISTRATIVE_ACTION, "closed by an administrator")
        return web.Response(status=204, headers=_HEADERS)

    def _connected(self, request: web.Request) -> Any:
        client_id = request.match_info["client_id"]
        handler = self._services.clients.get(client_id)
        if handler is not None:
            return handler
        owner = self._services.ownership.owner(client_id)
        elsewhere = owner.claim.node_id if owner is not None and not owner.is_released else self._services.node_id
        heartbeat = self._membership.view.get(elsewhere)
        if elsewhere != self._services.node_id and heartbeat is not None:
            url = f"http://{heartbeat.http_address}{request.path}"
            raise ApiError(421, f"{client_id!r} is connected to {elsewhere}", "ask that node", node=elsewhere, url=url)
        raise ApiError(404, f"{client_id!r} is not connected", f"GET {PREFIX}/sessions has those that are away")

    # What is stored --------------------------------------------------------------------------------------------------

    async def _subscriptions(self, request: web.Request, _: Caller) -> web.Response:
        return _page(http_state.subscriptions(self._services, *_range(request)))

    async def _sessions(self, request: web.Request, _: Caller) -> web.Response:
        return _page(http_state.sessions(self._services, *_range(request)))

    async def _session(self, request: web.Request, _: Caller) -> web.Response:
        client_id = request.match_info["client_id"]
        stored = self._services.sessions.view.get(client_id)
        if stored is None:
            raise ApiError(404, f"no session of {client_id!r} is stored", f"GET {PREFIX}/sessions lists them")
        return _json(http_state.session(stored, whole=True))

    async def _retained(self, request: web.Request, _: Caller) -> web.Response:
        topic_filter = request.query.get("filter", "#")
        return _page(http_state.retained(self._services, topic_filter, *_range(request)))

    async def _acl(self, request: web.Request, _: Caller) -> web.Response:
        return _json(http_state.acl(self._control.view, self._services.access.authorizer))

    # Bans ------------------------------------------------------------------------------------------------------------

    async def _bans(self, request: web.Request, _: Caller) -> web.Response:
        bans = self._services.access.bans.bans()
        return _page(http_state.bans(bans, self._services.wall_ms() / 1000, *_range(request)))

    async def _ban(self, request: web.Request, caller: Caller) -> web.Response:
        fields = await _body(request)
        now = self._services.wall_ms() / 1000
        expires_at = _number(fields, "expires_at", TIMESTAMP_S_MAX)
        if (expires_in_s := _number(fields, "expires_in_s", TIMESTAMP_S_MAX - now)) is not None:
            expires_at = now + expires_in_s
        if expires_at is not None and expires_at <= now:
            raise ApiError(400, "the ban would be over already", "give expires_in_s, in seconds from now")
        kind, value, reason = (_text(fields, name) for name in ("kind", "value", "reason"))
        ban = Ban.of(kind, value, expires_at, reason, caller.token.name)
        await self._audit(caller, "ban", ban.value if kind == "client_id" else "", ban=ban.key, expires_at=expires_at)
        await self._control.put(ban)
        return _json(http_state.ban(ban), 201)

    async def _unban(self, request: web.Request, caller: Caller) -> web.Response:
        ban = Ban.of(request.match_info["kind"], request.match_info["value"])
        if self._control.view.get(ban.key) is None:
            raise ApiError(404, f"there is no ban {ban.key}", f"GET {PREFIX}/bans lists them")
        await self._audit(caller, "unban", ban.value if ban.kind == "client_id" else "", ban=ban.key)
        await self._control.remove(ban.key)
        return web.Response(status=204, headers=_HEADERS)


# Requests and answers ------------------------------------------------------------------------------------------------


def _unauthorised(error: str, remedy: str) -> ApiError:
    return ApiError(401, error, remedy, {"WWW-Authenticate": 'Bearer realm="headwater"'})


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=orjson.dumps(value),
        status=status,
        headers={"Content-Type": "application/json; charset=utf-8", **_HEADERS, **(headers or {})},
    )


def _page(page: Page) -> web.Response:
    return _json({"items": page.items, "next": page.following})


def _range(request: web.Request) -> tuple[int, str]:
    """`limit` and `after` of the query."""
    text = request.query.get("limit", str(PAGE_DEFAULT))
    limit = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not 1 <= limit <= PAGE_MAX:
        raise ApiError(400, f"limit={text} is not a number from 1 to {PAGE_MAX}", "put it right and ask again")
    return limit, request.query.get("after", "")


async def _body(request: web.Request) -> dict[str, Any]:
    """The JSON object that was sent; without a body an empty one."""
    data = b""
    async for part in request.content.iter_any():
        data += part
        if len(data) > BODY_BYTES_MAX:
            raise ApiError(413, f"more than {BODY_BYTES_MAX} bytes", "send less")
    try:
        fields = orjson.loads(data) if data else {}
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"the body is not JSON: {error}", "send a JSON object") from None
    if not isinstance(fields, dict):
        raise ApiError(400, "the body is no JSON object", "send one, as in docs/http-api.md")
    return fields


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise ApiError(400, f"{name} must be text", "put it right and ask again")
    return value


def _number(fields: Mapping[str, Any], name: str, at_most: float) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= at_most:
        raise ApiError(400, f"{name} must be a number above 0, at most {at_most:.0f}", "put it right and ask again")
    return float(value)


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What aiohttp answers by itself below `/api`: no such resource, or not by this method."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if not request.path.startswith("/api") or error.status < 400:
            raise
        remedy = "docs/http-api.md has every resource"
        allowed = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
        return ApiError(error.status, f"{request.method} {request.path}: {error.reason}", remedy, allowed).response()
