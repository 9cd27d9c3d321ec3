"""Objects for the tests, one line each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

from pydantic import TypeAdapter

from crds.agent_report import PROTOCOL, AgentFailure, AgentReport, AgentState
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.nodecheck import NodeCheck
from crds.ranges import to_text
from crds.rendezvous import Rendezvous
from reconcilers.world import decision
from reconcilers.world.decision import FREE, Constraints
from reconcilers.world.participants import Bounds, Participant
from reconcilers.world.rendezvous import Assembly, Decision

REPORTS = TypeAdapter(AgentReport)
FAILURES = TypeAdapter(AgentFailure)
NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def in_lists(world: dict[str, Any]) -> dict[str, Any]:
    """A world as it is on the wire, with lists of members and incarnations."""
    if not world:
        return world
    read = Rendezvous.model_validate(world)
    return {**world, "members": read.members, "incarnations": read.incarnations}


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def report(
    index: int = 0, state: AgentState = AgentState.READY, observed_round: int = 0, **more: Any
) -> AgentReport:
    fields: dict[str, Any] = {
        "protocol": PROTOCOL,
        "incarnation": 1,
        "pod_uid": f"uid-{index}-1",
        "address": f"127.0.0.{index + 1}",
        "store_port": 20_000 + index,
        "local_world_size": 1,
        "observed_round": observed_round,
        "state": state,
        "since": NOW,
    }
    return REPORTS.validate_python(fields | more)


def verdicts(nodes: Sequence[str], passed: Sequence[str], **status: Any) -> dict[str, Any]:
    """What the status of a finished check says of its nodes: all well, but for those that `status` names."""
    named = verdicts_in(status)
    return {
        "nodes": list(nodes),
        "nodeResults": [{"node": node, "verdict": named.get(node, "Healthy")} for node in nodes],
        "rounds": [
            {
                "number": 1,
                "tests": [[at, at] for at in range(len(nodes))],  # with whom does not matter
                "failed": [at for at, node in enumerate(nodes) if node not in passed],
            }
        ],
        "nodeSets": node_sets(nodes, named, *(left["node"] for left in status.get("withdrawn", ()))),
    }


KINDS = {"faultyNodes": "Faulty", "stragglers": "Straggler", "inconclusive": "Inconclusive"}
"""Verdicts by the list that names the first such nodes."""


def verdicts_in(status: Mapping[str, Any]) -> dict[str, str]:
    """The verdicts of the lists of names in a status, by node."""
    return {node: verdict for kind, verdict in KINDS.items() for node in status.get(kind, ())}


def node_sets(nodes: Sequence[str], verdicts: Mapping[str, str], *withdrawn: str) -> dict[str, str]:
    """The sets of a check's nodes, as they are stored, by verdict and of those that have withdrawn."""
    kinds = [*((verdict, node) for node, verdict in verdicts.items() if verdict != "Healthy")]
    kinds += [("Withdrawn", node) for node in withdrawn]
    places = {kind: sorted(nodes.index(n) for each, n in kinds if each == kind) for kind, _ in kinds}
    return {kind: to_text(found) for kind, found in places.items()}


def participant(
    index: int, state: AgentState | None = AgentState.READY, observed_round: int = 0, **more: Any
) -> Participant:
    spoken = None if state is None else report(index, state, observed_round)
    fields: dict[str, Any] = {"index": index, "incarnation": 1, "alive": True, "report": spoken}
    return Participant(**(fields | more))


def bounds(
    desired: int, minimum: int | None = None, unit: int = 1, standby: int = 0, **more: float
) -> Bounds:
    waits: dict[str, Any] = {"last_call_seconds": 30.0, "shrink_after_seconds": 60.0} | more
    return Bounds(desired, minimum or desired, unit, standby=standby, **waits)


def job(name: str = "digits", replicas: int = 2, **spec: Any) -> ElasticJob:
    template = spec.pop("template", {"spec": {"containers": [{"name": "main", "image": "x"}]}})
    worker = {"replicas": replicas, "template": template} | spec.pop("worker", {})
    status = spec.pop("status", {})
    return ElasticJob.model_validate(
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1"},
            "spec": {"replicaSpecs": {"worker": worker}} | spec,
            "status": status,
        }
    )


def worker(
    index: int = 0, phase: WorkerPhase | None = WorkerPhase.RUNNING, incarnation: int = 1, **status: Any
) -> ElasticWorker:
    name = f"digits-worker-{index}"
    observed = {
        "observedIncarnation": incarnation,
        "phase": phase,
        "podName": f"{name}-{incarnation}",
        "podUid": f"uid-{index}-{incarnation}",
        "nodeName": "node-0",
    }
    return ElasticWorker.model_validate(
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"w{index}", "resourceVersion": "1"},
            "spec": {"jobName": "digits", "type": "worker", "index": index, "incarnation": incarnation},
            "status": {} if phase is None else observed | status,
        }
    )


def check(name: str = "lab", **spec: Any) -> NodeCheck:
    """Of four nodes, in Pods of its own."""
    status = spec.pop("status", {})
    return NodeCheck.model_validate(
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1"},
            "spec": {"nodes": [f"node-{index}" for index in range(4)]} | spec,
            "status": status,
        }
    )


def check_worker(index: int = 0) -> ElasticWorker:
    name = f"lab-check-{index}"
    spec = {"checkName": "lab", "type": "check", "index": index, "nodeName": f"node-{index}"}
    return ElasticWorker.model_validate(
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"c{index}", "resourceVersion": "1"},
            "spec": spec,
        }
    )


def pod(
    index: int = 0, phase: str = "Running", incarnation: int = 1, deleted: bool = False, **status: Any
) -> dict[str, Any]:
    metadata = {"name": f"digits-worker-{index}-{incarnation}", "uid": f"uid-{index}-{incarnation}"}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T12:00:00Z"
    return {"metadata": metadata, "spec": {"nodeName": "node-0"}, "status": {"phase": phase} | status}


def terminated(exit_code: int, reason: str = "Error", name: str = "main") -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": exit_code, "reason": reason}}}


def failure(index: int = 0, exit_code: int | None = 1, seconds: float = 0.0, **more: Any) -> AgentFailure:
    """Of a training process in round 1."""
    fields: dict[str, Any] = {"sequence": 1, "round": 1, "rank": index, "message": "ValueError: bad"}
    fields |= {"time": later(seconds), "after_seconds": 1_000 + seconds}
    return FAILURES.validate_python({**fields, "exit_code": exit_code, **more})


def failing(
    index: int = 0, state: AgentState = AgentState.FAILED, observed_round: int = 1, **more: Any
) -> ElasticWorker:
    """A worker one of whose training processes failed."""
    said = report(index, state, observed_round, failure=failure(index, **more))
    return worker(index, agent=said.to_wire())


PASSED = "Passed"


def outcome(probe: str = "gemm", ending: str = PASSED, **more: Any) -> dict[str, Any]:
    return {"probe": probe, "ending": ending} | more


GOOD = [
    outcome("device_state", "Skipped", reason="no NVIDIA driver"),
    outcome(figures={"gemm_fp32_tflops": 0.1}),
]
BAD = [outcome("device_state", "Failed", reason="Xid 79", faults=["GPU 0: Xid 79"])]
NO_GPU = [outcome("device_state", "Unavailable", reason="a GPU was asked for, and there is none")]


def decide(
    published: Rendezvous,
    people: Iterable[Participant],
    bounds: Bounds,
    now: datetime,
    constraints: Constraints = FREE,
) -> Decision:
    """The decision about the world that follows the published one."""
    return decision.decide(
        Assembly(published, sorted(people, key=attrgetter("index")), bounds, now), constraints
    )
