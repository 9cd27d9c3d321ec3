"""Disturbances of a machine: a full disk, a clock that jumps, a stopped process.

For backends whose Pods are processes of this machine.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e import processes
from e2e.api import Object

_CLOCK = Path(__file__).parent / "fixtures/clock.c"
_BLOCK_BYTES = 64 << 10


class SmallDisk:
    """A file system of a few MiB at a folder, which takes root to make.

    Args:
        folder: to be made.
        mebibytes: its size.
    """

    def __init__(self, folder: Path, mebibytes: int = 8) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"
        self._mebibytes = mebibytes

    def __enter__(self) -> SmallDisk:
        if os.geteuid() != 0:
            pytest.skip("only root mounts file systems")
        self.folder.mkdir(parents=True)
        options = f"size={self._mebibytes}m,mode=1777"
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.folder)]
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
        if mounted.returncode != 0:
            pytest.skip(f"this machine mounts none: {mounted.stderr.strip()}")
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def fill(self) -> None:
        """Write until nothing more fits."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (_BLOCK_BYTES, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as error:
                    assert error.errno == errno.ENOSPC, error

    def free(self) -> None:
        self._ballast.unlink()


class WallClock:
    """A wall clock for processes that are started with `variables`, which may be set while they run.

    Args:
        folder: for its files.
    """

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("there is no C compiler, with which a process gets another clock")
        library, self._offset = folder / "clock.so", folder / "offset"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(_CLOCK), "-ldl"], check=True)
        self._offset.write_bytes(struct.pack("l", 0))
        self.variables = {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(self._offset)}

    def jump(self, seconds: int) -> None:
        """Be wrong by so many seconds from now on."""
        with self._offset.open("r+b") as file:
            file.write(struct.pack("l", seconds))


def agent_pid(pod: Object) -> int:
    """The process of a Pod's agent: of a training process's ancestors, the highest one in the Pod."""
    uid: str = pod["metadata"]["uid"]
    pid = processes.training_processes(uid)[0].pid
    while processes.environment(above := processes.parent(pid)).get("DLR_POD_UID") == uid:
        pid = above
    return pid


@contextmanager
def stopped(pids: Sequence[int], seconds: float) -> Iterator[None]:
    """Stop processes; the context ends no sooner than so many seconds later, when they go on."""
    began = time.monotonic()
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
        time.sleep(max(began + seconds - time.monotonic(), 0))  # the length of the stop is the scenario
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
