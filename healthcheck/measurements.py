"""What the probes measured, as plain data: one result a node (local), one a group and round (pairs)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from crds.actions import Action
from healthcheck.fleet import NodeName


class Metric(StrEnum):
    """One measured figure; the value names it with its unit. Figures are never added up."""

    GEMM_BF16_TFLOPS = "gemm_bf16_tflops"
    GEMM_FP16_TFLOPS = "gemm_fp16_tflops"
    GEMM_FP32_TFLOPS = "gemm_fp32_tflops"
    HOST_TO_DEVICE_GBPS = "host_to_device_gbps"
    DEVICE_TO_HOST_GBPS = "device_to_host_gbps"
    INTRA_NODE_BUS_GBPS = "intra_node_bus_gbps"
    PAIR_ALGORITHM_GBPS = "pair_algorithm_gbps"
    """Gigabytes (10⁹ bytes) of payload a second; depends on the group's size, so it is only shown."""
    PAIR_BUS_GBPS = "pair_bus_gbps"
    """The same, scaled by the collective's share of the wire, so that pairs and triples compare."""
    PAIR_LATENCY_US = "pair_latency_us"

    @property
    def higher_is_better(self) -> bool:
        return self is not Metric.PAIR_LATENCY_US


MAX_FIGURE = 1e12
"""More than any probe measures, in any unit."""


def is_plausible(figure: float) -> bool:
    """Whether a probe can have measured this. Nodes report figures themselves, so they may be anything."""
    return 0 <= figure <= MAX_FIGURE


def rounded(figure: float) -> float:
    """Round to four digits, which is more than any figure means."""
    return float(f"{figure:.4g}")


COMPARED_IN_PAIRS = (Metric.PAIR_BUS_GBPS, Metric.PAIR_LATENCY_US)


@dataclass(frozen=True)
class LocalResult:
    """A node's result of its local tests."""

    device_faults: tuple[str, ...] = ()
    """One sentence each: an uncorrectable memory error, an Xid, a broken NVLink, memory in use."""
    failure: str = ""
    """Why a local probe failed, crashed or did not end."""
    action: Action | None = None
    """What helps, where a probe knows it."""
    measured: Mapping[Metric, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not self.device_faults and not self.failure

    @property
    def reason(self) -> str:
        return "; ".join((*self.device_faults, self.failure) if self.failure else self.device_faults)


@dataclass(frozen=True)
class GroupResult:
    """How one group's collective went in one round. A group passed if all of its members say so.

    In a group of one, a node that looked slow has measured its own figures again; it tests nobody else.
    """

    members: tuple[NodeName, ...]
    passed: bool
    failure: str = ""
    """The message of the first member that failed."""
    action: Action | None = None
    """What helps, where the probe of a group of one knows it."""
    silent: tuple[NodeName, ...] = ()
    """Members that never answered. The failure is theirs, and does not accuse their partners."""
    crashed: tuple[NodeName, ...] = ()
    """Members whose own probe was ended by a signal, as their agents report: the same."""
    measured: Mapping[Metric, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RoundResult:
    """A finished round: every group has a result."""

    number: int
    """Counts from 1."""
    groups: tuple[GroupResult, ...]


@dataclass(frozen=True)
class CheckHistory:
    """All results of a check so far. The next step follows from it alone."""

    local: Mapping[NodeName, LocalResult] = field(default_factory=dict)
    """Results of each node that ran local tests; nothing speaks against a node without an entry."""
    rounds: tuple[RoundResult, ...] = ()
    unanswered: Mapping[NodeName, str] = field(default_factory=dict)
    """Nodes that gave no answer to the local tests, each with the end of its Pod."""
    withdrawn: Mapping[NodeName, str] = field(default_factory=dict)
    """Nodes that could not be tested to the end, for no fault of theirs, each with the reason. Rounds count
    them among the silent."""

    @property
    def absent(self) -> frozenset[NodeName]:
        """Nodes that can be tested no further."""
        return frozenset((*self.unanswered, *self.withdrawn))
