"""3.1.1 is spoken here."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from conformance.v311.flows import forget
from support.conformance import Clients, new_client_id, new_topic_name


@pytest.fixture
def protocol_version() -> int:
    return 4


@pytest.fixture
async def durable_id(clients: Clients) -> AsyncIterator[str]:
    """The client id of a durable session, which is dropped after the test."""
    client_id = new_client_id()
    yield client_id
    await forget(clients, client_id)


@pytest.fixture
async def retained_name(clients: Clients) -> AsyncIterator[str]:
    """A Topic Name whose retained message is dropped after the test."""
    topic_name = new_topic_name()
    yield topic_name
    await (await clients.connect()).publish(topic_name, b"", 1, retain=True)
