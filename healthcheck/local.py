"""The verdict on a machine by its own probes, without another one to compare it with.

Slow is not judged here, but for what no working GPU could be: that takes others of its kind.
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
"""The slowest GPU that torch supports does ten times as much (a Jetson Orin Nano: 1.3 TFLOP/s), and so does a
single PCI Express 3.0 lane (0.98 GB/s). CPUs have no floor: they differ a thousandfold."""


_METRICS = {metric.value: metric for metric in Metric}
"""Metrics by name: an enum's `value` is slow to look up for each node."""


class LocalHealth(StrEnum):
    HEALTHY = "Healthy"
    FAULTY = "Faulty"
    UNKNOWN = "Unknown"
    """Nothing speaks against it, and not all could be tested."""


@dataclass(frozen=True)
class LocalVerdict:
    health: LocalHealth
    reason: str = ""
    """One or more sentences; empty if it is healthy."""


def local_result(results: Sequence[ProbeReport | ProbeOutcome]) -> LocalResult:
    """The probes' results as the diagnosis takes them. What was not tested does not count."""
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
    """Whether this machine is fit to train, without another to compare it with."""
    found = local_result(results)
    if not found.passed:
        return LocalVerdict(LocalHealth.FAULTY, found.reason)
    untested = [result.reason for result in results if result.ending is ProbeEnding.UNAVAILABLE]
    if untested:
        return LocalVerdict(LocalHealth.UNKNOWN, "; ".join(dict.fromkeys(untested)))
    return LocalVerdict(LocalHealth.HEALTHY)
