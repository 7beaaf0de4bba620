"""CONNECT and CONNACK (3.1, 3.2)."""

from __future__ import annotations

import pytest
from support.conformance import Clients, new_client_id

from edge.wire import Connack, Connect, ReasonCode


@pytest.mark.statement("MQTT5-3.1.4-5", "MQTT5-3.2.0-1", "MQTT5-3.1.3-5", "MQTT5-3.2.2-1")
async def test_an_accepted_connect_is_answered_by_connack_success(clients: Clients) -> None:
    client = await clients.dial()
    await client.send(Connect(5, new_client_id()))
    connack = await client.receive(Connack)
    assert connack.reason_code is ReasonCode.SUCCESS
    assert client.frames[0][1][0] in (0, 1)  # the flags' bits 7 to 1 are 0
    await client.ping()


@pytest.mark.statement("MQTT5-3.1.0-2", "MQTT5-3.2.0-2")
async def test_a_second_connect_closes_and_gets_no_second_connack(clients: Clients) -> None:
    client = await clients.connect()
    await client.send(Connect(5, client.client_id))
    await client.closed_for(0x82)
