"""Verdict on a machine by its own probes, without another machine for comparison.

Speed is not judged here, except for values below any working GPU's: a comparison needs others of its kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from crds.actions import worst
from crds.agent_report import ProbeEnding, ProbeOutcome
from healthcheck.measurements import LocalResult, Metric, is_plausible
from healthcheck.probes.device_state import GPU_COUNT
from healthcheck.probes.report import BLAMING, ProbeReport

GPU_FLOORS: Mapping[Metric, float] = {
    Metric.GEMM_FP32_TFLOPS: 0.1,
    Metric.HOST_TO_DEVICE_GBPS: 0.1,
    Metric.DEVICE_TO_HOST_GBPS: 0.1,
}
"""Minimum figures of a GPU: a tenth of the slowest GPU that torch supports (a Jetson Orin Nano: 1.3 TFLOP/s),
and of a single PCI Express 3.0 lane (0.98 GB/s). CPUs have no minimum: they differ a thousandfold."""


_METRICS = {metric.value: metric for metric in Metric}
"""Metrics by name: an enum's `value` is slow to look up for each node."""


class LocalHealth(StrEnum):
    HEALTHY = "Healthy"
    FAULTY = "Faulty"
    UNKNOWN = "Unknown"
    """There is no evidence against it, but not everything could be tested."""


@dataclass(frozen=True)
class LocalVerdict:
    health: LocalHealth
    reason: str = ""
    """Reason, in one or more sentences; empty if it is healthy."""


def local_result(results: Sequence[ProbeReport | ProbeOutcome]) -> LocalResult:
    """Return the probes' results in the form for the diagnosis. Skipped tests do not count."""
    figures = {
        name: value for result in results for name, value in result.figures.items() if is_plausible(value)
    }
    measured = {metric: figures[name] for name, metric in _METRICS.items() if name in figures}
    failures = [
        f"{result.probe}: {result.reason}"
        for result in results
        if result.ending in BLAMING and not result.faults
    ]
    if figures.get(GPU_COUNT):
        failures += [
            f"{metric} is {measured[metric]:.3g}, less than any GPU has"
            for metric, floor in GPU_FLOORS.items()
            if metric in measured and measured[metric] < floor
        ]
    return LocalResult(
        device_faults=tuple(fault for result in results for fault in result.faults),
        failure="; ".join(failures),
        action=worst(result.action for result in results if result.ending in BLAMING),
        measured=measured,
    )


def judge(results: Sequence[ProbeReport]) -> LocalVerdict:
    """Return whether this machine is fit to train, without comparing it with others."""
    found = local_result(results)
    if not found.passed:
        return LocalVerdict(LocalHealth.FAULTY, found.reason)
    untested = [result.reason for result in results if result.ending is ProbeEnding.UNAVAILABLE]
    if untested:
        return LocalVerdict(LocalHealth.UNKNOWN, "; ".join(dict.fromkeys(untested)))
    return LocalVerdict(LocalHealth.HEALTHY)
