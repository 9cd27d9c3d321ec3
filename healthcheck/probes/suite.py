"""All that a node can test by itself, one probe after the other, so that none disturbs another's figures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from crds.protocol import ProbeEnding
from healthcheck.probes.device_kind import AUTO, CPU, CUDA
from healthcheck.probes.device_state import GPU_COUNT
from healthcheck.probes.report import BLAMING, Report
from healthcheck.probes.runner import Cancellation, Probe, ProbeResult, run

DEVICE_STATE = "device_state"
TIMEOUT_SECONDS = {DEVICE_STATE: 30.0, "gemm": 120.0, "copies": 90.0, "intra_node": 120.0}
"""By probe, in their order. Ample for importing torch from a cold disk and starting CUDA on eight GPUs."""
MEASURING = tuple(name for name in TIMEOUT_SECONDS if name != DEVICE_STATE)
"""Those whose figures nodes are compared by."""
LEAST_SECONDS = 3.0
"""With less than this left, a probe is not begun."""
BLAMING_SHARE = 0.5
"""A time-out speaks against the node only if the probe had its whole limit, or so much of the budget: with
less, it would say more about the probes before it."""

Progress = Callable[[str, ProbeResult | None], None]
"""Told of a probe when it starts, with None, and when it has ended."""


def run_local(
    require_gpu: bool,
    progress: Progress = lambda probe, result: None,
    *,
    cpu_only: bool = False,
    budget_seconds: float = math.inf,
    cancellation: Cancellation | None = None,
    names: Sequence[str] = tuple(TIMEOUT_SECONDS),
) -> list[ProbeResult]:
    """Run local probes, in order.

    Without the GPU that is required, where even asking for the devices' state crashes or hangs, and after any
    probe that hangs, the rest is not run: it could only do the same. A probe that finds too little of the
    budget left, because those before it were slow, is Skipped, and their figures speak; without any it is
    Unavailable.

    Args:
        cpu_only: leave GPUs alone, though there may be some.
        budget_seconds: for all of them; each probe's own limit holds besides.
        names: the probes to run.

    Raises Cancelled, and OSError if Python cannot start.
    """
    ends_at = time.monotonic() + budget_seconds
    results: list[ProbeResult] = []
    for name in (name for name in names if not (cpu_only and name == DEVICE_STATE)):
        progress(name, None)
        timeout_seconds = min(TIMEOUT_SECONDS[name], ends_at - time.monotonic())
        if timeout_seconds < LEAST_SECONDS:
            result = ProbeResult(name, _out_of_time(f"{name} was not run", budget_seconds, results), 0.0)
        else:
            arguments = _arguments(name, require_gpu, cpu_only, results)
            result = run(Probe(name, arguments, timeout_seconds), cancellation)
        hung = result.ending is ProbeEnding.TIMED_OUT
        if hung and timeout_seconds < min(TIMEOUT_SECONDS[name], BLAMING_SHARE * budget_seconds):
            result = replace(result, report=_out_of_time(f"{name} did not end", budget_seconds, results))
        progress(name, result)
        results.append(result)
        if hung or _is_pointless_to_go_on(result, require_gpu):
            break
    return results


def measure_again(
    require_gpu: bool, *, cpu_only: bool, budget_seconds: float, cancellation: Cancellation | None
) -> ProbeResult:
    """Run the probes whose figures nodes are compared by once more: one result, with all that they measured.

    It fails as the first one that did; what was not measured again speaks neither for nor against the node.
    """
    results = run_local(
        require_gpu,
        cpu_only=cpu_only,
        budget_seconds=budget_seconds,
        cancellation=cancellation,
        names=MEASURING,
    )
    figures = {name: value for result in results for name, value in result.report.figures.items()}
    worst = next((result.report for result in results if result.ending in BLAMING), None)
    report = worst or Report(ProbeEnding.PASSED, figures=figures)
    return ProbeResult("again", report, sum(result.seconds for result in results))


def _out_of_time(what: str, budget_seconds: float, earlier: Sequence[ProbeResult]) -> Report:
    measured = any(result.report.figures for result in earlier if result.probe in MEASURING)
    reason = f"{what}: the {budget_seconds:.0f} s for all local tests were spent before"
    return Report(ProbeEnding.SKIPPED if measured else ProbeEnding.UNAVAILABLE, reason)


def _arguments(name: str, require_gpu: bool, cpu_only: bool, earlier: list[ProbeResult]) -> tuple[str, ...]:
    if name == DEVICE_STATE:
        return ("--require-gpu",) if require_gpu else ()
    if cpu_only:
        return (f"--device={CPU}",)
    has_gpu = any(GPU_COUNT in result.report.figures for result in earlier)
    return (f"--device={CUDA if require_gpu or has_gpu else AUTO}",)


def _is_pointless_to_go_on(after: ProbeResult, require_gpu: bool) -> bool:
    if after.probe != DEVICE_STATE:
        return False
    return after.ending is ProbeEnding.CRASHED or (require_gpu and GPU_COUNT not in after.report.figures)
