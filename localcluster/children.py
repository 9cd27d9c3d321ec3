"""A child process that is started again whenever it ends, and that ends when its parent does."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from localcluster.kubelet.namespaces import die_with_parent
from localcluster.paths import write_private

FIRST_BACKOFF_SECONDS = 0.1
LONGEST_BACKOFF_SECONDS = 10.0
CALM_SECONDS = 30.0
LOG_MAX_BYTES = 10 * 1024 * 1024

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChildSpec:
    name: str
    command: list[str]
    log: Path
    environment: dict[str, str]
    pidfile: Path | None = None
    """None: it writes its own."""
    stop_seconds: float = 5.0


class Child:
    """`run` keeps it alive, `stop` ends it within a bounded time."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.exited = asyncio.Event()
        """Has ended at least once."""
        self.pid: int | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._launched = asyncio.Event()
        self._stopping = asyncio.Event()

    async def launched(self) -> None:
        """Until it has been started."""
        await self._launched.wait()

    async def run(self) -> None:
        backoff_seconds = FIRST_BACKOFF_SECONDS
        while not self._stopping.is_set():
            began = time.monotonic()
            code = await self._run_once()
            if self._stopping.is_set():
                return
            self.exited.set()
            if time.monotonic() - began > CALM_SECONDS:
                backoff_seconds = FIRST_BACKOFF_SECONDS
            log.warning("ended name=%s code=%s next start in %gs", self.spec.name, code, backoff_seconds)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), backoff_seconds)
            backoff_seconds = min(2 * backoff_seconds, LONGEST_BACKOFF_SECONDS)

    async def stop(self) -> None:
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), self.spec.stop_seconds)
        except TimeoutError:
            log.warning("killed name=%s, it did not end within %gs", self.spec.name, self.spec.stop_seconds)
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _run_once(self) -> int:
        try:
            self._process = process = await self._start()
        except OSError as error:
            log.error("cannot start name=%s error=%s", self.spec.name, error)
            return -1
        self.pid = process.pid
        if self.spec.pidfile is not None:
            write_private(self.spec.pidfile, str(process.pid).encode())
        self._launched.set()
        log.info("started name=%s pid=%d", self.spec.name, process.pid)
        if self._stopping.is_set():
            process.kill()
        return await process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        _cut(self.spec.log)
        output = os.open(self.spec.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            return await asyncio.create_subprocess_exec(
                *self.spec.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.spec.environment,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
        finally:
            os.close(output)


def _cut(path: Path) -> None:
    """Keep one old log beside the current one."""
    with suppress(OSError):
        if path.stat().st_size > LOG_MAX_BYTES:
            path.replace(path.with_suffix(".log.old"))


def last_line(path: Path) -> str:
    """Return the last line of a process that ended."""
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""
