"""A job, its workers and its checks, in one line each; and a small model of a cluster that they live in."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from crds.agent_report import AgentState
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, ExitClass, WorkerExit, WorkerPhase
from crds.nodecheck import NodeCheck
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.failure.hardware_smell import suspected_at
from reconcilers.failure.incidents import incident_of, with_incident
from reconcilers.job.workers import plan_relaunches
from reconcilers.nodecheck.finished import FinishedCheck
from reconcilers.nodecheck.job_checks import JobChecks, active_check, check_name, next_number, standing_of
from reconcilers.world.decision import ActiveCheck, Constraints, Decision, decide
from reconcilers.world.participants import Ages, bounds_of, on_faulty_nodes, participants_of
from tests.reconcilers.build import NOW, job, report, worker

ALWAYS = NOW - timedelta(days=365)


def checked_job(replicas: int = 3, policy: Mapping[str, Any] | None = None, **spec: Any) -> ElasticJob:
    return job(replicas=replicas, nodeCheck={"enabled": True} | dict(policy or {}), **spec)


def at(
    index: int,
    node: str,
    incarnation: int = 1,
    state: AgentState = AgentState.READY,
    observed_round: int = 0,
    **status: Any,
) -> ElasticWorker:
    """A worker on a node, whose agent speaks."""
    said = report(index, state, observed_round, incarnation=incarnation, pod_uid=f"uid-{index}-{incarnation}")
    return worker(index, incarnation=incarnation, **({"nodeName": node, "agent": said.to_wire()} | status))


def job_check(
    number: int = 1,
    phase: str | None = "Succeeded",
    of: Sequence[ElasticWorker] = (),
    workers: Sequence[int] | None = None,
    ended: datetime = NOW,
    **verdicts: str,
) -> NodeCheck:
    """A check of digits; `verdicts` by node, Healthy where none is given."""
    nodes = {w.status.node_name or "": w for w in of}
    results = [{"node": node, "verdict": verdicts.get(node, "Healthy")} for node in nodes]
    name = f"digits-check-{number}"
    return NodeCheck.model_validate(
        {
            "metadata": {"name": name, "namespace": "default", "uid": name, "creationTimestamp": ended},
            "spec": {"jobName": "digits"} | ({} if workers is None else {"workers": list(workers)}),
            "status": {
                "phase": phase,
                "nodes": list(nodes),
                "workers": [w.spec.index for w in nodes.values()],
                "incarnations": [w.spec.incarnation for w in nodes.values()],
                "nodeResults": results if phase == "Succeeded" else [],
                "faultyNodes": [r["node"] for r in results if r["verdict"] == "Faulty"],
                "completionTime": ended if phase in ("Succeeded", "Failed") else None,
            },
        }
    )


def all_checks(*checks: NodeCheck, nodes: Sequence[str] = string.ascii_lowercase) -> JobChecks:
    of_job = tuple(c for c in checks if c.spec.job_name == "digits")
    finished = [FinishedCheck(c) for c in checks if c.status.phase in ("Succeeded", "Failed")]
    on_node: dict[str, list[FinishedCheck]] = {}
    for done in finished:
        for node in done.verdicts:
            on_node.setdefault(node, []).append(done)
    return JobChecks(
        of_job=of_job,
        finished=tuple(done for done in finished if done.check in of_job),
        on_node=on_node,
        nodes_created=dict.fromkeys(nodes, ALWAYS),
    )


@dataclass
class Stage:
    """One job on a few nodes, driven by the same pure functions as the reconciler, in its order."""

    job: ElasticJob
    workers: list[ElasticWorker]
    world: Rendezvous = field(default_factory=Rendezvous)
    checks: list[NodeCheck] = field(default_factory=list)
    active: str | None = None
    suspected: datetime | None = None
    restarts: dict[str, int] = field(default_factory=dict)
    now: datetime = NOW

    def look(self) -> Decision:
        """What a reconcile does, with its writes."""
        self.now += timedelta(seconds=1)
        before = self.world.round
        self.suspected = suspected_at(self.suspected, self.workers, self.world, self.now)
        checks = all_checks(*self.checks)
        active = active_check(checks.of_job)
        standing = standing_of(self.job, self.workers, checks, self.suspected, self.now)
        ages = Ages(joined={w.metadata.uid: 1e6 for w in self.workers})
        people = participants_of(self.job, self.workers, ages)
        people = on_faulty_nodes(people, standing.faulty)
        constraints = Constraints(slow=standing.slow, unchecked=standing.unchecked)
        if active is not None:
            tested = None if active.spec.workers is None else frozenset(active.spec.workers)
            constraints = replace(constraints, active_check=ActiveCheck(active.metadata.name, tested))
        decision = decide(self.world, people, bounds_of(self.job), self.now, constraints)
        incident = incident_of(decision.breaks, self.workers, before)
        self.restarts = with_incident(self.restarts, incident)
        if decision.check:
            name = check_name("digits", next_number("digits", [c.metadata.name for c in self.checks]))
            made = job_check(int(name.rsplit("-", 1)[1]), None, workers=decision.check, ended=self.now)
            self.checks.append(made)
        for relaunch in plan_relaunches(self.workers, decision.rendezvous, self.now, standing).relaunches:
            self._raise(relaunch.worker, relaunch.faulty_nodes)
        self.world = decision.rendezvous
        self.active = active.metadata.name if active else None
        return decision

    def _raise(self, old: ElasticWorker, faulty_nodes: Sequence[str]) -> None:
        spec = old.spec.model_copy(
            update={"incarnation": old.spec.incarnation + 1, "faulty_nodes": list(faulty_nodes)}
        )
        self.put(old.model_copy(update={"spec": spec}))

    def put(self, changed: ElasticWorker) -> None:
        self.workers = [changed if w.spec.index == changed.spec.index else w for w in self.workers]

    def place(self, index: int, nodes: Sequence[str]) -> None:
        """The scheduler and the kubelet: the worker's Pod comes up on a node that it may use, if there is one."""
        old = self.workers[index]
        if old.status.observed_incarnation == old.spec.incarnation and old.status.agent is not None:
            return
        taken = {w.status.node_name for w in self.workers if w.spec.index != index}
        free = [n for n in nodes if n not in taken and n not in old.spec.faulty_nodes]
        new = at(index, free[0], old.spec.incarnation) if free else self._pending(old)
        self.put(new.model_copy(update={"spec": old.spec}))

    def _pending(self, old: ElasticWorker) -> ElasticWorker:
        return worker(old.spec.index, WorkerPhase.PENDING, old.spec.incarnation, nodeName=None)

    def lose(self, index: int) -> None:
        """Its node dies."""
        old = self.workers[index]
        end = WorkerExit(
            incarnation=old.spec.incarnation,
            exit_class=ExitClass.NODE_LOST,
            node_name=old.status.node_name or "",
            time=self.now,
        )
        lost = {"phase": WorkerPhase.FAILED, "last_exit": end, "observed_incarnation": old.spec.incarnation}
        self.put(old.model_copy(update={"status": old.status.model_copy(update=lost)}))

    def act(self) -> None:
        """The agents converge to the published world."""
        for member in self.workers:
            said = member.status.agent
            if said is None or said.incarnation != member.spec.incarnation:
                continue
            in_world = self.world.phase is RendezvousPhase.FORMED and (
                (member.spec.index, member.spec.incarnation)
                in zip(self.world.members, self.world.incarnations, strict=True)
            )
            state = AgentState.RUNNING if in_world else AgentState.READY
            self.speak(member.spec.index, state)

    def speak(self, index: int, state: AgentState, **more: Any) -> None:
        member = self.workers[index]
        assert member.status.agent is not None
        said = replace(member.status.agent, **{"state": state, "observed_round": self.world.round} | more)
        self.put(member.model_copy(update={"status": member.status.model_copy(update={"agent": said})}))

    def conclude(self, phase: str = "Succeeded", **verdicts: str) -> NodeCheck:
        """The active check ends as its reconciler would write it, of all its workers that are idle."""
        check = active_check(self.checks)
        assert check is not None
        wanted = check.spec.workers
        idle = [
            w
            for w in self.workers
            if (wanted is None or w.spec.index in wanted)
            and w.status.agent is not None
            and w.status.agent.incarnation == w.spec.incarnation
            and w.status.agent.state is AgentState.READY
            and w.status.node_name
        ]
        self.now += timedelta(seconds=1)
        number = int(check.metadata.name.rsplit("-", 1)[1])
        ended = job_check(number, phase, idle, check.spec.workers, self.now, **verdicts)
        self.checks = [ended if c.metadata.uid == check.metadata.uid else c for c in self.checks]
        return ended
