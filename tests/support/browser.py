"""Headless Chromium over its DevTools protocol: open a page, evaluate JavaScript, take a picture."""

import asyncio
import base64
import contextlib
import itertools
import json
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)
TIMEOUT_S = 30.0


class Page:
    """One tab. ``errors`` are the exceptions and log entries of level error that it had."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.errors: list[str] = []

    async def command(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                answer = json.loads((await self._socket.receive()).data)
                if answer.get("id") == number:
                    assert "error" not in answer, answer
                    return dict(answer["result"])
                self._note(answer)

    async def open(self, url: str) -> None:
        for method in ("Runtime.enable", "Log.enable", "Page.enable"):
            await self.command(method)
        await self.command("Page.navigate", url=url)

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression; a promise is awaited."""
        answer = await self.command("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait until an expression is true, looked at with every frame; fails after ``TIMEOUT_S``."""
        limit_ms = int(TIMEOUT_S * 900)
        await self.evaluate(
            f"new Promise((done, fail) => {{ const end = Date.now() + {limit_ms};"
            f" const look = () => ({condition}) ? done(true) : Date.now() > end ?"
            f" fail(new Error({json.dumps(condition)} + document.body?.innerText)) : setTimeout(look, 50); look(); }})"
        )

    async def screenshot(self) -> bytes:
        """What the tab shows, as PNG."""
        answer = await self.command("Page.captureScreenshot")
        return base64.b64decode(answer["data"])

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(event["params"]["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.errors.append(str(event["params"]["entry"]["text"]))


@contextlib.asynccontextmanager
async def running_browser(folder: Path) -> AsyncIterator[Page]:
    """A browser with one empty tab; a missing one fails with what to install."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found, "these tests need a browser: apt-get install chromium"
    process = await asyncio.create_subprocess_exec(
        found,
        *FLAGS,
        f"--user-data-dir={folder}",
        "--window-size=1440,1200",
        "about:blank",
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert process.stderr is not None
    reader: asyncio.Task[bytes] | None = None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            port = await _debugging_port(process.stderr)
        reader = asyncio.create_task(process.stderr.read())  # so that its pipe never fills
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                tabs = await answer.json()
            address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
            async with session.ws_connect(address, max_msg_size=0) as socket:
                yield Page(socket)
    finally:
        process.terminate()
        await process.wait()
        if reader is not None:
            await reader


async def _debugging_port(lines: asyncio.StreamReader) -> int:
    async for line in lines:
        if found := re.search(rb"ws://[^/]+:(\d+)/", line):
            return int(found[1])
    raise AssertionError("the browser ended before it listened")
