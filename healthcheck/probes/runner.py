"""Runs probes in processes of their own. No end of a probe is an exception here."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from crds.agent_report import ProbeEnding
from healthcheck.probes.report import BLAMING, ProbeReport

STDERR_TAIL_BYTES = 4096
OVERTIME_SECONDS = 2.0
"""A probe ends itself at its time-out. One that cannot is killed so much later."""
ABANDON_SECONDS = 5.0
"""A process that outlives SIGKILL this long sits in the kernel, on a wedged device, and will go on to."""
WITNESS_SECONDS = 5.0
"""When one of several that work together has failed, the others get so long to report what they saw of it."""

_PACKAGE_ROOT = Path(__file__).resolve().parents[__name__.count(".")]
"""What `sys.path` holds for this package to be found: a folder, or the zip that is injected."""


@dataclass(frozen=True)
class Probe:
    """A probe to run: `python -m <package>.<name> <arguments>`."""

    name: str
    arguments: tuple[str, ...] = ()
    timeout_seconds: float = 60.0
    """Time limit from the start of the process, importing torch included."""
    package: str = "healthcheck.probes"
    variables: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Variables of its environment beside ours, by name."""


class Cancelled(Exception):
    """The results are not needed any more; nothing of the probes is left."""


@dataclass(frozen=True)
class Cancellation:
    """Ends probes early, if `is_cancelled` at the start or when `fd` is readable."""

    fd: int
    is_cancelled: Callable[[], bool]
    """Has to drain `fd`, unless it returns true."""


def run(probe: Probe, cancellation: Cancellation | None = None) -> ProbeReport:
    """Run one probe, for its time-out and a few seconds at most.

    Raises Cancelled, and OSError if Python cannot start.
    """
    return run_together([probe], cancellation)[0]


def run_together(
    probes: Sequence[Probe], cancellation: Cancellation | None = None
) -> tuple[ProbeReport, ...]:
    """Run probes that need each other at the same time, and return when all have ended.

    When one has failed, the others cannot pass any more: they are ended soon, not only at their time-outs.
    Raises as `run` does.
    """
    if cancellation and cancellation.is_cancelled():
        raise Cancelled
    started: list[_Running] = []
    try:
        started.extend(_Running(probe) for probe in probes)
        _wait(started, cancellation)
        return tuple(running.result() for running in started)
    finally:
        for running in started:
            running.close()


def _wait(started: Sequence[_Running], cancellation: Cancellation | None) -> None:
    poller = select.poll()
    open_ones = {running.stdout_fd: running for running in started}
    for fd in open_ones:
        poller.register(fd, select.POLLIN)
    if cancellation:
        poller.register(cancellation.fd, select.POLLIN)
    while open_ones:
        seconds_left = min(running.deadline for running in open_ones.values()) - time.monotonic()
        readable = {fd for fd, _ in poller.poll(max(0.0, seconds_left) * 1000 + 1)}
        if cancellation and cancellation.fd in readable and cancellation.is_cancelled():
            raise Cancelled
        for fd, running in list(open_ones.items()):
            ended = fd in readable and not running.read()
            if not ended and time.monotonic() < running.deadline:
                continue
            poller.unregister(fd)
            del open_ones[fd]
            running.collect() if ended else running.time_out()
            if running.result().ending in BLAMING:
                for other in open_ones.values():
                    other.hurry()


class _Running:
    """One probe's process, the leader of a session of its own, so that what it started ends with it."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._started = time.monotonic()
        times_out = self._started + probe.timeout_seconds
        self.deadline = times_out + OVERTIME_SECONDS
        self._printed = b""
        self._result: ProbeReport | None = None
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - close() does
        arguments = [f"--deadline={times_out}", f"--parent={os.getpid()}", *probe.arguments]
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{probe.package}.{probe.name}", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            cwd="/",  # so that no file beside a training script takes the place of a module
            env={**_environment(), **dict(probe.variables)},
            start_new_session=True,
        )
        assert self._process.stdout
        self._stdout = self._process.stdout
        self.stdout_fd = self._stdout.fileno()

    def read(self) -> bool:
        """Take in what it printed. False at the end."""
        chunk = os.read(self.stdout_fd, 65536)
        self._printed += chunk
        return bool(chunk)

    def hurry(self) -> None:
        self.deadline = min(self.deadline, time.monotonic() + WITNESS_SECONDS)

    def collect(self) -> None:
        """Its stdout is closed: it has ended, or is about to."""
        ended = _exits_within(self._process.pid, ABANDON_SECONDS)
        seconds = self._seconds()
        code = self._kill()  # and what it left behind
        if code is None or (not ended and code == -signal.SIGKILL):
            self._finish(_no_end(seconds, gone=code is not None), seconds)
        else:
            self._finish(self._judge(code, seconds), seconds)

    def time_out(self) -> None:
        seconds = self._seconds()
        gone = self._kill() is not None
        if gone and seconds < self._probe.timeout_seconds:
            report = ProbeReport(ProbeEnding.FAILED, "ended, because one that it worked with had failed")
        else:
            report = _no_end(seconds, gone=gone)
        self._finish(report, seconds)

    def result(self) -> ProbeReport:
        assert self._result, "a result before the end"
        return self._result

    def close(self) -> None:
        self._kill()
        self._stdout.close()
        self._stderr.close()

    def _judge(self, code: int, seconds: float) -> ProbeReport:
        if code < 0:
            name = _signal_name(-code)
            return ProbeReport(ProbeEnding.CRASHED, f"ended by {name}", signal=name)
        if code == 0:
            try:
                return ProbeReport.from_json(self._printed.decode(errors="replace"))
            except ValueError:
                return ProbeReport(ProbeEnding.CRASHED, "ended without a report")
        if seconds >= self._probe.timeout_seconds:
            return _no_end(seconds, gone=True)
        last_line = (self._stderr_tail().splitlines() or ["it printed nothing"])[-1]
        return ProbeReport(ProbeEnding.CRASHED, f"exit code {code}: {last_line[:300]}")

    def _finish(self, report: ProbeReport, seconds: float) -> None:
        self._result = replace(
            report, probe=self._probe.name, seconds=seconds, stderr_tail=self._stderr_tail()
        )

    def _kill(self) -> int | None:
        """End the whole session. The exit code, or None if the kernel does not let the process go."""
        if self._process.returncode is None:
            # Nobody has waited for it yet, so its number, and its group's, cannot have become another's.
            os.killpg(self._process.pid, signal.SIGKILL)
            try:
                self._process.wait(ABANDON_SECONDS)
            except subprocess.TimeoutExpired:
                return None
        return self._process.returncode

    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _stderr_tail(self) -> str:
        size = os.fstat(self._stderr.fileno()).st_size
        tail = os.pread(self._stderr.fileno(), STDERR_TAIL_BYTES, max(0, size - STDERR_TAIL_BYTES))
        return tail.decode(errors="replace").strip()


def _no_end(seconds: float, *, gone: bool) -> ProbeReport:
    stuck = "" if gone else "; it cannot even be killed, which is how a wedged device looks"
    return ProbeReport(ProbeEnding.TIMED_OUT, f"no end after {seconds:.0f} s{stuck}", wedged=not gone)


def _exits_within(pid: int, seconds: float) -> bool:
    """Whether a child that has closed its stdout ends. It is left for `wait` to collect."""
    deadline = time.monotonic() + seconds
    while not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.002)
    return True


def _environment() -> dict[str, str]:
    """Ours, with this package importable whatever the working directory."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = [str(_PACKAGE_ROOT), *(str(Path(folder).absolute()) for folder in inherited if folder)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
