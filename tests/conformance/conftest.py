"""The broker under test: the one that `--host` and `--port` name, else a Headwater edge on a log in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager

import pytest
from support.conformance import Broker, Clients
from support.edges import http_address, memory_edge, mqtt_address


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "statement(*ids): the normative statements that the test shows")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Reports name a test's statements: `--junitxml` writes them as properties."""
    for item in items:
        if ids := dict.fromkeys(str(each) for mark in item.iter_markers("statement") for each in mark.args):
            item.user_properties.append(("statements", " ".join(ids)))


@contextmanager
def headwater() -> Iterator[Broker]:
    """One edge in a thread of its own, with its own loop."""
    ready: Future[Broker] = Future()
    stopping: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def run() -> None:
        try:
            async with memory_edge() as node:
                stop = asyncio.Event()
                stopping.append((asyncio.get_running_loop(), stop))
                ready.set_result(Broker(*mqtt_address(node), websocket_port=http_address(node)[1]))
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
def broker(pytestconfig: pytest.Config) -> Iterator[Broker]:
    host, port = pytestconfig.getoption("host"), pytestconfig.getoption("port")
    if port is None:
        with headwater() as edge:
            yield edge
    else:
        yield Broker(host, port, pytestconfig.getoption("websocket_port"))


@pytest.fixture
def protocol_version() -> int:
    """What `clients` speak unless a test says otherwise; `v311/conftest.py` says 4."""
    return 5


@pytest.fixture
async def clients(broker: Broker, protocol_version: int) -> AsyncIterator[Clients]:
    async with AsyncExitStack() as stack:
        yield Clients(broker, protocol_version, stack)
