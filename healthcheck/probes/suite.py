"""Local tests of a node, one probe after the other, so that none disturbs another's figures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from crds.agent_report import ProbeEnding
from healthcheck.probes.child import AUTO, CPU, CUDA
from healthcheck.probes.device_state import GPU_COUNT
from healthcheck.probes.report import BLAMING, ProbeReport
from healthcheck.probes.runner import Cancellation, Probe, run

DEVICE_STATE = "device_state"
TIMEOUT_SECONDS = {DEVICE_STATE: 30.0, "gemm": 120.0, "copies": 90.0, "intra_node": 120.0}
"""Time limits by probe, in their order, with ample time to import torch from a cold disk and start CUDA on
eight GPUs."""
OF_GPUS = (DEVICE_STATE, "intra_node")
"""Probes with nothing to test on a CPU."""
MEASURING = tuple(name for name in TIMEOUT_SECONDS if name != DEVICE_STATE)
"""Probes whose figures are used to compare nodes."""
AGAIN = "again"
"""Name of the combined result of a node that repeats its measurements."""
LEAST_SECONDS = 3.0
"""Minimum time left to start a probe."""
SECOND_SHARE = 0.5
"""Minimum share of the first attempt's time for a second attempt to be meaningful."""

Progress = Callable[[str, ProbeReport | None], None]
"""Callback with a probe's name: with None when it starts, with its report when it has ended."""


def run_local(
    require_gpu: bool,
    progress: Progress = lambda probe, result: None,
    *,
    cpu_only: bool = False,
    budget_seconds: float = math.inf,
    cancellation: Cancellation | None = None,
    names: Sequence[str] = tuple(TIMEOUT_SECONDS),
) -> list[ProbeReport]:
    """Run local probes, in order.

    A probe that hangs, or is ended by a signal, is tried once more, and only the repetition counts, or
    nothing if too little of the budget is left. The remaining probes are not run without a required GPU,
    if the probe of the devices' state crashes or hangs, or after a probe that hangs twice. A probe without
    enough budget left is Skipped if earlier ones, which were slow, have figures that count, and
    Unavailable otherwise.

    Args:
        cpu_only: do not use GPUs, even if there are some.
        budget_seconds: time for all probes; each probe's own limit applies, too.
        names: probes to run.

    Raises Cancelled, and OSError if Python cannot start.
    """
    budget = _Budget(budget_seconds, time.monotonic() + budget_seconds)
    results: list[ProbeReport] = []
    for name in (name for name in names if not (cpu_only and name in OF_GPUS)):
        progress(name, None)
        probe = Probe(name, _arguments(name, require_gpu, cpu_only, results), TIMEOUT_SECONDS[name])
        result, hung = _tried(probe, budget, results, cancellation)
        progress(name, result)
        results.append(result)
        if hung or _is_pointless(result, require_gpu):
            break
    return results


@dataclass(frozen=True)
class _Budget:
    """Time for all probes."""

    seconds: float
    ends_at: float

    def left(self) -> float:
        return self.ends_at - time.monotonic()


def _tried(
    probe: Probe, budget: _Budget, earlier: Sequence[ProbeReport], cancellation: Cancellation | None
) -> tuple[ProbeReport, bool]:
    """Return a probe's result, from a second attempt if the first may be an accident, and whether it hung at
    last."""

    def out_of_time(what: str) -> ProbeReport:
        return _out_of_time(f"{probe.name} {what}", budget.seconds, earlier)

    seconds = min(probe.timeout_seconds, budget.left())
    if seconds < LEAST_SECONDS:
        return replace(out_of_time("was not run"), probe=probe.name), False
    first = run(replace(probe, timeout_seconds=seconds), cancellation)
    hung = first.ending is ProbeEnding.TIMED_OUT
    if not _may_be_an_accident(first):
        return first, hung
    left = min(probe.timeout_seconds, budget.left())
    if left < max(LEAST_SECONDS, SECOND_SHARE * seconds if hung else 0.0):
        what = "did not end" if hung else f"was {first.reason} and not tried again"
        late = out_of_time(what)
        return replace(first, ending=late.ending, reason=late.reason), hung
    again = run(replace(probe, timeout_seconds=left), cancellation)
    note = f"{probe.name} was tried twice; first: {first.reason}"
    return replace(again, notes=(*again.notes, note)), again.ending is ProbeEnding.TIMED_OUT


def _may_be_an_accident(result: ProbeReport) -> bool:
    """Return whether a repetition may give another result; a process that survives SIGKILL is no accident."""
    killed = result.ending is ProbeEnding.CRASHED and bool(result.signal)
    return killed or (result.ending is ProbeEnding.TIMED_OUT and not result.wedged)


def measure_again(
    require_gpu: bool, *, cpu_only: bool, budget_seconds: float, cancellation: Cancellation | None
) -> ProbeReport:
    """Run the probes for comparing nodes once more; return one result with all of their figures.

    If any fails, it is the result of the first failure.
    """
    results = run_local(
        require_gpu,
        cpu_only=cpu_only,
        budget_seconds=budget_seconds,
        cancellation=cancellation,
        names=MEASURING,
    )
    figures = {name: value for result in results for name, value in result.figures.items()}
    worst = next((result for result in results if result.ending in BLAMING), None)
    report = worst or ProbeReport(ProbeEnding.PASSED, figures=figures)
    return replace(report, probe=AGAIN, seconds=sum(result.seconds for result in results))


def _out_of_time(what: str, budget_seconds: float, earlier: Sequence[ProbeReport]) -> ProbeReport:
    measured = any(result.figures for result in earlier if result.probe in MEASURING)
    reason = f"{what}: the {budget_seconds:.0f} s for all local tests were spent before"
    return ProbeReport(ProbeEnding.SKIPPED if measured else ProbeEnding.UNAVAILABLE, reason)


def _arguments(name: str, require_gpu: bool, cpu_only: bool, earlier: list[ProbeReport]) -> tuple[str, ...]:
    if name == DEVICE_STATE:
        return ("--require-gpu",) if require_gpu else ()
    if cpu_only:
        return (f"--device={CPU}",)
    has_gpu = any(GPU_COUNT in result.figures for result in earlier)
    return (f"--device={CUDA if require_gpu or has_gpu else AUTO}",)


def _is_pointless(after: ProbeReport, require_gpu: bool) -> bool:
    if after.probe != DEVICE_STATE:
        return False
    return after.ending is ProbeEnding.CRASHED or (require_gpu and GPU_COUNT not in after.figures)
