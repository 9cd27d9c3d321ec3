"""The nodes of a check and their workers: which are ready, which are out and why, and their answers.

All of it is read from the ElasticWorkers, so that a restarted controller sees the same. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from crds import names
from crds.agent_report import Accelerators, AgentCheck, AgentReport, AgentState, PairOutcome, ProbeOutcome
from crds.elasticworker import ElasticWorker, ExitClass, WorkerPhase
from crds.model import ConditionStatus
from crds.nodecheck import NodeCheck, NodeCheckSpec
from healthcheck.fleet import Domain, Node
from healthcheck.measurements import Metric
from healthcheck.settings import Settings
from reconcilers.findings.machine import NVIDIA
from reconcilers.observed.conditions import condition_of
from reconcilers.observed.domains import labelled_domain
from reconcilers.observed.start import STARTED
from reconcilers.observed.worker_state import SCHEDULED, current_report

MAX_MESSAGE = 500
POD_ENDED = "PodEnded"
NO_WORKER = "NoWorker"
TOO_LATE = "TooLate"
"""Reason of a node that missed a time limit."""


@dataclass(frozen=True)
class CheckedNode:
    """A node of the check, and its worker."""

    node: str
    incarnation: int
    worker: ElasticWorker | None
    reused: bool = False
    check_uid: str = ""

    @property
    def report(self) -> AgentReport | None:
        """Report of the incarnation that takes part; also after its Pod's end."""
        report = None if self.worker is None else self.worker.status.agent
        return report if report is not None and report.incarnation == self.incarnation else None

    @property
    def answers(self) -> AgentCheck | None:
        """Answers of the node's agent to this check."""
        report = self.report
        answers = None if report is None else report.check
        return answers if answers is not None and answers.uid == self.check_uid else None

    @property
    def local(self) -> Sequence[ProbeOutcome]:
        answers = self.answers
        return answers.local if answers else ()

    def pair(self, round_: int) -> PairOutcome | None:
        answers = self.answers
        pairs = answers.pairs if answers else ()
        return next((pair for pair in pairs if pair.round == round_), None)

    @property
    def is_ready(self) -> bool:
        """Whether the node's agent has reported, and runs."""
        return (
            self.report is not None
            and self.report.state is not AgentState.STOPPED
            and self.worker is not None
            and current_report(self.worker) is not None
            and self.worker.status.phase not in (WorkerPhase.SUCCEEDED, WorkerPhase.FAILED)
        )


@dataclass(frozen=True)
class Out:
    """Why a node can give no further answer."""

    message: str
    lost: bool = False
    """Whether the node itself is lost, which counts as its fault. Otherwise it withdraws."""
    reason: str = "NotTested"
    """Reason in CamelCase; the kubelet's or the scheduler's, if one of these gave it."""


def checked_nodes_of(check: NodeCheck, workers: Iterable[ElasticWorker]) -> tuple[CheckedNode, ...]:
    """The nodes of the check in rank order."""
    status = check.status
    type_ = names.CHECK if check.spec.job_name is None else names.WORKER
    by_index = {worker.spec.index: worker for worker in workers if worker.spec.type == type_}
    reused = set(status.reused)
    members = zip(status.nodes, status.workers, status.incarnations, strict=True)
    return tuple(
        CheckedNode(node, incarnation, by_index.get(index), node in reused, check.metadata.uid)
        for node, index, incarnation in members
    )


def out_of(participant: CheckedNode) -> Out | None:
    """Why no answer will come: the node's worker has ended or was replaced; None if it has not."""
    worker = participant.worker
    if worker is None or worker.metadata.deletion_timestamp is not None:
        return Out("its worker was deleted", reason="WorkerDeleted")
    status, end = worker.status, worker.status.last_exit
    replaced = worker.spec.incarnation != participant.incarnation
    ended = status.observed_incarnation == participant.incarnation and status.phase is WorkerPhase.FAILED
    if (replaced or ended) and end is not None and end.incarnation == participant.incarnation:
        lost = end.exit_class is ExitClass.NODE_LOST
        why = f"its Pod ended ({end.exit_class}): {end.message or end.reason}"[:MAX_MESSAGE]
        return Out(why, lost, "NodeLost" if lost else POD_ENDED)
    if replaced:
        return Out("its Pod was replaced", reason=POD_ENDED)
    if ended or status.phase is WorkerPhase.SUCCEEDED:
        return Out("its Pod ended", reason=POD_ENDED)
    report = participant.report
    if report is not None and report.state is AgentState.STOPPED:
        return Out("its agent has stopped", reason="AgentStopped")
    return None


def departure_of(participant: CheckedNode) -> Out | None:
    """`out_of` for a node whose agent has been ready: a Pod, report or address that is missing is gone."""
    out, worker, report = out_of(participant), participant.worker, participant.report
    if out is None and worker is not None and worker.status.pod_uid is None:
        return Out("its Pod is gone", reason=POD_ENDED)
    if out is None and (report is None or not (report.address and report.store_port)):
        return Out("its agent reports no address", reason="AgentStopped")
    return out


def hindrance_of(worker: ElasticWorker) -> Out | None:
    """The scheduler's or kubelet's reason why a worker's Pod does not start; None if neither gives one."""
    for type_, what in ((SCHEDULED, "could not be placed"), (STARTED, "does not start")):
        condition = condition_of(worker.status.conditions, type_)
        if condition is not None and condition.status is ConditionStatus.FALSE:
            why = f"its Pod {what} ({condition.reason}): {condition.message}"[:MAX_MESSAGE].rstrip(": ")
            return Out(why, reason=condition.reason)
    return None


def awaited(participants: Iterable[CheckedNode]) -> str:
    """A message that a check waits for its agents, with the first Pod that does not start, and why."""
    missing = (
        (each.node, each.worker) for each in participants if each.worker is not None and not each.is_ready
    )
    hindered = ((node, hindrance_of(worker)) for node, worker in missing)
    why = next((f"; {node}: {out.message}" for node, out in hindered if out is not None), "")
    return f"waits for the agents on its nodes{why}"


def absence_of(participant: CheckedNode) -> Out:
    """Why a node's agent was not ready in time.

    The node is not at fault unless it was lost (`out_of`): images, quota, scheduling, admission and slow
    disks keep Pods from starting on healthy nodes.
    """
    if participant.worker is None:
        return Out("no worker could be made for it in time, or it was deleted", reason=NO_WORKER)
    out = out_of(participant)
    if out is not None:
        return out
    hindered = hindrance_of(participant.worker)
    if hindered is not None:
        return hindered
    status = participant.worker.status
    if status.pod_uid is None:
        return Out("no Pod was made for it in time", reason=TOO_LATE)
    if not status.node_name:
        return Out("its Pod was not placed in time", reason=TOO_LATE)
    late = "did not report" if status.phase is WorkerPhase.RUNNING else "did not start"
    return Out(f"its Pod {late} in time: {status.message}"[:MAX_MESSAGE].rstrip(": "), reason=TOO_LATE)


UNKNOWN_ACCELERATORS = (
    *("amd.com/", "aws.amazon.com/neuron", "cambricon.com/", "furiosa.ai/", "google.com/tpu"),
    *("gpu.intel.com/", "graphcore.ai/", "habana.ai/", "huawei.com/", "qualcomm.com/"),
)
"""Prefixes of the resources that no probe can test."""

TESTED_KIND = "nvidia"
"""Kind of the accelerators that the probes test; on nodes with all others they test the CPU."""

CPU_LATENCY_RATIO = 4.0
"""Ratio of Gloo latencies that makes a node slow. They are dominated by thread wake-ups, and double as cores
sleep or are shared."""

MAX_NAMED = 5


def settings_of(spec: NodeCheckSpec, participants: Iterable[CheckedNode]) -> Settings:
    """The settings of a check. Without accelerators, only the straggler ratio makes a node slow, since its
    CPU is shared with other Pods."""
    ratio = spec.straggler_ratio
    further = spec.screening_rounds - Settings.screening_rounds
    rounds = Settings(
        screening_rounds=spec.screening_rounds,
        most_rounds=Settings.most_rounds + further,
        straggler_ratio=ratio,
    )
    floor = 1 - 1 / ratio
    shared = replace(
        rounds,
        small_fleet_ratio=ratio,
        least_slowdown={Metric.PAIR_LATENCY_US: max(floor, 1 - 1 / CPU_LATENCY_RATIO)},
        least_slowdown_default=floor,
    )
    classes = {_hardware_class(participant): _is_tested(participant) for participant in participants}
    if not any(classes.values()):
        return shared
    return replace(rounds, by_class={name: shared for name, is_tested in classes.items() if not is_tested})


def fleet_of(
    participants: Sequence[CheckedNode],
    labels: Mapping[str, Mapping[str, str]],
    topology_keys: Sequence[str],
    vouch_ages: Mapping[str, float],
) -> tuple[Node, ...]:
    """The nodes as the diagnosis needs them, in rank order.

    Args:
        vouch_ages: seconds from a node's last pass to the start of the check, by name. A reused node without
            one is no witness: that check was deleted.
    """
    return tuple(
        Node(
            name=participant.node,
            hardware_class=_hardware_class(participant),
            domains=_domains(labels.get(participant.node, {}), topology_keys),
            vouched=participant.reused,
            vouch_age_seconds=vouch_ages.get(participant.node, inf) if participant.reused else 0.0,
        )
        for participant in participants
    )


def untested_accelerators(nodes: Iterable[Mapping[str, Any]]) -> str:
    """A sentence about accelerators of these nodes that no probe supports; empty if there are none."""
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


def tested_gpus(participants: Iterable[CheckedNode]) -> dict[str, int]:
    """Return the number of tested GPUs of each node that was tested itself."""
    here = (participant for participant in participants if not participant.reused)
    return {
        each.node: found.count if (found := _accelerators(each)) and _is_tested(each) else 0 for each in here
    }


def _accelerators(participant: CheckedNode) -> Accelerators | None:
    report = participant.report
    return None if report is None else report.accelerators


def _is_tested(participant: CheckedNode) -> bool:
    found = _accelerators(participant)
    return found is not None and found.kind == TESTED_KIND


def _hardware_class(participant: CheckedNode) -> str:
    found = _accelerators(participant)
    return "" if found is None else f"{found.kind} {found.model}".strip()


def _domains(labels: Mapping[str, str], topology_keys: Sequence[str]) -> tuple[Domain, ...]:
    found = (labelled_domain(labels, key) for key in topology_keys)
    return tuple(Domain(label, value) for label, value in dict.fromkeys(found) if label)


def _allocatable(node: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = node.get("status", {}).get("allocatable") or {}
    return found
