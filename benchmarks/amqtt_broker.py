"""amqtt's own broker for the comparison: `python amqtt_broker.py PORT`, anonymous, loopback, nothing logged per packet.

amqtt's default adds plugins that log each packet and publish `$SYS`: leaving them out makes it faster.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from amqtt.broker import Broker

CONFIG = {
    "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{sys.argv[-1]}", "max_connections": 0}},
    "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
}


async def serve() -> None:
    """Until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    broker = Broker(CONFIG)
    await broker.start()
    await stop.wait()
    await broker.shutdown()


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL)
    asyncio.run(serve())
