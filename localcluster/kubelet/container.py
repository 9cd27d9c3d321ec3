"""One run of a container, as the kubelet holds it: its shim, and what the shim says. Nothing polls."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

import orjson

from localcluster.client.clock import utc_now
from localcluster.kubelet import namespaces
from localcluster.kubelet.cgroups import MemoryGroup, MemoryGroups
from localcluster.resource import JSON

KILLED_EXIT_CODE = 137
READ_BYTES = 64 * 1024
_ROOT = Path(__file__).parents[__name__.count(".")]

log = logging.getLogger(__name__)


class Isolation(Enum):
    """How a container is kept apart, best first."""

    ROOT = "root"
    """PID and mount namespaces, as root."""
    USER = "user"
    """The same, within a user namespace."""
    NONE = "none"
    """Neither: no mounts; the shim kills what it adopts."""


class StartRefused(Exception):
    """The shim could not start the container."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Exit:
    code: int
    at: datetime
    out_of_memory: bool = False
    """The kernel killed at least one of its processes for its memory limit, whatever ended it."""


@dataclass(frozen=True)
class ContainerSpec:
    """Description of a container for its shim."""

    title: str
    """The title in the process list."""
    argv: list[str]
    env: dict[str, str]
    cwd: str
    log: str
    hostname: str = ""
    mounts: list[JSON] = field(default_factory=list)
    memory_limit_bytes: int | None = None
    """Kept where this host can."""


def shim_command(module: str, title: str) -> list[str]:
    """Python with nothing loaded that a shim does not need: it starts in about 15 ms."""
    code = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from {module} import main; main()"
    return [sys.executable, "-I", "-S", "-E", "-c", code, title]


class ContainerProcess:
    """Made by `start`; from then on `exited` tells the end, whatever kills what."""

    def __init__(
        self, isolation: Isolation, on_lost: Callable[[], None], memory: MemoryGroups | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        self._isolation = isolation
        self._on_lost = on_lost
        self._memory = memory
        self._shim: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._pidfd = -1
        self.started: asyncio.Future[datetime] = loop.create_future()
        self.exited: asyncio.Future[Exit] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        """The shim itself has been reaped."""
        self.memory_group: MemoryGroup | None = None
        """The cgroup that keeps its memory limit."""

    @property
    def shim_pid(self) -> int:
        return self._shim.pid if self._shim else 0

    async def start(self, spec: ContainerSpec) -> datetime:
        """Run the command. StartRefused says why it cannot be."""
        loop = asyncio.get_running_loop()
        if self._memory and spec.memory_limit_bytes:
            try:
                self.memory_group = self._memory.make(spec.memory_limit_bytes)
            except OSError as error:
                self.gone.set_result(None)
                why = f"memory limit of {spec.memory_limit_bytes} bytes: {error.strerror}"
                raise StartRefused("StartError", why) from error
        self._shim = shim = subprocess.Popen(  # noqa: ASYNC220 - a few ms, and it must be this thread's child
            shim_command("localcluster.kubelet.shim", spec.title),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # what a dead shim did not take is not tried again when its pipe is closed
            start_new_session=True,
            env={},
        )
        assert shim.stdin and shim.stdout
        os.set_blocking(shim.stdout.fileno(), False)
        self._pidfd = os.pidfd_open(shim.pid)
        loop.add_reader(shim.stdout.fileno(), self._hear)
        loop.add_reader(self._pidfd, self._reap)
        described = {
            "isolation": self._isolation.value,
            "argv": spec.argv,
            "env": spec.env,
            "cwd": spec.cwd,
            "log": spec.log,
            "hostname": spec.hostname,
            "mounts": spec.mounts,
            "memoryGroup": self.memory_group.described() if self.memory_group else None,
        }
        self._command(orjson.dumps(described) + b"\n")
        return await asyncio.shield(self.started)

    def terminate(self) -> None:
        """SIGTERM to the main process."""
        self._command(b"T")

    def kill(self) -> None:
        """SIGKILL to everything in the container."""
        self._command(b"K")

    def _command(self, content: bytes) -> None:
        assert self._shim and self._shim.stdin
        if self.gone.done():  # its end is not yet recorded by who awaits it
            return
        with suppress(BrokenPipeError):
            while content:
                content = content[self._shim.stdin.write(content) :]

    def _hear(self) -> None:
        assert self._shim and self._shim.stdout
        descriptor = self._shim.stdout.fileno()
        while True:
            try:
                heard = os.read(descriptor, READ_BYTES)
            except BlockingIOError:
                return
            if not heard:
                asyncio.get_running_loop().remove_reader(descriptor)
                return
            *lines, self._buffer = (self._buffer + heard).split(b"\n")
            for line in lines:
                self._take(orjson.loads(line))

    def _take(self, report: JSON) -> None:
        if "started" in report:
            self.started.set_result(_moment(report["time"]))
        elif "exited" in report:
            self._ended(Exit(report["exited"], _moment(report["time"]), bool(report.get("outOfMemory"))))
        else:
            self._refused(StartRefused(report["reason"], report["refused"]))

    def _ended(self, exit_: Exit) -> None:
        if not self.started.done():
            self._refused(StartRefused("StartError", "the container was killed while it was made"))
        if not self.exited.done():
            self.exited.set_result(exit_)

    def _refused(self, refusal: StartRefused) -> None:
        if not self.started.done():
            self.started.set_exception(refusal)
            self.started.exception()  # its reader may have been cancelled

    def _reap(self) -> None:
        """The shim is over. If it was killed, so is the container, and nobody has said so yet."""
        assert self._shim and self._shim.stdin and self._shim.stdout
        self._hear()
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pidfd)
        loop.remove_reader(self._shim.stdout.fileno())
        os.close(self._pidfd)
        self._shim.wait()
        self._shim.stdin.close()
        self._shim.stdout.close()
        if not self.exited.done():
            if self._shim.returncode:
                log.warning("shim ended shim=%s status=%s", self._shim.pid, self._shim.returncode)
                self._on_lost()
            self._ended(Exit(KILLED_EXIT_CODE, utc_now()))
        if self.memory_group:  # the shim has done it, unless it was killed or the kernel was slow
            loop.run_in_executor(None, self.memory_group.remove)
        self.gone.set_result(None)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


class ContainerRuntime:
    """Starts containers, and leaves no process behind when a shim is killed."""

    def __init__(self, isolation: Isolation, memory: MemoryGroups | None = None) -> None:
        """`memory` makes the groups that hold memory limits; without it, none is kept."""
        self.isolation = isolation
        self._memory = memory
        self._living: set[ContainerProcess] = set()
        self._adopting = False

    def adopt_strays(self) -> None:
        """Adopt what a killed shim leaves, and end it; for a process with no other children."""
        if self.isolation is Isolation.NONE:
            namespaces.adopt_orphans()
            self._adopting = True

    def create(self) -> ContainerProcess:
        process = ContainerProcess(self.isolation, self._sweep, self._memory)
        self._living.add(process)
        process.gone.add_done_callback(lambda _gone: self._living.discard(process))
        return process

    def _sweep(self) -> None:
        """End the processes of a killed shim, which without namespaces become our children."""
        if not self._adopting:
            return
        ours = os.getpid()
        known = {process.shim_pid for process in self._living}
        while strays := [pid for pid in namespaces.children(ours) if pid not in known]:
            for pid in strays:
                with suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, 9)
                    os.waitpid(pid, 0)


def detect_isolation(scratch: Path) -> Isolation:
    """The best that this host lets us have, by trying it.

    Args:
        scratch: a folder where the containers' own will be; nothing stays in it.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="probe-", dir=scratch) as folder:
        return _isolation_in(Path(folder))


def _isolation_in(folder: Path) -> Isolation:
    source, target = folder / "source", folder / "target"
    for each in (source, target):
        each.mkdir()
    (source / "here").touch()
    candidates = [Isolation.USER] if os.getuid() else [Isolation.ROOT, Isolation.USER]
    for isolation in candidates:
        described = {
            "isolation": isolation.value,
            "argv": ["test", "-e", str(target / "here")],
            "env": {"PATH": os.defpath},
            "cwd": "/",
            "log": str(folder / "log"),
            "hostname": "",
            "mounts": [{"source": str(source), "target": str(target), "readOnly": True}],
        }
        shim = subprocess.Popen(
            shim_command("localcluster.kubelet.shim", "probe"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in a terminal is for us; the shim ends with its input
        )
        assert shim.stdin and shim.stdout
        shim.stdin.write(orjson.dumps(described) + b"\n")
        shim.stdin.flush()
        reports = [orjson.loads(line) for line in shim.stdout]
        shim.stdin.close()
        shim.wait()
        if reports and reports[-1].get("exited") == 0:
            return isolation
        log.info("isolation %s is not to be had: %s", isolation.value, reports)
    return Isolation.NONE
