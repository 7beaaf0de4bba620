"""What CONNACK may limit: each of these tells whether the server does, and then checks that it keeps to its word.

if await lacks_qos_2(client):
    return
"""

from __future__ import annotations

from support.conformance import Client, Clients, new_topic_name

from edge.wire import Properties, Publish, ReasonCode

SESSION_S = 60  # how long the sessions of tests are kept: longer than any test, and soon gone


async def lacks_qos_2(client: Client) -> bool:
    """Maximum QoS below 2: a PUBLISH beyond it ends the connection with 0x9B [MQTT5-3.2.2-11]."""
    if client.maximum_qos == 2:
        return False
    await client.send(Publish(new_topic_name().encode(), qos=2, packet_id=client.new_packet_id()))
    await client.closed_for(ReasonCode.QOS_NOT_SUPPORTED)
    return True


async def lacks_retain(client: Client) -> bool:
    """Retain Available 0: a retained PUBLISH ends the connection with 0x9A [MQTT5-3.2.2-14]."""
    if client.has_retain:
        return False
    await client.send(Publish(new_topic_name().encode(), b"x", retain=True))
    await client.closed_for(ReasonCode.RETAIN_NOT_SUPPORTED)
    return True


async def lacks_shared(client: Client) -> bool:
    """Shared Subscription Available 0: such a filter is refused with 0x9E, in SUBACK or DISCONNECT (§3.2.2.3.13)."""
    if client.has_shared:
        return False
    suback = await client.subscribe(f"$share/group/{new_topic_name()}")
    assert suback.reason_codes == (ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,)
    return True


async def lacks_wildcards(client: Client) -> bool:
    """Wildcard Subscription Available 0: such a filter is refused with 0xA2 (§3.2.2.3.11)."""
    if client.has_wildcards:
        return False
    suback = await client.subscribe(f"{new_topic_name()}/#")
    assert suback.reason_codes == (ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,)
    return True


async def lacks_subscription_ids(client: Client) -> bool:
    """Subscription Identifier Available 0: they are refused with 0xA1 (§3.2.2.3.12)."""
    if client.has_subscription_ids:
        return False
    suback = await client.subscribe(new_topic_name(), subscription_identifiers=(1,))
    assert suback.reason_codes == (ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,)
    return True


async def lacks_sessions(clients: Clients, client: Client) -> bool:
    """CONNACK lowered the Session Expiry Interval to 0: the session ends with the connection (§3.2.2.3.2)."""
    if client.session_expiry_s(SESSION_S) > 0:
        return False
    await client.close()
    again = await durable(clients, client.client_id)
    assert not again.connack.session_present
    return True


async def durable(clients: Clients, client_id: str | None = None, clean_start: bool = False, **more: object) -> Client:
    """A client whose session outlives its connection; it is resumed if there is one."""
    wishes = Properties(session_expiry_interval_s=SESSION_S, **more)  # type: ignore[arg-type]
    return await clients.connect(client_id, clean_start=clean_start, properties=wishes)
