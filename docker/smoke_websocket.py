"""Run inside an edge's container: published on edge 0, received over WebSocket through HAProxy."""

import asyncio
from pathlib import Path

from edge.client import MqttClient


def password(user: str) -> bytes:
    return Path(f"/run/headwater/{user}.password").read_bytes().strip()


async def main() -> None:
    viewer = MqttClient(
        "haproxy", 8080, "smoke-page", transport="websocket", user_name="viewer", password=password("viewer")
    )
    device = MqttClient("edge-0", 1883, "smoke-device", user_name="device", password=password("device"))
    inbox = viewer.inbox()
    async with asyncio.timeout(30), viewer, device:
        await viewer.subscribe("sensors/smoke/websocket", qos=1)
        future = device.publish("sensors/smoke/websocket", b"over WebSocket", qos=1)
        assert future is not None
        await future
        message = await inbox.get()
    assert message.payload == b"over WebSocket", message
    print("ok  MQTT over WebSocket through HAProxy")


asyncio.run(main())
