"""A job whose training processes and Pods fail, driven as the reconciler drives it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from crds.agent_report import AgentState
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerExit, WorkerPhase
from crds.job_status import FailureBudget
from crds.phases import JobPhase, RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.conditions.table import TABLE
from reconcilers.failure.endings import spare_workers
from reconcilers.failure.hangs import was_counted
from reconcilers.failure.policy import Assessment, assess
from reconcilers.job import events as job_events
from reconcilers.job.status import ended
from reconcilers.job.times import with_times_by_our_clock
from reconcilers.look import DesiredJob, ObservedJob
from reconcilers.nodecheck.job_checks import JobChecks
from reconcilers.observed.workers import Workers
from reconcilers.world.decision import Constraints
from reconcilers.world.participants import Ages, bounds_of, participants_of
from reconcilers.world.rendezvous import broken_members
from tests.reconcilers.build import NOW, decide, failure, job, report, worker

FORMED, REFORMING = RendezvousPhase.FORMED, RendezvousPhase.REFORMING


@dataclass
class Life:
    """A job of workers that train, fail, and are told so."""

    job: ElasticJob
    workers: list[ElasticWorker]
    now: datetime = NOW
    events: list[tuple[str, str, str]] = field(default_factory=list)
    ended: str = ""

    @classmethod
    def of(cls, replicas: int = 2, **spec: Any) -> Life:
        life = cls(job(replicas=replicas, **spec), [worker(i) for i in range(replicas)])
        for index in range(replicas):
            life.say(index, AgentState.READY, 0)
        life.look()
        return life

    @property
    def world(self) -> Rendezvous:
        return self.job.status.rendezvous or Rendezvous()

    @property
    def budget(self) -> FailureBudget:
        assert self.job.status.failure_budget is not None
        return self.job.status.failure_budget

    def say(self, index: int, state: AgentState, round_: int, **more: Any) -> None:
        said = report(index, state, round_, **more)
        status = self.workers[index].status.model_copy(update={"agent": said})
        self.workers[index] = self.workers[index].model_copy(update={"status": status})

    def train(self) -> None:
        """Everyone acts on the world."""
        for index in self.world.members:
            old = self.workers[index].status.agent
            self.say(index, AgentState.RUNNING, self.world.round, failure=old.failure if old else None)

    def fail(self, index: int = 0, state: AgentState = AgentState.FAILED, **more: Any) -> Assessment:
        round_ = self.world.round
        told = failure(index, round=round_, seconds=(self.now - NOW).total_seconds(), **more)
        self.say(index, state, round_, failure=told)
        return self.look()

    def lose(
        self, index: int, exit_class: str = "NodeLost", *, in_good_order: bool | None = None
    ) -> Assessment:
        """Its Pod ends."""
        self.now += timedelta(seconds=1)
        end = WorkerExit(
            incarnation=1,
            exit_class=exit_class,
            reason=exit_class,
            message="gone",
            in_good_order=in_good_order,
            time=self.now,
        )
        lost = self.workers[index].status.model_copy(update={"phase": WorkerPhase.FAILED, "last_exit": end})
        self.workers[index] = self.workers[index].model_copy(update={"status": lost})
        return self.look()

    def look(self, after_seconds: float = 0.01) -> Assessment:
        """What the reconciler does, with its write."""
        self.now += timedelta(seconds=after_seconds)
        self.job = with_times_by_our_clock(self.job, self.now)
        people = participants_of(self.job, self.workers, Ages())
        breaks = broken_members(self.world, people)
        workers, world = Workers(self.workers), self.world
        spare = spare_workers(self.job, workers)
        are_tested = JobChecks().follows_failures(self.job)
        nodes = [{"status": {"allocatable": {"memory": "64Gi"}}}]
        found = assess(self.job, workers, spare, breaks, self.now, nodes=nodes, are_tested=are_tested)
        if found.ending is None:
            limits = Constraints(hold=found.hold(self.now), hang_since=found.hang_since, blame=found.blame)
            decision = decide(self.world, people, bounds_of(self.job), self.now, limits)
            counted = was_counted(self.job.status)
            self.events += job_events.of_world(self.world, decision, found, workers, was_counted=counted)
            world = decision.rendezvous
        else:
            seen = ObservedJob(self.job, {"status": self.job.status.to_wire()}, workers)
            look = DesiredJob(seen, self.job, workers, self.now, table=TABLE)
            status = ended(look, JobPhase.FAILED, found.ending.reason, found.ending.message, found)
            self.ended = next(c.message for c in status.conditions if c.type == "Failed")
            self.events += [*job_events.of_culprit(found.incident), *job_events.of_phase(look, status)]
            assert status.rendezvous is not None
            world = status.rendezvous
        written = {
            "rendezvous": world,
            "restarts": found.count.restarts,
            "failure_budget": found.count.budget,
            "last_failure": found.count.last_failure,
        }
        self.job = self.job.model_copy(update={"status": self.job.status.model_copy(update=written)})
        return found

    def recover(self) -> None:
        """Time passes until the next world, in which all train."""
        until = self.job.status.failure_budget and self.job.status.failure_budget.held_until
        self.look(max((until - self.now).total_seconds(), 0) + 0.1 if until else 0.1)
        assert self.world.phase is FORMED
        self.train()
