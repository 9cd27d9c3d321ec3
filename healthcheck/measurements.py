"""Measurements of the probes, as plain data: one result per node (local), one per group and round (pairs)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from crds.actions import Action
from healthcheck.fleet import NodeName


class Metric(StrEnum):
    """Measured figure; the name includes the unit. Figures are never added up."""

    GEMM_BF16_TFLOPS = "gemm_bf16_tflops"
    GEMM_FP16_TFLOPS = "gemm_fp16_tflops"
    GEMM_FP32_TFLOPS = "gemm_fp32_tflops"
    HOST_TO_DEVICE_GBPS = "host_to_device_gbps"
    DEVICE_TO_HOST_GBPS = "device_to_host_gbps"
    INTRA_NODE_BUS_GBPS = "intra_node_bus_gbps"
    PAIR_ALGORITHM_GBPS = "pair_algorithm_gbps"
    """Gigabytes (10⁹ bytes) of payload per second; it depends on the group's size, so it is only
    displayed."""
    PAIR_BUS_GBPS = "pair_bus_gbps"
    """The same, scaled by the collective's share on the wire, so that pairs and triples are comparable."""
    PAIR_LATENCY_US = "pair_latency_us"

    @property
    def higher_is_better(self) -> bool:
        return self is not Metric.PAIR_LATENCY_US


MAX_FIGURE = 1e12
"""Maximum plausible figure, in any unit."""


def is_plausible(figure: float) -> bool:
    """Return whether a probe can have measured this. Nodes report their own figures, so they may be
    anything."""
    return 0 <= figure <= MAX_FIGURE


def rounded(figure: float) -> float:
    """Round to four digits, more than the precision of any figure."""
    return float(f"{figure:.4g}")


COMPARED_IN_PAIRS = (Metric.PAIR_BUS_GBPS, Metric.PAIR_LATENCY_US)


@dataclass(frozen=True)
class LocalResult:
    """Result of a node's local tests."""

    device_faults: tuple[str, ...] = ()
    """Device faults, one sentence each: an uncorrectable memory error, an Xid, a broken NVLink, memory in
    use."""
    failure: str = ""
    """Why a local probe failed, crashed or did not end."""
    action: Action | None = None
    """Remedy, if a probe knows one."""
    measured: Mapping[Metric, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not self.device_faults and not self.failure

    @property
    def reason(self) -> str:
        return "; ".join((*self.device_faults, self.failure) if self.failure else self.device_faults)


@dataclass(frozen=True)
class GroupResult:
    """Result of one group's collective in one round. A group passed if all of its members report that.

    In a group of one, a node that looked slow repeats its own measurements; it tests no other node.
    """

    members: tuple[NodeName, ...]
    passed: bool
    failure: str = ""
    """Message of the first member that failed."""
    action: Action | None = None
    """Remedy, if the probe of a group of one knows one."""
    silent: tuple[NodeName, ...] = ()
    """Members that never answered. The failure is their own, and does not accuse their partners."""
    crashed: tuple[NodeName, ...] = ()
    """Members whose own probe was ended by a signal, as their agents report; treated like silent ones."""
    measured: Mapping[Metric, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RoundResult:
    """Finished round, in which every group has a result."""

    number: int
    """Number of the round, from 1."""
    groups: tuple[GroupResult, ...]


@dataclass(frozen=True)
class CheckHistory:
    """All results of a check so far. The next step follows from it alone."""

    local: Mapping[NodeName, LocalResult] = field(default_factory=dict)
    """Results of each node that ran local tests; a node without an entry is not suspected."""
    rounds: tuple[RoundResult, ...] = ()
    unanswered: Mapping[NodeName, str] = field(default_factory=dict)
    """Nodes without an answer to the local tests, each with the end of its Pod."""
    withdrawn: Mapping[NodeName, str] = field(default_factory=dict)
    """Nodes that could not be tested completely, through no fault of their own, with the reason. Rounds count
    them as silent."""

    @property
    def absent(self) -> frozenset[NodeName]:
        """Nodes that cannot be tested further."""
        return frozenset((*self.unanswered, *self.withdrawn))
