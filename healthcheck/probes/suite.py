"""All that a node can test by itself, one probe after the other, so that none disturbs another's figures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from crds.protocol import ProbeEnding
from healthcheck.probes.device_kind import AUTO, CPU, CUDA
from healthcheck.probes.device_state import GPU_COUNT
from healthcheck.probes.report import Report
from healthcheck.probes.runner import Cancellation, Probe, ProbeResult, run

DEVICE_STATE = "device_state"
TIMEOUT_SECONDS = {DEVICE_STATE: 30.0, "gemm": 120.0, "copies": 90.0, "intra_node": 120.0}
"""By probe, in their order. Ample for importing torch from a cold disk and starting CUDA on eight GPUs."""
LEAST_SECONDS = 3.0
"""With less than this left, a probe that does not end would say more about the budget than about the node."""

ENOUGH = 0.8
"""The share of its own limit, or of the whole budget if that is less, that a probe must have had. Not to have
ended in less speaks against the probes before it, and not against the node."""

Progress = Callable[[str, ProbeResult | None], None]
"""Told of a probe when it starts, with None, and when it has ended."""


def run_local(
    require_gpu: bool,
    progress: Progress = lambda probe, result: None,
    *,
    cpu_only: bool = False,
    budget_seconds: float = math.inf,
    cancellation: Cancellation | None = None,
) -> list[ProbeResult]:
    """Run all local probes, in order.

    Without the GPU that is required, where even asking for the devices' state crashes or hangs, and after any
    probe that hangs, the rest is not run: it could only do the same. A probe that finds too little of the
    budget left is Unavailable, and so is one that did not end in what others had left of it.

    Args:
        cpu_only: leave GPUs alone, though there may be some.
        budget_seconds: for all of them; each probe's own limit holds besides.

    Raises Cancelled, and OSError if Python cannot start.
    """
    ends_at = time.monotonic() + budget_seconds
    results: list[ProbeResult] = []
    for name, limit_seconds in TIMEOUT_SECONDS.items():
        if cpu_only and name == DEVICE_STATE:
            continue
        progress(name, None)
        timeout_seconds = min(limit_seconds, ends_at - time.monotonic())
        if timeout_seconds < LEAST_SECONDS:
            result = _not_run(name, budget_seconds)
        else:
            arguments = _arguments(name, require_gpu, cpu_only, results)
            result = run(Probe(name, arguments, timeout_seconds), cancellation)
            had_its_time = timeout_seconds >= ENOUGH * min(limit_seconds, budget_seconds)
            if result.ending is ProbeEnding.TIMED_OUT and not had_its_time:
                result = _cut_short(result, timeout_seconds, budget_seconds)
        progress(name, result)
        results.append(result)
        if _is_pointless_to_go_on(result, require_gpu):
            break
    return results


def _not_run(name: str, budget_seconds: float) -> ProbeResult:
    reason = f"{name} was not run: the {budget_seconds:.0f} s for all local tests were spent before"
    return ProbeResult(name, Report(ProbeEnding.UNAVAILABLE, reason), 0.0)


def _cut_short(result: ProbeResult, had_seconds: float, budget_seconds: float) -> ProbeResult:
    reason = (
        f"{result.probe} did not end in the {had_seconds:.0f} s that the probes before it had left "
        f"of the {budget_seconds:.0f} s for all local tests"
    )
    return ProbeResult(result.probe, Report(ProbeEnding.UNAVAILABLE, reason), result.seconds)


def _arguments(name: str, require_gpu: bool, cpu_only: bool, earlier: list[ProbeResult]) -> tuple[str, ...]:
    if name == DEVICE_STATE:
        return ("--require-gpu",) if require_gpu else ()
    if cpu_only:
        return (f"--device={CPU}",)
    has_gpu = any(GPU_COUNT in result.report.figures for result in earlier)
    return (f"--device={CUDA if require_gpu or has_gpu else AUTO}",)


def _is_pointless_to_go_on(after: ProbeResult, require_gpu: bool) -> bool:
    if after.ending is ProbeEnding.TIMED_OUT:
        return True
    if after.probe != DEVICE_STATE:
        return False
    return after.ending is ProbeEnding.CRASHED or (require_gpu and GPU_COUNT not in after.report.figures)
