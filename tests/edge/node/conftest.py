"""Every test of a node runs on asyncio's loop and on uvloop, and fails when the edge logs an unexpected error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

import pytest
import uvloop
from support.edges import ErrorLog


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The two loops that an edge runs on."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def error_log() -> Iterator[ErrorLog]:
    """What the edge, or asyncio about a forgotten task, has logged as an error."""
    handler = ErrorLog()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)
    assert handler.lines == []
