"""All that a node can test by itself, one probe after the other, so that none disturbs another's figures."""

from __future__ import annotations

from collections.abc import Callable

from healthcheck.probes.device_kind import AUTO, CUDA
from healthcheck.probes.device_state import GPU_COUNT
from healthcheck.probes.report import Ending
from healthcheck.probes.runner import Probe, ProbeResult, run

DEVICE_STATE = "device_state"
TIMEOUT_SECONDS = {DEVICE_STATE: 30.0, "gemm": 120.0, "copies": 90.0, "intra_node": 120.0}
"""By probe, in their order. Ample for importing torch from a cold disk and starting CUDA on eight GPUs."""

Progress = Callable[[str, ProbeResult | None], None]
"""Told of a probe when it starts, with None, and when it has ended."""


def run_local(require_gpu: bool, progress: Progress = lambda probe, result: None) -> list[ProbeResult]:
    """Run all local probes, in order.

    Without the GPU that is required, and where even asking for the devices' state crashes or hangs, the rest
    is not run: it could only do the same.
    """
    results: list[ProbeResult] = []
    for name, timeout_seconds in TIMEOUT_SECONDS.items():
        progress(name, None)
        result = run(Probe(name, _arguments(name, require_gpu, results), timeout_seconds))
        progress(name, result)
        results.append(result)
        if name == DEVICE_STATE and _is_pointless_to_go_on(result, require_gpu):
            break
    return results


def _arguments(name: str, require_gpu: bool, earlier: list[ProbeResult]) -> tuple[str, ...]:
    if name == DEVICE_STATE:
        return ("--require-gpu",) if require_gpu else ()
    has_gpu = any(GPU_COUNT in result.report.figures for result in earlier)
    return (f"--device={CUDA if require_gpu or has_gpu else AUTO}",)


def _is_pointless_to_go_on(device_state: ProbeResult, require_gpu: bool) -> bool:
    if device_state.ending in (Ending.CRASHED, Ending.TIMED_OUT):
        return True
    return require_gpu and GPU_COUNT not in device_state.report.figures
