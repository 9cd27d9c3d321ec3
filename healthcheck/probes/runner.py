"""Runs probes in their own processes. No ending of a probe raises an exception here."""

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
from healthcheck.probes.cpu_wait import seconds_without_cpu
from healthcheck.probes.report import BLAMING, ProbeReport

STDERR_TAIL_BYTES = 4096
OVERTIME_SECONDS = 2.0
"""Time after its time-out at which a probe that did not end itself is killed."""
ABANDON_SECONDS = 5.0
"""Time after SIGKILL at which a process counts as stuck in the kernel, on a wedged device."""
STARVED_SHARE = 0.5
"""Least part of a probe's time without a CPU at which it counts as starved."""
WITNESS_SECONDS = 5.0
"""Time for the other probes of a group to report after one has failed."""

_PACKAGE_ROOT = Path(__file__).resolve().parents[__name__.count(".")]
"""Entry of `sys.path` for this package: a folder, or the injected zip."""


@dataclass(frozen=True)
class Probe:
    """Probe to run: `python -m <package>.<name> <arguments>`."""

    name: str
    arguments: tuple[str, ...] = ()
    timeout_seconds: float = 60.0
    """Time limit from the start of the process, including the import of torch."""
    package: str = "healthcheck.probes"
    variables: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Additional environment variables, by name."""


class Cancelled(Exception):
    """The results are no longer needed; no process of the probes is left."""


@dataclass(frozen=True)
class Cancellation:
    """Early end of probes, if `is_cancelled` at the start or when `fd` is readable."""

    fd: int
    is_cancelled: Callable[[], bool]
    """Function that must drain `fd` unless it returns True."""


def run(probe: Probe, cancellation: Cancellation | None = None) -> ProbeReport:
    """Run one probe, at most for its time-out and a few seconds.

    Raises Cancelled, and OSError if Python cannot start.
    """
    return run_together([probe], cancellation)[0]


def run_together(
    probes: Sequence[Probe], cancellation: Cancellation | None = None
) -> tuple[ProbeReport, ...]:
    """Run interdependent probes at the same time, and return when all have ended.

    When one has failed, the others cannot pass: they are ended soon, and not only at their time-outs.
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
    """Process of one probe, the leader of its own session, so that its children end with it."""

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
        """Read its output; return False at the end."""
        chunk = os.read(self.stdout_fd, 65536)
        self._printed += chunk
        return bool(chunk)

    def hurry(self) -> None:
        self.deadline = min(self.deadline, time.monotonic() + WITNESS_SECONDS)

    def collect(self) -> None:
        """Set the result after its stdout was closed: it has ended, or is about to."""
        is_late, waited = self._lateness()
        ended = _exits_within(self._process.pid, ABANDON_SECONDS)
        seconds = self._seconds()
        code = self._kill()  # with its children
        if code is None or (not ended and code == -signal.SIGKILL) or (is_late and code > 0):
            self._finish(no_end(seconds, waited, gone=code is not None), seconds)
        else:
            self._finish(self._judge(code), seconds)

    def time_out(self) -> None:
        """Set the result of a process that is ended after its time, or because another one has failed."""
        is_late, waited = self._lateness()
        seconds = self._seconds()
        gone = self._kill() is not None
        if is_late or not gone:
            report = no_end(seconds, waited, gone=gone)
        else:
            report = ProbeReport(ProbeEnding.FAILED, "ended, because one that it worked with had failed")
        self._finish(report, seconds)

    def result(self) -> ProbeReport:
        assert self._result, "a result before the end"
        return self._result

    def close(self) -> None:
        self._kill()
        self._stdout.close()
        self._stderr.close()

    def _judge(self, code: int) -> ProbeReport:
        if code < 0:
            name = _signal_name(-code)
            return ProbeReport(ProbeEnding.CRASHED, f"ended by {name}", signal=name)
        if code == 0:
            try:
                return ProbeReport.from_json(self._printed.decode(errors="replace"))
            except ValueError:
                return ProbeReport(ProbeEnding.CRASHED, "ended without a report")
        last_line = (self._stderr_tail().splitlines() or ["it printed nothing"])[-1]
        return ProbeReport(ProbeEnding.CRASHED, f"exit code {code}: {last_line[:300]}")

    def _finish(self, report: ProbeReport, seconds: float) -> None:
        self._result = replace(
            report, probe=self._probe.name, seconds=seconds, stderr_tail=self._stderr_tail()
        )

    def _kill(self) -> int | None:
        """End the whole session. Return the exit code, or None if the process cannot be killed."""
        if self._process.returncode is None:
            # It has not been waited for, so its process id and its group's cannot have been reused.
            os.killpg(self._process.pid, signal.SIGKILL)
            try:
                self._process.wait(ABANDON_SECONDS)
            except subprocess.TimeoutExpired:
                return None
        return self._process.returncode

    def _lateness(self) -> tuple[bool, float]:
        """Return whether its time is over, and then the part of it without a CPU; else 0."""
        is_late = self._seconds() >= self._probe.timeout_seconds
        return is_late, seconds_without_cpu(self._process.pid) if is_late else 0.0

    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _stderr_tail(self) -> str:
        size = os.fstat(self._stderr.fileno()).st_size
        tail = os.pread(self._stderr.fileno(), STDERR_TAIL_BYTES, max(0, size - STDERR_TAIL_BYTES))
        return tail.decode(errors="replace").strip()


def no_end(seconds: float, waited: float, *, gone: bool) -> ProbeReport:
    """Return the report on a probe that did not end; on a busy machine it is no evidence of a fault.

    Args:
        seconds: time that it had.
        waited: part of it without a CPU.
        gone: whether it could be killed.
    """
    if gone and waited >= STARVED_SHARE * seconds:
        return ProbeReport(
            ProbeEnding.UNAVAILABLE,
            f"no end after {seconds:.0f} s, {waited:.0f} s of them without a CPU: the machine is too busy "
            "for this test; end what else runs there, and check again",
        )
    stuck = "" if gone else "; it cannot even be killed, which is how a wedged device looks"
    return ProbeReport(ProbeEnding.TIMED_OUT, f"no end after {seconds:.0f} s{stuck}", wedged=not gone)


def _exits_within(pid: int, seconds: float) -> bool:
    """Return whether a child that has closed its stdout ends in time. `wait` collects it later."""
    deadline = time.monotonic() + seconds
    while not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.002)
    return True


def _environment() -> dict[str, str]:
    """Return our environment, with this package importable from any working directory."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = [str(_PACKAGE_ROOT), *(str(Path(folder).absolute()) for folder in inherited if folder)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
