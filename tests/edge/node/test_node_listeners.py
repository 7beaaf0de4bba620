"""Listeners: PROXY headers from trusted proxies, Unix sockets, IPv6 and dual stack."""
# ruff: noqa: ASYNC240 - a test may wait for a small file

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.certificates import Authority
from support.edges import http_address, memory_edge, mqtt_address, until
from support.links import SIGNATURE, dial_link, dial_unix, proxy_header
from support.wire_client import connected, dial

from edge.node.config import make_config
from edge.node.listeners import address_text
from edge.wire import Connect, Pingreq, Pingresp, ReasonCode, encode
from schemas.control import Ban
from schemas.errors import ConfigurationError

CONNECT = encode(Connect(5, "c", keep_alive_s=60), 5)


def proxied(trusted: tuple[str, ...] = ("127.0.0.0/8",), **more: Any) -> dict[str, Any]:
    return {"port": 0, "proxy_protocol": True, "trusted_proxies": list(trusted)} | more


# PROXY protocol ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "peer"),
    [
        (proxy_header("203.0.113.7"), "203.0.113.7"),
        (proxy_header("2001:db8::7", tlvs=b"\x20\x00\x0c\x07\x00\x00\x00\x00\x22\x00\x04root"), "2001:db8::7"),
        (proxy_header("/run/client"), "unix"),
        (proxy_header("203.0.113.7", version_command=0x20), "127.0.0.1"),
        (SIGNATURE + b"\x20\x00\x00\x00", "127.0.0.1"),
    ],
)
@pytest.mark.parametrize("is_tls", [False, True])
async def test_the_client_is_whom_the_header_names(tmp_path: Path, header: bytes, peer: str, is_tls: bool) -> None:
    listener, context = proxied(), None
    if is_tls:
        authority = Authority(tmp_path)
        authority.issue("edge", "server")
        context = authority.client_context()
        listener["tls"] = {"certificate": str(tmp_path / "server.pem"), "key": str(tmp_path / "server.key")}
    async with memory_edge(listeners=[listener]) as node:
        async with dial_link(mqtt_address(node), tls=context, before=header) as client:
            assert (await client.connect("c")).reason_code is ReasonCode.SUCCESS
            assert node.services.clients["c"].peer == peer
            principal = node.services.clients["c"].principal
            assert principal is not None
            assert (principal.peer, principal.name) == (peer, "anonymous")
            await client.send(Pingreq())
            await client.receive(Pingresp)
        await until(lambda: not node.services.connections)
        assert node.services.access.gate.statistics()["unauthenticated"] == 0


async def test_header_and_packets_may_come_in_any_pieces() -> None:
    data = proxy_header("203.0.113.7", tlvs=bytes(20)) + CONNECT + encode(Pingreq(), 5)
    async with memory_edge(listeners=[proxied()]) as node:
        for size in (1, 15, 16, 17, len(data)):
            async with dial(mqtt_address(node)) as client:
                for at in range(0, len(data), size):
                    await client.send(data[at : at + size])
                    await asyncio.sleep(0)
                await client.receive(object)  # type: ignore[type-abstract]
                await client.receive(Pingresp)
                assert node.services.clients["c"].peer == "203.0.113.7"


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (CONNECT, "no PROXY header"),
        (b"PROXY TCP4 203.0.113.7 10.0.0.1 56324 1883\r\n" + CONNECT, "version 1 of the PROXY protocol"),
        (proxy_header(family=0x12) + CONNECT, "family 0x12"),
        (SIGNATURE + b"\x21\x11\xff\xff", "more than 16384 bytes"),
    ],
)
async def test_what_is_no_header_is_closed_counted_and_logged(
    data: bytes, complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with memory_edge(listeners=[proxied()]) as node:
            for _ in range(3):
                async with dial(mqtt_address(node)) as client:
                    await client.send(data)
                    assert await client.until_closed() == []
            assert node.services.counters.refused_total == 3
            assert node.services.connections == set()
    assert len([line for line in caplog.messages if complaint in line]) == 1, "one line a minute"


async def test_an_untrusted_proxy_is_not_listened_to(caplog: pytest.LogCaptureFixture) -> None:
    async with memory_edge(listeners=[proxied(("10.0.0.0/8", "::1/128"))]) as node:
        async with dial(mqtt_address(node)) as client:
            await client.send(proxy_header("10.0.0.1") + CONNECT)
            assert await client.until_closed() == []
        assert node.services.counters.refused_total == 1
    assert "127.0.0.1 is none of trusted_proxies" in caplog.text


@pytest.mark.parametrize("data", [b"", SIGNATURE, proxy_header()[:-1]])
async def test_a_header_has_its_time(data: bytes) -> None:
    async with memory_edge(listeners=[proxied()], limits={"connect_timeout_s": 1.0}) as node:
        async with dial(mqtt_address(node)) as client:
            began = time.monotonic()
            await client.send(data)
            assert await client.until_closed() == []
            assert 0.8 < time.monotonic() - began < 5
        assert node.services.counters.refused_total == 1


async def test_a_proxy_that_hangs_up_within_the_header() -> None:
    async with memory_edge(listeners=[proxied()]) as node:
        async with dial(mqtt_address(node)) as client:
            await client.send(SIGNATURE)
        await until(lambda: node.services.counters.refused_total == 1)


async def test_limits_and_bans_go_by_the_clients_address() -> None:
    limits = {"unauthenticated_per_address_max": 1}
    async with memory_edge(listeners=[proxied()], limits=limits) as node:
        address = mqtt_address(node)
        gate = node.services.access.gate
        one, two = proxy_header("203.0.113.1"), proxy_header("203.0.113.2")
        async with dial_link(address, before=one):
            await until(lambda: gate.statistics()["unauthenticated"] == 1)
            async with dial_link(address, before=one) as again:
                assert await again.until_closed() == []
            assert gate.statistics()["refused_address_full"] == 1
            async with dial_link(address, before=two) as other:
                assert (await other.connect("c")).reason_code is ReasonCode.SUCCESS
        ban = Ban("address", "203.0.113.2", None, "", "")
        node.services.access.bans.put(ban)
        async with dial_link(address, before=two) as banned:
            assert (await banned.connect("c")).reason_code is ReasonCode.BANNED


async def test_connections_on_their_way_in_are_bounded() -> None:
    async with memory_edge(listeners=[proxied()], limits={"unauthenticated_max": 2}) as node:
        address = mqtt_address(node)
        async with dial(address), dial(address):
            async with dial(address) as third:
                assert await third.until_closed() == []
            assert node.services.counters.refused_total == 1


async def test_an_edge_stops_within_a_header() -> None:
    async with memory_edge(listeners=[proxied()]) as node:
        context = dial(mqtt_address(node))
        client = await context.__aenter__()
        await client.send(SIGNATURE)
        async with dial_link(mqtt_address(node), before=proxy_header()) as other:
            await other.connect("c")  # the first has been accepted by now
    assert await client.until_closed() == []
    await context.__aexit__(None, None, None)


async def test_no_descriptors_left_is_no_end(monkeypatch: pytest.MonkeyPatch, error_log: Any) -> None:
    """`accept` fails once for lack of descriptors; a moment later connections are taken again."""
    monkeypatch.setattr("edge.node.entrance.ACCEPT_AGAIN_S", 0.05)
    real, failures = socket.socket.accept, iter([OSError(errno.EMFILE, "Too many open files")])

    def accept(self: socket.socket) -> Any:
        for failure in failures:
            raise failure
        return real(self)

    async with memory_edge(listeners=[proxied()]) as node:
        monkeypatch.setattr(socket.socket, "accept", accept)
        async with dial_link(mqtt_address(node), before=proxy_header()) as client:
            assert (await client.connect("c")).reason_code is ReasonCode.SUCCESS
    assert error_log.lines == ["cannot accept connections: Too many open files"]
    error_log.lines.clear()


@pytest.mark.parametrize("listener", [{"port": 0}, proxied()])
async def test_small_packets_leave_at_once(listener: dict[str, Any]) -> None:
    before = proxy_header() if listener != {"port": 0} else b""
    async with memory_edge(listeners=[listener]) as node, dial_link(mqtt_address(node), before=before) as client:
        await client.connect("c")
        transport = node.services.clients["c"].transport
        assert transport is not None
        assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# Unix sockets --------------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "mqtt.sock"
    assert len(str(made)) < 100, "a Unix socket's path is short"
    yield made
    assert not made.exists(), "the socket stays behind"


async def test_mqtt_on_a_unix_socket(path: Path) -> None:
    async with memory_edge(listeners=[{"unix": str(path)}]) as node:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert node.mqtt_addresses == [(str(path), 0)]
        async with dial_unix(path) as client:
            assert (await client.connect("c")).reason_code is ReasonCode.SUCCESS
            assert node.services.clients["c"].peer == "unix"
            await client.send(Pingreq())
            await client.receive(Pingresp)


async def test_beside_other_listeners_with_a_mode_of_its_own(path: Path) -> None:
    async with memory_edge(listeners=[{"port": 0}, {"unix": str(path), "mode": 0o600}]) as node:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        async with dial_unix(path, 4) as one, dial(mqtt_address(node)) as other:
            assert (await one.connect("one")).reason_code is ReasonCode.SUCCESS
            assert (await other.connect("other")).reason_code is ReasonCode.SUCCESS


async def test_what_a_dead_edge_left_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    async with memory_edge(listeners=[{"unix": str(path)}]), dial_unix(path) as client:
        assert (await client.connect("c")).reason_code is ReasonCode.SUCCESS


@pytest.mark.parametrize("backlog", [0, 5])
async def test_a_living_socket_is_left_alone(path: Path, backlog: int) -> None:
    with socket.socket(socket.AF_UNIX) as alive, socket.socket(socket.AF_UNIX) as waiting:
        alive.bind(str(path))
        alive.listen(backlog)
        if not backlog:
            waiting.connect(str(path))  # its queue is full
        with pytest.raises(ConfigurationError, match=r"mqtt\.sock: another process listens there"):
            async with memory_edge(listeners=[{"unix": str(path)}]):
                raise AssertionError("two listeners on one path")
        assert path.is_socket()
    path.unlink()


async def test_a_file_is_left_alone(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(ConfigurationError, match="a file of this name that is no socket"):
        async with memory_edge(listeners=[{"unix": str(path)}]):
            raise AssertionError("listens on a file")
    assert path.read_text() == "precious"
    path.unlink()


async def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot listen on .*No such file"):
        async with memory_edge(listeners=[{"unix": str(tmp_path / "no" / "s")}]):
            raise AssertionError("listens nowhere")


async def test_a_name_that_another_has_taken_over_is_not_removed(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as successor:
        async with memory_edge(listeners=[{"unix": str(path)}]):
            path.unlink()
            (path.parent / "filler").touch()  # the inode number is not handed out again
            successor.bind(str(path))
        assert path.is_socket()
    path.unlink()


async def test_workers_cannot_share_a_unix_socket(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="workers share ports, and a Unix socket has none"):
        async with memory_edge(listeners=[{"unix": str(path)}], reuse_port=True):
            raise AssertionError("shared")


# IPv6 ----------------------------------------------------------------------------------------------------------------


def _has_ipv6() -> bool:
    """Whether this machine has the loopback address of IPv6; containers may lack it."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


HAS_IPV6 = _has_ipv6()
LOOPBACK = ["127.0.0.1", *(["::1"] if HAS_IPV6 else [])]


@pytest.mark.parametrize("host", LOOPBACK)
async def test_mqtt_and_http_on_each_loopback(host: str) -> None:
    async with memory_edge(listeners=[{"host": host, "port": 0}], http={"host": host, "port": 0}) as node:
        assert mqtt_address(node)[0] == http_address(node)[0] == host
        async with connected(mqtt_address(node)):
            assert node.services.clients["c"].peer == host
        async with aiohttp.ClientSession() as session, session.get(url(http_address(node))) as response:
            assert response.status == 200


def url(address: tuple[str, int]) -> str:
    return f"http://{address_text(address)}/livez"


def outside(tmp_path: Path, host: str, **listener: Any) -> Any:
    (tmp_path / "users").touch()
    return memory_edge(
        dev=False,
        authentication={"password_file": str(tmp_path / "users")},
        listeners=[{"host": host, "port": 0, "allow_plaintext": True} | listener],
    )


@pytest.mark.parametrize("is_proxied", [False, True])
async def test_the_unspecified_ipv6_address_takes_ipv4_too(is_proxied: bool, tmp_path: Path) -> None:
    more = proxied(("127.0.0.0/8", "::1/128")) if is_proxied else {}
    if not HAS_IPV6:
        with pytest.raises(ConfigurationError, match="cannot listen on ::"):
            async with outside(tmp_path, "::", **more):
                raise AssertionError("listens on IPv6 where there is none")
        return
    async with outside(tmp_path, "::", **more) as node:
        port = mqtt_address(node)[1]
        before = proxy_header("203.0.113.7") if is_proxied else b""
        for host in LOOPBACK:
            async with dial_link((host, port), before=before):
                await until(lambda: len(node.services.connections) == 1)
                [handler] = node.services.connections
                assert handler.peer == ("203.0.113.7" if is_proxied else host)
            await until(lambda: not node.services.connections)


async def test_a_name_with_several_addresses_has_one_port() -> None:
    async with memory_edge(listeners=[{"host": "localhost", "port": 0}]) as node:
        port = mqtt_address(node)[1]
        for found in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM):
            async with connected((str(found[4][0]), port)):
                pass


@pytest.mark.parametrize(
    ("address", "text"),
    [(("127.0.0.1", 1883), "127.0.0.1:1883"), (("::1", 1883), "[::1]:1883"), (("/run/s", 0), "/run/s")],
)
def test_addresses_as_text(address: tuple[str, int], text: str) -> None:
    assert address_text(address) == text


# Configuration -------------------------------------------------------------------------------------------------------

TLS = {"certificate": "c.pem", "key": "k.pem"}


@pytest.mark.parametrize(
    ("listener", "complaint"),
    [
        ({"proxy_protocol": True}, "proxy_protocol and trusted_proxies belong together"),
        ({"proxy_protocol": True, "trusted_proxies": []}, "proxy_protocol and trusted_proxies belong together"),
        ({"trusted_proxies": ["10.0.0.0/8"]}, "proxy_protocol and trusted_proxies belong together"),
        ({"proxy_protocol": True, "trusted_proxies": ["10.0.0.0/8", "0.0.0.0/0"]}, "holds every address there is"),
        ({"proxy_protocol": True, "trusted_proxies": ["::/0"]}, "holds every address there is"),
        ({"proxy_protocol": True, "trusted_proxies": ["10.0.0.1/8"]}, "trusted_proxies.0"),
        ({"proxy_protocol": True, "trusted_proxies": ["proxy.example.net"]}, "trusted_proxies.0"),
        ({"unix": "/s", "tls": TLS}, "takes no TLS and no PROXY header"),
        ({"unix": "/s", "proxy_protocol": True, "trusted_proxies": ["10.0.0.0/8"]}, "takes no TLS and no PROXY header"),
        ({"unix": "/s", "mode": 0o1777}, "listeners.0.mode"),
    ],
)
def test_listeners_that_are_refused(listener: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        make_config({"dev": True, "listeners": [listener]}, "edge.toml")


def test_a_unix_socket_is_local() -> None:
    config = make_config({"authentication": {"anonymous": True}, "listeners": [{"unix": "/run/s"}]}, "edge.toml")
    assert config.listeners[0].is_loopback
    assert config.listeners[0].mode == 0o660
    assert make_config(config.model_dump(mode="json"), "json") == config


def test_trusted_proxies_survive_the_way_to_a_child_process() -> None:
    listener = proxied(("10.0.0.0/8", "2001:db8::/32", "192.0.2.1"))
    config = make_config({"dev": True, "listeners": [listener]}, "edge.toml")
    assert make_config(config.model_dump(mode="json"), "json") == config
