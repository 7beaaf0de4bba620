"""The broker under test: the one that `--host` and `--port` name, else a Headwater edge on a log in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest
from support.conformance import Broker, Clients
from support.edges import http_address, memory_edge, mqtt_address

from edge.access.scram_file import add_scram_user

# Limits that CONNACK has no word for, raised to what MQTT allows; docs/security.md has the defaults
LIMITS = {
    "topic_name_bytes_max": 65_535,
    "topic_levels_max": 32_768,
    "filters_per_subscribe_max": 1_000,
    "connect_packet_bytes_max": 300_000,
}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "statement(*ids): the normative statements that the test shows")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Reports name a test's statements: `--junitxml` writes them as properties.

    The WebSocket tests are left out where nobody said at which port that broker serves it.
    """
    if config.getoption("port") is not None and config.getoption("websocket_port") is None:
        left_out = [item for item in items if item.path.name.endswith("_websocket.py")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
    for item in items:
        if ids := dict.fromkeys(str(each) for mark in item.iter_markers("statement") for each in mark.args):
            item.user_properties.append(("statements", " ".join(ids)))


@contextmanager
def headwater(folder: Path) -> Iterator[Broker]:
    """One edge in a thread of its own, with its own loop."""
    user, password = "conformance", "of one edge"
    add_scram_user(folder / "scram", user, password, 4_096)
    authentication = {"anonymous": True, "scram": {"file": str(folder / "scram")}}
    ready: Future[Broker] = Future()
    stopping: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def run() -> None:
        try:
            async with memory_edge(authentication=authentication, limits=LIMITS) as node:
                stop = asyncio.Event()
                stopping.append((asyncio.get_running_loop(), stop))
                ready.set_result(Broker(*mqtt_address(node), http_address(node)[1], (user, password)))
                await stop.wait()
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="headwater", daemon=True)
    thread.start()
    try:
        yield ready.result(30)
    finally:
        for loop, stop in stopping:
            loop.call_soon_threadsafe(stop.set)
        thread.join(30)


@pytest.fixture(scope="session")
def broker(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    option = pytestconfig.getoption
    if option("port") is None:
        with headwater(tmp_path_factory.mktemp("headwater")) as edge:
            yield edge
    else:
        user, _, password = (option("scram") or "").partition(":")
        yield Broker(option("host"), option("port"), option("websocket_port"), (user, password) if user else None)


@pytest.fixture
def protocol_version() -> int:
    """What `clients` speak unless a test says otherwise; `v311/conftest.py` says 4."""
    return 5


@pytest.fixture
async def clients(broker: Broker, protocol_version: int) -> AsyncIterator[Clients]:
    async with AsyncExitStack() as stack:
        yield Clients(broker, protocol_version, stack)
