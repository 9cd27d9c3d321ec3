"""What the diagnosis is to know of a check: its bounds, and the kind and place of each node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from crds.elasticworker import Accelerators
from crds.nodecheck import NodeCheckSpec
from healthcheck.fleet import Domain, Node
from healthcheck.measurements import Metric
from healthcheck.settings import Settings
from reconcilers.check.participants import Participant

NVIDIA = "nvidia.com/gpu"
UNKNOWN_ACCELERATORS = (
    *("amd.com/", "aws.amazon.com/neuron", "cambricon.com/", "furiosa.ai/", "google.com/tpu"),
    *("gpu.intel.com/", "graphcore.ai/", "habana.ai/", "huawei.com/", "qualcomm.com/"),
)
"""Beginnings of the names of resources that no probe can test."""

TESTED_KIND = "nvidia"
"""What an agent says of accelerators that the probes compute on; on all others they test the CPU."""

MAX_NAMED = 5


def settings_of(spec: NodeCheckSpec, participants: Iterable[Participant]) -> Settings:
    """CPUs are shared with anything: without accelerators, only the straggler ratio makes a node slow."""
    ratio = spec.straggler_ratio
    kinds = {found.kind for participant in participants if (found := _accelerators(participant)) is not None}
    if TESTED_KIND in kinds:
        return Settings(straggler_ratio=ratio)
    floor = 1 - 1 / ratio
    return Settings(
        straggler_ratio=ratio,
        small_fleet_ratio=ratio,
        least_slowdown={Metric.PAIR_LATENCY_US: floor},
        least_slowdown_default=floor,
    )


def fleet_of(
    participants: Sequence[Participant], labels: Mapping[str, Mapping[str, str]], topology_keys: Sequence[str]
) -> tuple[Node, ...]:
    """The nodes as the diagnosis takes them, in rank order.

    Args:
        participants: in rank order.
        labels: of the nodes, by name.
        topology_keys: the labels that name what nodes share, the smallest first.
    """
    return tuple(
        Node(
            name=participant.node,
            hardware_class=_hardware_class(participant),
            domains=_domains(labels.get(participant.node, {}), topology_keys),
            vouched=participant.reused,
        )
        for participant in participants
    )


def untested_accelerators(nodes: Iterable[Mapping[str, Any]]) -> str:
    """A sentence on the accelerators of these nodes that no probe knows; empty if there are none."""
    found = {
        resource
        for node in nodes
        for resource, count in _allocatable(node).items()
        if resource.startswith(UNKNOWN_ACCELERATORS) and str(count) != "0"
    }
    if not found:
        return ""
    some = ", ".join(sorted(found)[:MAX_NAMED])
    return f"the probes cannot test {some}: only CPU and network are tested on the nodes that have it"


def lacks_gpu(node: Mapping[str, Any]) -> bool:
    return str(_allocatable(node).get(NVIDIA, "0")) == "0"


def _accelerators(participant: Participant) -> Accelerators | None:
    report = participant.report
    return None if report is None else report.accelerators


def _hardware_class(participant: Participant) -> str:
    found = _accelerators(participant)
    return "" if found is None else f"{found.kind} {found.model}".strip()


def _domains(labels: Mapping[str, str], topology_keys: Sequence[str]) -> tuple[Domain, ...]:
    return tuple(Domain(key, labels[key]) for key in topology_keys if labels.get(key))


def _allocatable(node: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = node.get("status", {}).get("allocatable") or {}
    return found
