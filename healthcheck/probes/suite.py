"""All that a node can test by itself, one probe after the other, so that none disturbs another's figures."""

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
"""By probe, in their order. Ample for importing torch from a cold disk and starting CUDA on eight GPUs."""
OF_GPUS = (DEVICE_STATE, "intra_node")
"""Those that have nothing to test on a CPU."""
MEASURING = tuple(name for name in TIMEOUT_SECONDS if name != DEVICE_STATE)
"""Those whose figures nodes are compared by."""
AGAIN = "again"
"""Name of the one result of all of them, of a node that measures itself once more."""
LEAST_SECONDS = 3.0
"""With less than this left, a probe is not begun."""
SECOND_SHARE = 0.5
"""Share of the time of a first try that a second one needs to show more of the node than of the time-out."""

Progress = Callable[[str, ProbeReport | None], None]
"""Called with a probe's name when it starts, with None, and when it has ended."""


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

    A probe that hangs or that a signal ends is tried once more: only what happens again counts, and nothing
    if there is too little of the budget left for that. Without the GPU that is required, where even the
    devices' state crashes or hangs, and after any probe that hangs twice, the rest is not run. A probe that
    finds too little of the budget left, because those before it were slow, is Skipped, and their figures
    count; without any it is Unavailable.

    Args:
        cpu_only: leave GPUs alone, though there may be some.
        budget_seconds: for all of them; each probe's own limit holds besides.
        names: the probes to run.

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
    """The time for all probes."""

    seconds: float
    ends_at: float

    def left(self) -> float:
        return self.ends_at - time.monotonic()


def _tried(
    probe: Probe, budget: _Budget, earlier: Sequence[ProbeReport], cancellation: Cancellation | None
) -> tuple[ProbeReport, bool]:
    """A probe's result, by a second try if the first may be an accident; and whether it hung at last."""

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
    """A process that not even SIGKILL ends is none."""
    killed = result.ending is ProbeEnding.CRASHED and bool(result.signal)
    return killed or (result.ending is ProbeEnding.TIMED_OUT and not result.wedged)


def measure_again(
    require_gpu: bool, *, cpu_only: bool, budget_seconds: float, cancellation: Cancellation | None
) -> ProbeReport:
    """Run the probes whose figures nodes are compared by once more: one result, with all that they measured.

    It fails as the first one that did.
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
