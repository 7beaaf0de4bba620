"""TLS on TCP and WebSocket: versions, ALPN, client certificates, and files that change under a running edge."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.certificates import Authority
from support.edges import http_address, memory_edge, mqtt_address, until
from support.links import dial_link, dial_wss
from support.wire_client import dial

from edge.node.node import EdgeNode
from edge.wire import Pingreq, Pingresp, ReasonCode

ALL = [{"permit": "allow", "action": "all", "filter": "#"}]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path)
    made.issue("edge", "server")
    return made


@pytest.fixture
def fast_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.node.tls.RELOAD_S", 0.02)


def files(folder: Path, client_ca: Path | None = None) -> dict[str, str]:
    table = {"certificate": str(folder / "server.pem"), "key": str(folder / "server.key")}
    return table | ({"client_ca": str(client_ca)} if client_ca is not None else {})


def edge_of(folder: Path, client_ca: Path | None = None, **more: Any) -> Any:
    tls = files(folder, client_ca)
    return memory_edge(listeners=[{"port": 0, "tls": tls}], http={"port": 0, "tls": tls}, **more)


def mtls(client_ca: Path) -> dict[str, Any]:
    return {"dev": False, "authentication": {"client_certificates": True}, "acl": ALL} | {"client_ca": client_ca}


async def serial(address: tuple[str, int], context: ssl.SSLContext) -> int:
    """The serial number of the certificate that a new connection is shown."""
    _, writer = await asyncio.open_connection(*address, ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert()
    writer.close()
    await writer.wait_closed()
    return int(shown["serialNumber"], 16)


async def comes_to_show(address: tuple[str, int], context: ssl.SSLContext, wanted: int) -> None:
    async with asyncio.timeout(10):
        while await serial(address, context) != wanted:
            pass


@pytest.mark.parametrize("way", ["tcp", "websocket"])
async def test_mqtt_over_tls(tmp_path: Path, authority: Authority, way: str) -> None:
    context = authority.client_context()
    async with edge_of(tmp_path) as node:
        dialled = dial_link(mqtt_address(node), tls=context) if way == "tcp" else dial_wss(http_address(node), context)
        async with dialled as client:
            assert (await client.connect("c")).reason_code is ReasonCode.SUCCESS
            assert node.services.clients["c"].peer == "127.0.0.1"
            await client.send(Pingreq())
            await client.receive(Pingresp)
        await until(lambda: not node.services.connections)
        assert node.services.access.gate.statistics()["unauthenticated"] == 0


@pytest.mark.parametrize(("offered", "chosen"), [(["mqtt"], "mqtt"), (["x-other", "mqtt"], "mqtt"), (["h2"], None)])
async def test_alpn(tmp_path: Path, authority: Authority, offered: list[str], chosen: str | None) -> None:
    context = authority.client_context()
    context.set_alpn_protocols(offered)
    async with edge_of(tmp_path) as node:
        _, writer = await asyncio.open_connection(*mqtt_address(node), ssl=context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == chosen
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(("newest", "is_served"), [(ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)])
async def test_tls_1_2_is_the_oldest(
    tmp_path: Path, authority: Authority, newest: ssl.TLSVersion, is_served: bool
) -> None:
    context = authority.client_context()
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # else it is our own library that refuses
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = newest
    async with edge_of(tmp_path) as node:
        if is_served:
            async with dial_link(mqtt_address(node), tls=context) as client:
                assert (await client.connect("c")).reason_code is ReasonCode.SUCCESS
        else:
            with pytest.raises(OSError):  # an alert, or asyncio hangs up before it is sent
                await serial(mqtt_address(node), context)
            await until(lambda: node.services.counters.refused_total == 1)


async def test_plaintext_on_a_tls_listener_ends_in_the_handshake(tmp_path: Path, authority: Authority) -> None:
    async with edge_of(tmp_path) as node:
        async with dial(mqtt_address(node)) as client:
            await client.send(b"\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x03abc")
            async with asyncio.timeout(10):
                while await client.link.read():  # an alert, perhaps
                    pass
        await until(lambda: node.services.counters.refused_total == 1)
        assert node.services.access.gate.statistics()["unauthenticated"] == 0


async def test_a_handshake_has_its_time(tmp_path: Path, authority: Authority) -> None:
    async with edge_of(tmp_path, limits={"tls_handshake_timeout_s": 1.0}) as node:
        async with dial(mqtt_address(node)) as client:
            began = time.monotonic()
            assert await client.until_closed() == []
            assert 0.8 < time.monotonic() - began < 5
        await until(lambda: node.services.access.gate.statistics()["unauthenticated"] == 0)


async def test_a_place_is_taken_before_the_handshake(tmp_path: Path, authority: Authority) -> None:
    async with edge_of(tmp_path, limits={"unauthenticated_per_address_max": 2}) as node:
        address = mqtt_address(node)
        gate = node.services.access.gate
        async with dial(address), dial(address):
            await until(lambda: gate.statistics()["unauthenticated"] == 2)
            async with dial(address) as third:
                assert await third.until_closed() == []
            assert gate.statistics()["refused_address_full"] == 1
        await until(lambda: gate.statistics()["unauthenticated"] == 0)
        async with dial_link(address, tls=authority.client_context()) as client:
            assert (await client.connect("c")).reason_code is ReasonCode.SUCCESS
            assert gate.statistics()["unauthenticated"] == 0, "a client is no stranger"


async def test_an_edge_stops_within_a_handshake(tmp_path: Path, authority: Authority) -> None:
    async with edge_of(tmp_path) as node:
        before = len(asyncio.all_tasks())
        client = dial(mqtt_address(node))
        opened = await client.__aenter__()
        await until(lambda: node.services.access.gate.statistics()["unauthenticated"] == 1)
        assert len(asyncio.all_tasks()) > before
    assert await opened.until_closed() == []
    await client.__aexit__(None, None, None)
    assert node.services.access.gate.statistics()["unauthenticated"] == 0


@pytest.mark.parametrize("address_of", [mqtt_address, http_address])
@pytest.mark.usefixtures("fast_looks")
async def test_a_changed_certificate_is_shown_without_a_restart(
    tmp_path: Path, authority: Authority, address_of: Callable[[EdgeNode], tuple[str, int]]
) -> None:
    context = authority.client_context()
    old = authority.issue("edge", "server")
    async with edge_of(tmp_path) as node, dial_link(mqtt_address(node), tls=context) as client:
        assert await serial(address_of(node), context) == old
        await client.connect("c")
        new = authority.issue("edge", "server")
        await comes_to_show(address_of(node), context, new)
        await client.send(Pingreq())
        await client.receive(Pingresp)


@pytest.mark.usefixtures("fast_looks")
@pytest.mark.parametrize("broken", ["server.pem", "server.key"])
async def test_a_broken_file_keeps_the_old_certificate(
    tmp_path: Path, authority: Authority, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    context = authority.client_context()
    old = authority.issue("edge", "server")
    async with edge_of(tmp_path) as node:
        (tmp_path / broken).write_text("nonsense")
        await until(lambda: "what was in force stays in force" in caplog.text)
        assert await serial(mqtt_address(node), context) == old
        new = authority.issue("edge", "server")
        await comes_to_show(mqtt_address(node), context, new)
        complaints = [line for line in caplog.messages if "stays in force" in line]
        assert len(complaints) <= 4, "once for each listener and reason"


@pytest.mark.parametrize("way", ["tcp", "websocket"])
async def test_a_client_certificate_names_the_user(tmp_path: Path, authority: Authority, way: str) -> None:
    authority.issue("device-7", "client")
    async with edge_of(tmp_path, **mtls(authority.path)) as node:
        with_one, without = authority.client_context("client"), authority.client_context()
        address = mqtt_address(node) if way == "tcp" else http_address(node)
        dialled = dial_link(address, tls=with_one) if way == "tcp" else dial_wss(address, with_one)
        async with dialled as client:
            assert (await client.connect("c")).reason_code is ReasonCode.SUCCESS
            principal = node.services.clients["c"].principal
            assert principal is not None
            assert principal.name == "device-7"
        await until(lambda: not node.services.connections)
        refused = node.services.counters.refused_total
        assert not await asyncio.to_thread(is_let_in, address, twelve(without), None)
        await until(lambda: node.services.counters.refused_total == refused + 1)
        assert not node.services.connections


def twelve(context: ssl.SSLContext) -> ssl.SSLContext:
    """In TLS 1.2 a handshake ends with the ticket, or the refusal; in 1.3 they come after it."""
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


@pytest.mark.usefixtures("fast_looks")
async def test_an_authority_that_is_taken_out_is_trusted_no_more(tmp_path: Path, authority: Authority) -> None:
    """Not even with a session ticket from before."""
    trusted = tmp_path / "devices.pem"
    trusted.write_bytes(authority.path.read_bytes())
    authority.issue("device-7", "client")
    context = twelve(authority.client_context("client"))
    async with edge_of(tmp_path, **mtls(trusted)) as node:
        address = mqtt_address(node)
        ticket, _ = await asyncio.to_thread(shake_hands, address, context, None)
        assert (await asyncio.to_thread(shake_hands, address, context, ticket))[1], "no ticket was taken"
        trusted.write_bytes(Authority(tmp_path, "other").path.read_bytes())
        async with asyncio.timeout(10):
            while await asyncio.to_thread(is_let_in, address, context, None):
                pass
        assert not await asyncio.to_thread(is_let_in, address, context, ticket)


def is_let_in(address: tuple[str, int], context: ssl.SSLContext, ticket: ssl.SSLSession | None) -> bool:
    try:
        shake_hands(address, context, ticket)
    except OSError:
        return False
    return True


def shake_hands(
    address: tuple[str, int], context: ssl.SSLContext, ticket: ssl.SSLSession | None
) -> tuple[ssl.SSLSession | None, bool]:
    """The session of a new connection, and whether it goes on from `ticket`."""
    with (
        socket.create_connection(address, 10) as plain,
        context.wrap_socket(plain, server_hostname=address[0], session=ticket) as wrapped,
    ):
        return wrapped.session, bool(wrapped.session_reused)
