"""Job in virtual time, decided by the controller's own plan.

`look` does the same as `reconcilers/job/reconciler.py`: seen → plan → apply, with `plan_job` itself, and
the objects in memory. Nothing here decides anything about the job.

**The quiet majority is left out.** The plan's decisions depend on missing and ready workers, and on their
number beyond the minimum; workers that simply run differ only in their index. So a job of N workers, of
which h simply run all the time, gets the same worlds as one of N − h workers whose `replicas` and
`minReplicas` are lower by h, if h is a multiple of `nodeUnit` (`tests/simulator/test_majority.py` compares
both). `hidden` is h. A hidden worker with an incident replaces one that is shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from crds.agent_report import AgentState, ReplicasReport, RoundProgress, StepProgress
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, ElasticWorkerSpec, WorkerPhase
from crds.findings import Verdict
from crds.job_spec import ReplicaSpec
from crds.job_status import ElasticJobStatus
from crds.nodecheck import NodeCheck
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.findings.finished import FinishedCheck
from reconcilers.job.plan import JobPlan, plan_job
from reconcilers.look import ObservedJob
from reconcilers.nodecheck.job_checks import JobChecks
from reconcilers.observed.groups import group_of
from reconcilers.observed.workers import Workers, simply_runs
from reconcilers.runtime.acts import Act, RequestVerb
from reconcilers.runtime.kinds import ELASTICWORKERS, NODECHECKS
from reconcilers.world.participants import Ages, is_waiting
from simulator import objects

KEPT_ROUNDS = 3
"""Rounds whose steps are kept in the report of the speaker."""


@dataclass
class Looked:
    """Acts of one reconcile."""

    plan: JobPlan
    new_pods: list[int] = field(default_factory=list)
    """Indices of workers that need a Pod: new ones, and next incarnations."""
    gone: list[int] = field(default_factory=list)
    """Indices of workers that were deleted."""
    check: dict[str, Any] | None = None
    """The NodeCheck that was created."""


class PlannedJob:
    """Job with its workers, by index, and its checks."""

    def __init__(self, job: ElasticJob, least: int = 1, hidden: int = 0) -> None:
        """`least` is the whole job's `minReplicas`, `hidden` the number of its workers that are not shown."""
        self.job = job
        self.least, self.hidden = least, hidden
        self.workers: dict[int, ElasticWorker] = {}
        self.checks: list[NodeCheck] = []
        self._status: dict[str, Any] = {}
        self._plain: ElasticWorker | None = None
        """A worker that simply ran recently."""
        self._waits: dict[int, tuple[object, datetime]] = {}
        self._accounted: tuple[object, datetime] = (None, objects.EPOCH)

    @property
    def world(self) -> Rendezvous:
        return self.job.status.world

    @property
    def is_formed(self) -> bool:
        return self.world.phase is RendezvousPhase.FORMED

    @property
    def missing(self) -> int:
        """Number of members that the world lacks."""
        return self.job.spec.replica_specs["worker"].replicas - len(self.world.members)

    # --- the controller ------------------------------------------------------------------------------------

    def look(self, now: datetime) -> Looked:
        """Run one reconcile of the job, with all of its writes."""
        plan = plan_job(self._seen(now), now)
        looked = Looked(plan)
        if plan.request is not None:
            looked.check = plan.request.body
            self.checks.append(objects.check_of(plan.request.body, now, phase="Running"))
        for act in plan.first:
            self._carry_out(act, looked, now)
        if plan.status_patch:
            self._set_status(objects.patched(self._status, plan.status_patch))
        for act in plan.acts:
            self._carry_out(act, looked, now)
        return looked

    def _seen(self, now: datetime) -> ObservedJob:
        workers = Workers(self.workers.values())
        joined = {w.metadata.uid: self._waited(w, now) for w in workers}
        return ObservedJob(
            job=self.job,
            raw={"metadata": {"name": objects.JOB}, "status": self._status},
            workers=workers,
            vetting=self._job_checks(),
            pods={w.metadata.uid: None for w in workers if w.status.pod_name},
            ages=Ages(joined),
            account_age_seconds=self._account_age(now),
        )

    def _waited(self, worker: ElasticWorker, now: datetime) -> float:
        """Return the seconds since its agent began, or ceased, to wait for a world."""
        state, index = is_waiting(worker.status.agent), worker.spec.index
        since = self._waits.get(index)
        if since is None or since[0] != state:
            since = self._waits[index] = (state, now)
        return (now - since[1]).total_seconds()

    def _account_age(self, now: datetime) -> float:
        goodput = self.job.status.goodput
        version = (goodput.since, goodput.steps_timed, goodput.ratio) if goodput is not None else None
        if version != self._accounted[0]:
            self._accounted = (version, now)
        return (now - self._accounted[1]).total_seconds()

    def _job_checks(self) -> JobChecks:
        if not self.checks:
            return JobChecks()
        done = tuple(FinishedCheck(c) for c in self.checks if c.status.phase and c.status.phase.finished)
        on_node: dict[str, list[FinishedCheck]] = {}
        for check in done:
            for node in check.verdicts:
                on_node.setdefault(node, []).append(check)
        names = frozenset(check.metadata.name for check in self.checks)
        return JobChecks(
            of_job=tuple(self.checks),
            finished=done,
            on_node=on_node,
            nodes_created=dict.fromkeys(on_node, objects.EPOCH),
            taken=names,
            owned=names,
        )

    def _carry_out(self, act: Act, looked: Looked, now: datetime) -> None:
        if act.resource is NODECHECKS:
            self.checks = [check for check in self.checks if check.metadata.name != act.name]
            return
        assert act.resource is ELASTICWORKERS, act
        if act.verb is RequestVerb.CREATE:
            worker = objects.created(act.body, now)
            self.workers[worker.spec.index] = worker
            looked.new_pods.append(worker.spec.index)
            return
        index = next((i for i, w in self.workers.items() if w.metadata.name == act.name), None)
        if index is None:
            return
        if act.verb is RequestVerb.DELETE:
            del self.workers[index]
            looked.gone.append(index)
            return
        worker = self.workers[index]
        if "spec" in act.body:
            spec = ElasticWorkerSpec.model_validate(worker.spec.to_wire() | act.body["spec"])
            self.workers[index] = objects.waiting(
                self.job, worker.model_copy(update={"spec": spec}), now, unschedulable=False
            )
            looked.new_pods.append(index)
        else:
            standby = act.body["status"]["standby"]
            status = worker.status.model_copy(update={"standby": standby})
            self.workers[index] = worker.model_copy(update={"status": status})

    def _set_status(self, wire: dict[str, Any]) -> None:
        self._status = wire
        self.job = self.job.model_copy(update={"status": ElasticJobStatus.model_validate(wire)})

    # --- Pods and agents ------------------------------------------------------------------------------------

    def members(self) -> Iterable[int]:
        """Yield the members that are alive in the world's incarnation."""
        incarnations = self.world.incarnation_by_index()
        for index in self.world.members:
            worker = self.workers.get(index)
            if worker is not None and worker.spec.incarnation == incarnations[index] and self.lives(index):
                yield index

    def lives(self, index: int) -> bool:
        """Return whether its Pod runs and its agent has reported."""
        worker = self.workers[index]
        report = worker.status.agent
        return (
            worker.status.phase is WorkerPhase.RUNNING
            and report is not None
            and report.incarnation == worker.spec.incarnation
        )

    def run_round(self, first_step: int, now: datetime) -> None:
        """Let all members train the published round; the first of them, its speaker, reports the step."""
        world, speaker = self.world, None
        part = ReplicasReport(world.round) if group_of(self.job) is not None else None
        for index in self.members():
            speaker = index if speaker is None else speaker
            self.workers[index] = objects.reporting(
                self.workers[index],
                state=AgentState.RUNNING,
                observed_round=world.round,
                failure=None,
                since=now,
                replicas=part,
            )
            if self._simply_runs(index):
                self._plain = self.workers[index]
        if speaker is not None:
            self._report_steps(speaker, first_step, first_step, 0.0, now)

    def report_steps(self, first: int, last: int, stepping_seconds: float, now: datetime) -> None:
        """Let the round's speaker report its steps."""
        speaker = next(iter(self.members()), None)
        if speaker is not None:
            self._report_steps(speaker, first, last, stepping_seconds, now)

    def _report_steps(self, index: int, first: int, last: int, seconds: float, now: datetime) -> None:
        worker = self.workers[index]
        report = worker.status.agent
        assert report is not None
        latest = RoundProgress(
            round=self.world.round, first_step=first, last_step=last, stepping_seconds=max(seconds, 0.0)
        )
        rounds = (*(r for r in report.rounds if r.round != latest.round), latest)[-KEPT_ROUNDS:]
        progress = StepProgress(step=last, time=now)
        self.workers[index] = objects.reporting(worker, rounds=rounds, progress=progress)

    def stop(self, now: datetime) -> None:
        """Let the survivors of a broken world stop their processes and wait."""
        for index, worker in self.workers.items():
            report = worker.status.agent
            if report is not None and report.state in (AgentState.RUNNING, AgentState.FAILED):
                self.workers[index] = objects.reporting(worker, state=AgentState.READY, since=now)

    def put(self, worker: ElasticWorker) -> None:
        self.workers[worker.spec.index] = worker

    def quiet(self) -> list[int]:
        """Return members that simply run: any of them may represent a hidden one."""
        return [index for index in self.world.members if self._simply_runs(index)]

    def _simply_runs(self, index: int) -> bool:
        worker = self.workers.get(index)
        return worker is not None and simply_runs(worker)

    def is_idle(self, index: int) -> bool:
        """Return whether its agent waits for a world."""
        report = self.workers[index].status.agent
        return self.lives(index) and report is not None and report.state is AgentState.READY

    @property
    def has_active_check(self) -> bool:
        return any(not check.status.finished for check in self.checks)

    def end_check(self, body: dict[str, Any], verdicts: dict[str, Any], now: datetime) -> None:
        """Finish the NodeCheck with these verdicts (fields of its status)."""
        name = body["metadata"]["name"]
        for place, check in enumerate(self.checks):
            if check.metadata.name == name:
                begun = check.metadata.creation_timestamp or now
                ended = {"phase": "Succeeded", "completionTime": now} | verdicts
                self.checks[place] = objects.check_of(body, begun, **ended)

    # --- the quiet majority ---------------------------------------------------------------------------------

    def copy(self) -> PlannedJob:
        """Return an independent job in the same state."""
        other = PlannedJob(self.job, self.least, self.hidden)
        other.workers, other.checks = dict(self.workers), list(self.checks)
        other._status, other._waits, other._accounted = self._status, dict(self._waits), self._accounted
        other._plain = self._plain
        return other

    def reveal(self, count: int) -> range:
        """Show `count` hidden workers, in an undisturbed state; return their slots."""
        world, model = self.world, self._someone()
        spec = self.job.spec.replica_specs["worker"]
        first = max(self.workers) + 1
        new = range(first, first + count)
        self.hidden -= count
        least = max(self.least - self.hidden, self.job.spec.elastic_policy.node_unit)
        sizes = {"replicas": spec.replicas + count, "min_replicas": least}
        self._resize(spec.model_copy(update=sizes))
        for index in new:
            self.workers[index] = objects.alike(model, index)
            self._waits[index] = self._waits.get(model.spec.index, (None, objects.EPOCH))
        shown = world.model_copy(
            update={
                "members": [*world.members, *new],
                "incarnations": [*world.incarnations, *(1 for _ in new)],
                "world_size": world.world_size + count,
            }
        )
        self._set_status(self.job.status.model_copy(update={"rendezvous": shown}).to_wire())
        return new

    def _someone(self) -> ElasticWorker:
        """Return an undisturbed member."""
        quiet = self.quiet()
        if quiet:
            return self.workers[quiet[-1]]
        assert self._plain is not None
        state = AgentState.RUNNING if self.is_formed else AgentState.READY
        return objects.reporting(self._plain, state=state, observed_round=self.world.round)

    def label(self, index: int, node: str) -> None:
        """Let a worker that simply runs represent the one on that node, with the results of checks exchanged
        and none against it."""
        worker = self.workers[index]
        before = worker.status.node_name or ""
        status = worker.status.model_copy(update={"node_name": node})
        self.workers[index] = worker.model_copy(update={"status": status})
        swapped = {before: node, node: before}
        for place, check in enumerate(self.checks):
            found = check.status
            nodes = [swapped.get(name, name) for name in found.nodes]
            still = {name: place for place, name in enumerate(nodes) if name != node}
            sets = {
                kind: sorted(still[name] for name in found.nodes_in(Verdict(kind)) if name in still)
                for kind in found.node_sets
            }
            update = {"nodes": nodes, "node_sets": sets}
            self.checks[place] = check.model_copy(update={"status": found.model_copy(update=update)})

    def reset(self, prototype: PlannedJob) -> None:
        """Reset to a job without any history in the same round; its account stays."""
        world, speaker = self.world, next(iter(self.members()))
        report = self.workers[speaker].status.agent
        assert report is not None
        model = prototype.world
        as_new = {
            "members": model.members,
            "incarnations": model.incarnations,
            "world_size": model.world_size,
        }
        self._resize(prototype.job.spec.replica_specs["worker"])
        self.hidden = prototype.hidden
        self.checks = list(prototype.checks)
        self._waits = dict(prototype._waits)
        fresh = {"observed_round": world.round, "rounds": []}
        self.workers = {i: objects.reporting(w, **fresh) for i, w in prototype.workers.items()}
        first = min(self.workers)
        latest = {"rounds": report.rounds[-1:], "progress": report.progress}
        self.workers[first] = objects.reporting(self.workers[first], **latest)
        status = {
            "rendezvous": world.model_copy(update=as_new),
            "goodput": self.job.status.goodput,
            "history": self.job.status.history,
        }
        self._set_status(prototype.job.status.model_copy(update=status).to_wire())

    def _resize(self, spec: ReplicaSpec) -> None:
        specs = {"replica_specs": {"worker": spec}}
        self.job = self.job.model_copy(update={"spec": self.job.spec.model_copy(update=specs)})
