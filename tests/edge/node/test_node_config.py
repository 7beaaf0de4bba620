"""The configuration: hardened by default, and errors that name the file, the key and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.edges import edge_config, memory_edge, mqtt_address

from edge.node.config import load_config, make_config
from schemas.errors import ConfigurationError

USERS = {"authentication": {"password_file": "users"}}
OUTSIDE = {"host": "0.0.0.0"}
TLS = {"certificate": "c.pem", "key": "k.pem"}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "nobody could connect: name an authenticator in [authentication]"),
    ({"authentication": {}}, "or start with --dev"),
    ({"dev": True, "listeners": [OUTSIDE | {"allow_plaintext": True}]}, "--dev serves loopback only"),
    ({"dev": True, "http": OUTSIDE | {"allow_plaintext": True}}, "--dev serves loopback only"),
    (USERS | {"listeners": [OUTSIDE]}, "listeners.0: plaintext MQTT on 0.0.0.0 is refused: give the listener a"),
    (USERS | {"listeners": [{}, {"host": "::"}]}, "listeners.1: plaintext MQTT on :: is refused"),
    (USERS | {"listeners": [{"host": "192.0.2.1"}]}, "allow_plaintext = true"),
    (USERS | {"http": OUTSIDE}, "http: plaintext HTTP on 0.0.0.0 is refused"),
    (
        {"authentication": {"anonymous": True}, "listeners": [OUTSIDE | {"tls": TLS}]},
        "anonymous clients on an address that others can reach are refused",
    ),
    (USERS | {"nonsense": 1}, "nonsense: Extra inputs are not permitted"),
    (USERS | {"listeners": [{"port": 70_000}]}, "listeners.0.port: "),
    (USERS | {"node_id": "a/b"}, "node_id: node_id is 1 to 64 letters"),
    (USERS | {"node_id": ""}, "node_id is 1 to 64 letters"),
    (USERS | {"limits": {"packet_bytes": 1}}, "limits has no key 'packet_bytes'"),
    (USERS | {"limits": {"packet_bytes_max": 0}}, "limits.packet_bytes_max must be at least 1"),
    (USERS | {"routes": [{"filter": "a/#", "kafka_topic": "mqtt.a"}]}, "#"),
    (USERS | {"kafka": {"sasl_password": "env:HEADWATER_NOT_SET"}}, "HEADWATER_NOT_SET is not set"),
    (USERS | {"kafka": {"sasl_password": "file:///nowhere/secret"}}, "cannot be read"),
]


@pytest.mark.parametrize(("table", "text"), REFUSED)
def test_what_is_refused_says_why(table: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make_config(table, "edge.toml")
    assert text in str(refused.value)


@pytest.mark.parametrize(
    "table",
    [
        {"dev": True},
        {"dev": True, "listeners": [{"host": "::1"}, {"host": "localhost"}, {"host": "127.0.0.2"}]},
        USERS,
        USERS | {"listeners": [OUTSIDE | {"tls": TLS}], "http": OUTSIDE | {"tls": TLS}},
        USERS | {"listeners": [OUTSIDE | {"allow_plaintext": True}]},
        {"authentication": {"anonymous": True}},
    ],
)
def test_what_is_taken(table: dict[str, Any]) -> None:
    make_config(table, "edge.toml")


def test_a_file_names_itself_in_its_errors(tmp_path: Path) -> None:
    path = tmp_path / "edge.toml"
    with pytest.raises(ConfigurationError, match=r"edge\.toml: No such file"):
        load_config(path)
    path.write_text("dev = maybe")
    with pytest.raises(ConfigurationError, match="no valid TOML"):
        load_config(path)
    path.write_text('dev = true\nnode_id = "x"\n')
    assert load_config(path, {"node_id": "y"}).node_id == "y"


def test_a_secret_is_never_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADWATER_TEST_SECRET", "canary-in-the-mine")
    (tmp_path / "secret").write_text("canary-in-the-mine\n")
    for value in ("env:HEADWATER_TEST_SECRET", f"file://{tmp_path}/secret", "canary-in-the-mine"):
        config = make_config(USERS | {"kafka": {"sasl_password": value}}, "edge.toml")
        assert config.kafka.sasl_password == "canary-in-the-mine"
        assert "canary" not in repr(config)
        assert "canary" not in str(config)


def test_the_hardened_limits_are_the_default() -> None:
    limits = make_config(USERS, "edge.toml").effective_limits()
    assert (limits.messages_per_s, limits.unauthenticated_per_address_max, limits.connect_timeout_s) == (1_000, 50, 10)
    assert edge_config().effective_limits().messages_per_s == 0
    assert edge_config(limits={"messages_per_s": 5}).effective_limits().messages_per_s == 5


async def test_an_address_that_is_taken_is_named() -> None:
    async with memory_edge() as node:
        host, port = mqtt_address(node)
        with pytest.raises(ConfigurationError, match=f"cannot listen on {host}:{port}"):
            async with memory_edge(node_id="second", listeners=[{"port": port}]):
                raise AssertionError("two edges on one port")
        http = node.http_address
        assert http is not None
        with pytest.raises(ConfigurationError, match=f"cannot listen on {http[0]}:{http[1]}"):
            async with memory_edge(node_id="third", http={"port": http[1]}):
                raise AssertionError("two edges on one port")


async def test_certificates_that_cannot_be_read() -> None:
    tls = {"certificate": "nowhere.pem", "key": "nowhere.key"}
    with pytest.raises(ConfigurationError, match=r"TLS: nowhere\.pem"):
        async with memory_edge(listeners=[{"port": 0, "tls": tls}]):
            raise AssertionError("TLS without a certificate")
