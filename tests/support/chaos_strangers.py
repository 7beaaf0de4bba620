"""A process of strangers: `chaos_strangers.py PORT SECONDS` opens a thousand silent connections to an edge on loopback,
from a hundred addresses, and guesses passwords from 250 others, 500 a second if the machine can. Prints what it did.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import suppress

SILENT, SILENT_PER_ADDRESS = 1_000, 10
RAMP_S = 3.0  # until all silent connections are there
WRONG_PER_S, WRONG_ADDRESSES = 500, 250
_CONNECT = bytes.fromhex("00044d51545404c2003c")  # MQTT 3.1.1, Clean Session, user name and password


def connect_packet(number: int) -> bytes:
    """CONNECT with a wrong password."""
    fields = (f"guess-{number % 100}", "device", f"wrong-{number}")
    body = _CONNECT + b"".join(len(each).to_bytes(2, "big") + each.encode() for each in fields)
    assert len(body) < 128
    return bytes((0x10, len(body))) + body


class Strangers:
    """Connections from many addresses of loopback, to one edge."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.silent = self.silent_most = self.guessed = 0
        self._guesses: set[asyncio.Task[None]] = set()

    async def be_silent(self, number: int) -> None:
        """One connection that says nothing; when it is closed, another."""
        await asyncio.sleep(RAMP_S * number / SILENT)
        while True:
            with suppress(OSError):
                reader, writer = await self._connect(f"127.1.0.{1 + number // SILENT_PER_ADDRESS}")
                self.silent += 1
                self.silent_most = max(self.silent, self.silent_most)
                try:
                    await reader.read(1)
                finally:
                    self.silent -= 1
                    writer.transport.abort()
            await asyncio.sleep(1)

    async def guess(self) -> None:
        """So many a second, as long as the machine can."""
        began = time.monotonic()
        while True:
            due = int((time.monotonic() - began) * WRONG_PER_S) - self.guessed
            for _ in range(min(due, WRONG_PER_S) if len(self._guesses) < WRONG_PER_S else 0):
                self.guessed += 1
                task = asyncio.create_task(self._guess(self.guessed))
                self._guesses.add(task)
                task.add_done_callback(self._guesses.discard)
            await asyncio.sleep(0.02)

    async def _guess(self, number: int) -> None:
        with suppress(OSError):
            reader, writer = await self._connect(f"127.2.0.{1 + number % WRONG_ADDRESSES}")
            try:
                writer.write(connect_packet(number))
                async with asyncio.timeout(5):
                    await reader.read(100)
            finally:
                writer.transport.abort()

    async def _connect(self, source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port, local_addr=(source, 0))


async def be_there(port: int, seconds: float) -> Strangers:
    """All of them, for so long."""
    strangers = Strangers(port)
    tasks = [asyncio.create_task(strangers.be_silent(number)) for number in range(SILENT)]
    tasks.append(asyncio.create_task(strangers.guess()))
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return strangers


if __name__ == "__main__":
    how_long_s = float(sys.argv[2])
    found = asyncio.run(be_there(int(sys.argv[1]), how_long_s))
    figures = {
        "silent connections at once": found.silent_most,
        "bad passwords a second": round(found.guessed / how_long_s),
    }
    print(json.dumps(figures))
