"""A headless Chromium that is spoken to by its DevTools protocol."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.cli.scripted import JSON

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
START_SECONDS = 300.0
WAIT_SECONDS = 300.0


class Page:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._answers: dict[int, asyncio.Future[JSON]] = {}
        self.errors: list[str] = []
        """Exceptions, and what was logged as an error: what breaks the Content-Security-Policy too."""

    async def read(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told)
            elif told["method"] == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(told["params"]["exceptionDetails"]))
            elif told["method"] == "Log.entryAdded" and told["params"]["entry"]["level"] == "error":
                entry = told["params"]["entry"]
                self.errors.append(f"{entry['text']} {entry.get('url', '')}")

    async def call(self, method: str, **parameters: Any) -> JSON:
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        told = await asyncio.wait_for(answer, WAIT_SECONDS)
        assert "error" not in told, told
        return dict(told["result"])

    async def evaluate(self, expression: str) -> Any:
        told = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)

    async def wait_for(self, expression: str) -> None:
        """Until it is true."""
        loop = asyncio.get_running_loop()
        until = loop.time() + WAIT_SECONDS
        while not await self.evaluate(f"Boolean({expression})"):
            assert loop.time() < until, f"not so within {WAIT_SECONDS} s: {expression}; errors: {self.errors}"
            await asyncio.sleep(0.05)

    async def press(self, key: str) -> None:
        code = {"Enter": 13}.get(key, ord(key[0].upper()))
        text = "\r" if key == "Enter" else key
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if kind == "keyDown" and len(text) == 1 else {}
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more)

    async def size(self, width: int, height: int, *, dark: bool = False) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 700,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])


@asynccontextmanager
async def browser() -> AsyncIterator[Page]:
    """A page of a new Chromium."""
    assert CHROMIUM, "no Chromium on PATH: install one (Debian: apt install chromium)"
    with tempfile.TemporaryDirectory(prefix="dlr-chromium-", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            port = await _port(Path(profile))
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    target = next(each for each in await answer.json() if each["type"] == "page")
                async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = Page(socket)
                    reader = asyncio.create_task(page.read())
                    for domain in ("Page", "Runtime", "Log"):
                        await page.call(f"{domain}.enable")
                    yield page
                    reader.cancel()
        finally:
            process.kill()
            await process.wait()


async def _port(profile: Path) -> int:
    """Chromium writes it when it listens."""
    told = profile / "DevToolsActivePort"
    async with asyncio.timeout(START_SECONDS):
        while not (told.exists() and told.read_text().count("\n")):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.05)
    return int(told.read_text().splitlines()[0])
