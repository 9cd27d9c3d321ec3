"""NodeCheck: a pairwise check of a job's workers or of cluster nodes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from crds import intervals, ranges
from crds.actions import Action
from crds.findings import ATOMIC, Cause, FaultyDomain, FaultyLink, Figures, Finding, NodeNames, Text, Verdict
from crds.job_spec import TopologyKeys
from crds.model import (
    MAX_TIME_SECONDS,
    Conditions,
    Count,
    Index,
    Indices,
    Model,
    Name,
    ObjectMeta,
    cel,
    rules,
)
from crds.phases import CHECK_TIMEOUT_SECONDS
from crds.phases import Accelerator as Accelerator
from crds.phases import NodeCheckPhase as NodeCheckPhase
from crds.template import PodTemplate

IndexList = Annotated[list[Index], Field(max_length=10_000, json_schema_extra=ATOMIC)]


MAX_NODES = 10_000
"""Maximum nodes of one check."""
MOST_NAMED = 250
"""Maximum entries of each list of results."""

Places = Annotated[
    list[Annotated[int, Field(ge=0, lt=10_000)]], Field(max_length=64, json_schema_extra=ATOMIC)
]
"""Positions of nodes in `status.nodes`, counted from 0."""

NodeSelector = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=32)]

FirstNodes = Annotated[list[Name], Field(max_length=MOST_NAMED, json_schema_extra=ATOMIC)]


class NodeCheckSpec(Model):
    """Nodes to check, and how."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "[has(self.jobName), has(self.nodes), has(self.nodeSelector)].filter(x, x).size() == 1",
                "name what to check by exactly one of jobName, nodes and nodeSelector",
            ),
            cel("!has(self.workers) || has(self.jobName)", "workers are those of a job: name it by jobName"),
            cel(
                "!has(self.jobName) || !(has(self.template) || has(self.accelerator))",
                "template and accelerator are for nodes: a job's workers are checked in their own Pods",
            ),
        )
    )

    job_name: Name | None = None
    """Check the nodes of this job, in its own Pods; training stops during the check."""
    workers: Annotated[IndexList, Field(min_length=1)] | None = None
    """Only these workers of the job, by index."""
    nodes: Annotated[NodeNames, Field(min_length=1)] | None = None
    """Check these nodes, in a Pod on each, including cordoned ones."""
    node_selector: NodeSelector | None = None
    """Check the nodes with these labels, in a Pod on each, including cordoned ones."""
    template: PodTemplate | None = None
    """Pod template that replaces the controller's, for another image, host network or fabric devices."""
    accelerator: Accelerator | None = None
    """Device that every node must have, or `none`; the default is all GPUs of the nodes that have any."""
    cordon: bool = True
    """Cordon nodes found faulty, and uncordon nodes that dlr cordoned and that pass."""
    timeout_seconds: Annotated[int, Field(ge=10, le=3_600)] = CHECK_TIMEOUT_SECONDS
    """Time limit for one step of the check, in seconds. The check does not wait for a node that misses it;
    one late answer is no fault."""
    straggler_ratio: Annotated[float, Field(gt=1.0, le=10.0)] = 1.5
    """Factor by which a node must be slower than the median to be a straggler; a better later measurement
    clears it."""
    fresh_seconds: Annotated[int, Field(ge=0, le=604_800)] = 0
    """Seconds for which a node that passed another check is not tested again; it serves as a partner."""
    topology_keys: TopologyKeys = Field(default_factory=list)
    """Node labels that name racks or switches, the smallest first."""
    screening_rounds: Annotated[int, Field(ge=1, le=12)] = 2
    """Rounds that test every node, each with a different partner, even without failures. Each covers one of a
    node's N - 1 links, and gives intermittent faults another chance to show."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=3_600, le=MAX_TIME_SECONDS)] | None = None
    """Seconds after which a finished check is deleted, once its cordons and records are written."""


GroupMembers = Annotated[list[Name], Field(min_length=1, max_length=64, json_schema_extra=ATOMIC)]


class CheckGroup(Model):
    """Nodes that test each other in the current round, in rank order."""

    members: GroupMembers
    master_address: Annotated[str, Field(max_length=253)]
    """Address of an agent: the first member's, or the next one's if the first is gone."""
    master_port: Annotated[int, Field(ge=1, le=65_535)]
    """Port of that agent, in whose store the group meets."""


Measured = Annotated[list[float], Field(max_length=5_000, json_schema_extra=ATOMIC)]
"""One figure per test; 0 where nothing was measured. Empty if no test of the round measured it."""


class FailedTest(Model):
    """A test of a group that did not pass."""

    test: Annotated[int, Field(ge=0, lt=5_000)]
    """Position in `tests`, counted from 0."""
    message: Text = ""
    """Error, and the member that reported it."""
    action: Action | None = None
    """Remedy for a node that was tested alone, if its probe reports one."""


class CheckRound(Model):
    """Finished round, as the diagnosis needs it."""

    number: Annotated[int, Field(ge=1)]
    tests: Annotated[
        list[Annotated[Places, Field(min_length=1)]], Field(max_length=5_000, json_schema_extra=ATOMIC)
    ] = Field(default_factory=list)
    """Members of each group, in rank order."""
    failed: Indices = Field(default_factory=list)
    """Positions in `tests` of the failed tests, as ranges."""
    silent: Indices = Field(default_factory=list)
    """Nodes without an answer, as ranges. This failure is their own, and does not accuse their partners."""
    crashed: Indices = Field(default_factory=list)
    """Nodes whose own probe was ended by a signal, as their agents report. This failure, too, is their
    own."""
    reasons: Annotated[list[FailedTest], Field(max_length=MOST_NAMED, json_schema_extra=ATOMIC)] = Field(
        default_factory=list
    )
    """The reasons of the first failed tests."""
    bus_gbps: Measured = Field(default_factory=list)
    """The bus bandwidth of each test, in GB/s."""
    latency_us: Measured = Field(default_factory=list)
    """The latency of each test, in microseconds."""


class Withdrawal(Model):
    """Node that could not be tested completely, through no fault of its own."""

    node: Name
    message: Text = ""
    """The reason why the node was withdrawn."""
    reason: Annotated[str, Field(max_length=64)] = ""
    """Reason of the kubelet or the scheduler, such as ErrImagePull or Unschedulable, if that prevented the
    test."""


class ClassSpeed(Model):
    """Speed of the nodes of one class of hardware, by their own measurements."""

    hardware_class: Annotated[str, Field(max_length=300)]
    """Kind and model of the accelerators, such as `nvidia NVIDIA H100 80GB HBM3`."""
    nodes: Annotated[str, Field(max_length=ranges.MAX_CHARACTERS, pattern=intervals.PATTERN)]
    """Positions in `status.nodes`, as ranges."""
    figures: Figures
    """Medians, by metric."""


class NodeCheckStatus(Model):
    """Assignment of the current round, results of earlier rounds, and verdicts."""

    observed_generation: int | None = None
    phase: NodeCheckPhase | None = None
    conditions: Conditions = Field(default_factory=list)
    nodes: NodeNames = Field(default_factory=list)
    """Nodes that take part, in rank order. Fixed when the check starts, as are `workers` and
    `incarnations`."""
    workers: IndexList = Field(default_factory=list)
    """Index of the worker that runs on each of `nodes`."""
    incarnations: IndexList = Field(default_factory=list)
    """Incarnation of each of these workers."""
    reused: NodeNames = Field(default_factory=list)
    """Nodes that recently passed another check: they run no local tests, and serve as partners."""
    round: Annotated[int, Field(ge=0)] | None = None
    """Current round: 0 for the local tests of the nodes, then 1, 2, …"""
    groups: Annotated[list[CheckGroup], Field(max_length=5_000, json_schema_extra=ATOMIC)] = Field(
        default_factory=list
    )
    """Groups that test in the current round."""
    rounds: Annotated[list[CheckRound], Field(max_length=48, json_schema_extra=ATOMIC)] = Field(
        default_factory=list
    )
    """The finished rounds."""
    node_sets: Annotated[dict[str, Indices], Field(max_length=8)] = Field(default_factory=dict)
    """Positions in `nodes` of all nodes of a kind, as ranges. `Withdrawn` could not be tested. Until the
    check has finished, `LocalTest` and `NoAnswer` dropped out during the local tests. Afterwards `Faulty`,
    `Straggler` and `Inconclusive` are verdicts, and nodes in none of these three are healthy."""
    counts: Annotated[dict[str, Count], Field(max_length=8)] = Field(default_factory=dict)
    """Number of nodes in each of `nodeSets`."""
    withdrawn: Annotated[list[Withdrawal], Field(max_length=MOST_NAMED, json_schema_extra=ATOMIC)] = Field(
        default_factory=list
    )
    """The first 250 withdrawn nodes, with reasons."""
    node_results: Annotated[
        list[Finding],
        # Not a map: managedFields would name every field of every node, and be as large as the results.
        Field(max_length=MOST_NAMED, json_schema_extra=ATOMIC),
    ] = Field(default_factory=list)
    """Verdicts with evidence for up to 250 nodes, unhealthy ones first.

    Before the check has finished: the nodes that failed their own tests or gave no answer.
    """
    faulty_nodes: FirstNodes = Field(default_factory=list)
    """First 250 faulty nodes; `stragglers` and `inconclusive` have the same limit."""
    stragglers: FirstNodes = Field(default_factory=list)
    inconclusive: FirstNodes = Field(default_factory=list)
    faulty_links: Annotated[list[FaultyLink], Field(max_length=1_000, json_schema_extra=ATOMIC)] = Field(
        default_factory=list
    )
    faulty_domains: Annotated[list[FaultyDomain], Field(max_length=1_000, json_schema_extra=ATOMIC)] = Field(
        default_factory=list
    )
    class_speeds: Annotated[list[ClassSpeed], Field(max_length=32, json_schema_extra=ATOMIC)] = Field(
        default_factory=list
    )
    """Speeds of the hardware classes with at least five nodes that are no slower than before."""
    nodes_as_of: datetime | None = None
    """Newest creation time of the check and its nodes when these were fixed, by the API server's clock. A
    Node that was created later is another machine."""
    start_time: datetime | None = None
    completion_time: datetime | None = None

    @property
    def finished(self) -> bool:
        """Whether the check has ended."""
        return self.phase is not None and self.phase.finished

    def nodes_in(self, kind: Verdict | Cause) -> list[str]:
        """Return the nodes of a set, in rank order."""
        return [self.nodes[place] for place in self.node_sets.get(kind, ())]

    @model_validator(mode="after")
    def _has_places_of_nodes(self) -> NodeCheckStatus:
        last = max((places[-1] for places in self.node_sets.values() if places), default=-1)
        if last >= len(self.nodes):
            raise ValueError(f"place {last} is none of {len(self.nodes)} nodes")
        return self


def nodes_in(status: Mapping[str, Any], kind: Verdict | Cause) -> list[str]:
    """Return the nodes of a set of a stored status, in rank order.

    Raises:
        ValueError: the set is malformed.
    """
    nodes, sets = status.get("nodes") or [], status.get("nodeSets") or {}
    return [nodes[place] for place in ranges.from_text(sets.get(kind) or "") if place < len(nodes)]


class NodeCheck(Model):
    """A pairwise health check of nodes."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "size(self.metadata.name) <= 63",
                "metadata.name may have 63 characters, since it is a label of the Pods",
            )
        )
    )

    metadata: ObjectMeta
    spec: NodeCheckSpec
    status: NodeCheckStatus = Field(default_factory=NodeCheckStatus)
