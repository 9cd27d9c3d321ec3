"""Breaks, slows or holds a virtual node for real, by signals to the probe processes of its Pods.

Each fault is a thread that looks through /proc often enough to catch a probe while it still starts. For
backends whose Pods are processes of this machine.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from types import TracebackType
from typing import Self

from e2e import processes

LOOK_SECONDS = 0.05
YOUNG_SECONDS = 20.0
"""A process may still become a probe until it is so old: it has been forked, and calls exec soon."""
RUN_SECONDS = 0.001
"""Shorter than the products and copies that are measured, so that each of them is slowed."""
LOADED_CPU_SECONDS = 1.2
"""CPU seconds after which a probe has imported torch. Slowing the import would only make the check longer."""


class NodeProbes:
    """The probe processes of the Pods that one namespace has on one node."""

    def __init__(self, namespace: str, node: str, probe: str = "") -> None:
        """`probe` is the name of a probe's module; without it, all are meant."""
        self._variables = {"DLR_NAMESPACE": namespace, "DLR_NODE_NAME": node}
        self._modules = f"healthcheck.probes.{probe}", f"agent.node_check.{probe}"
        self._since: dict[int, float] = {}
        self._found: set[int] = set()

    def living(self) -> list[int]:
        """Their pids."""
        now = time.monotonic()
        pids = set(processes.all_pids())
        self._since = {pid: self._since.get(pid, now) for pid in pids}
        young = {pid for pid in pids if now - self._since[pid] < YOUNG_SECONDS}
        self._found = (self._found & pids) | {pid for pid in young if self._is_one(pid)}
        return sorted(self._found)

    def signal(self, pid: int, number: int) -> bool:
        """Whether the process was still there, and one of them, to get it."""
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                if self._is_one(pid):
                    signal.pidfd_send_signal(descriptor, number)
                    return True
            finally:
                os.close(descriptor)
        return False

    def _is_one(self, pid: int) -> bool:
        command = processes.command(pid)
        if not any(module in command for module in self._modules):
            return False
        return self._variables.items() <= processes.environment(pid).items()


class Fault(ABC):
    """Lasts as long as its context."""

    def __init__(self, probes: NodeProbes) -> None:
        self.probes = probes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with suppress(PermissionError):  # without the right to it, a busy machine may have us look too late
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_FIFO, os.sched_param(1))
        self._work()

    @abstractmethod
    def _work(self) -> None:
        """Until `_over` is set."""


class Broken(Fault):
    """Kills every probe of the node as it appears."""

    def __init__(self, probes: NodeProbes) -> None:
        super().__init__(probes)
        self.killed: set[int] = set()

    def _work(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self.killed.update(pid for pid in self.probes.living() if self.probes.signal(pid, signal.SIGKILL))


class Slowed(Fault):
    """Leaves the node's probes a small share of a CPU: what they use is followed by a stop in proportion."""

    def __init__(self, probes: NodeProbes, share: float = 0.07) -> None:
        super().__init__(probes)
        self._stops_per_run = 1 / share - 1
        self.slowed: set[int] = set()

    def _work(self) -> None:
        while not self._over.is_set():
            loaded = [pid for pid in self.probes.living() if processes.cpu_seconds(pid) >= LOADED_CPU_SECONDS]
            used = {pid: processes.cpu_seconds(pid) for pid in loaded}
            self._over.wait(RUN_SECONDS)
            stopped = [pid for pid in loaded if self.probes.signal(pid, signal.SIGSTOP)]
            self.slowed.update(stopped)
            longest = max((processes.cpu_seconds(pid) - used[pid] for pid in stopped), default=0.0)
            self._over.wait(max(longest, RUN_SECONDS) * self._stops_per_run)
            for pid in stopped:
                self.probes.signal(pid, signal.SIGCONT)
