"""What a job's time goes to just now (docs/goodput.md). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from crds import names
from crds.agent_report import FailureCause, RoundProgress
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, ExitClass, WorkerPhase
from crds.job_status import ElasticJobStatus, Episode, Goodput, JobState
from crds.phases import JobPhase, RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.failure.facts import Break
from reconcilers.goodput.rounds import all_run, first_step_at, last_step_at, reported_rounds
from reconcilers.observed.roles import in_cluster
from reconcilers.observed.slots import present_slots
from reconcilers.observed.worker_state import stuck_by
from reconcilers.observed.workers import Workers
from reconcilers.world.participants import bounds_of

_AFTER_A_FAILURE = (JobState.RECOVERING, JobState.DOWN)
NOT_YET_TRAINING = (JobState.RECOVERING, JobState.FORMING)
"""Of a formed world, before its first step."""


@dataclass(frozen=True)
class Moment:
    """One look at a job."""

    job: ElasticJob
    status: ElasticJobStatus
    """The status that will be written."""
    workers: Workers
    now: datetime
    checking: bool = False
    """A check of its nodes goes on."""
    broken_at: datetime | None = None
    """When the world failed, if it is given up just now because it did."""

    @cached_property
    def reported(self) -> list[RoundProgress]:
        """What agents have reported of the round that is counted last, and of later ones."""
        goodput = self.job.status.goodput
        return reported_rounds(self.workers.telling_steps, since=goodput.round if goodput else 0)

    @property
    def published(self) -> Rendezvous:
        return self.job.status.rendezvous or Rendezvous()

    @property
    def world(self) -> Rendezvous:
        return self.status.rendezvous or Rendezvous()


@dataclass(frozen=True)
class Transition:
    state: JobState
    at: datetime


def transitions(before: Goodput, history: Sequence[Episode], moment: Moment) -> list[Transition]:
    """The states since the last look, the present one at the end; each other than the one before."""
    found = [Transition(before.state, before.since)]

    def becomes(state: JobState, at: datetime) -> None:
        if state is not found[-1].state:
            found.append(Transition(state, min(max(at, found[-1].at), moment.now)))

    if before.state in NOT_YET_TRAINING and _has_told_steps(moment):
        becomes(
            JobState.TRAINING,
            first_step_at(moment.published.round, moment.workers.telling_steps) or moment.now,
        )
    if moment.broken_at is not None:
        becomes(JobState.RECOVERING, moment.broken_at)
    if moment.status.phase is None or not moment.status.phase.finished:
        recovering = moment.broken_at is not None or _recovers(before, history)
        becomes(_state(found[-1].state, before, moment, recovering), moment.now)
    return found


def failed_at(
    breaks: Sequence[Break], round_: int, workers: Sequence[ElasticWorker], now: datetime
) -> datetime | None:
    """When the world of this round failed; None if it has not, and some only leave it."""
    failed = [b for b in breaks if not (b.trains_on or b.stops_in_good_order)]
    if not failed:
        return None
    by_index = {worker.spec.index: worker for worker in workers if worker.spec.type == names.WORKER}
    last_step = last_step_at(round_, workers)
    return min(_break_time(b, by_index.get(b.index), last_step, now) for b in failed)


def _break_time(
    b: Break, worker: ElasticWorker | None, last_step: datetime | None, now: datetime
) -> datetime:
    """What is found out by waiting for it, a hang or a silent node, has failed since the last step."""
    failure = b.report.failure if b.report is not None else None
    if failure is not None:
        hangs = failure.cause is FailureCause.HANG
        return last_step if hangs and last_step is not None else failure.time
    end = worker.status.last_exit if worker is not None else None
    if worker is None or end is None or worker.status.phase is not WorkerPhase.FAILED:
        return now
    silent = end.exit_class is ExitClass.NODE_LOST
    return last_step if silent and last_step is not None else end.time


def _state(last: JobState, before: Goodput, moment: Moment, recovering: bool) -> JobState:
    world = moment.world
    if moment.status.phase is JobPhase.SUSPENDED:
        return JobState.SUSPENDED
    if in_cluster(moment.job):
        trains = moment.status.phase in (JobPhase.RUNNING, JobPhase.SCALING)
        begun = trains or moment.status.phase is JobPhase.RESTARTING
        return JobState.TRAINING if trains else JobState.RECOVERING if begun else JobState.PENDING
    if world.phase is RendezvousPhase.FORMED:
        if _trains(last, before, moment):
            return JobState.TRAINING
    elif moment.checking:
        return JobState.CHECKING
    elif world.phase is RendezvousPhase.FORMING:
        return JobState.PENDING
    elif _too_few(moment):
        return JobState.DOWN
    return JobState.RECOVERING if recovering else JobState.FORMING


def _trains(last: JobState, before: Goodput, moment: Moment) -> bool:
    """A script that told steps trains from the first of a round on; one that tells none, while it runs."""
    if moment.published.round == moment.world.round and last is JobState.TRAINING:
        return True
    if before.first_step is not None or moment.reported:
        return False
    return all_run(moment.world, moment.workers)


def _has_told_steps(moment: Moment) -> bool:
    """Whether members of the published world have reported steps of its round."""
    published = moment.published
    formed = published.phase is RendezvousPhase.FORMED
    return formed and any(figures.round == published.round for figures in moment.reported)


def _too_few(moment: Moment) -> bool:
    """Not even with all who are on the way there are enough for a world."""
    present = set(present_slots(moment.job, names.WORKER))
    stuck = {
        worker.spec.index
        for worker in moment.workers
        if worker.spec.type == names.WORKER and worker.spec.index in present and stuck_by(worker) is not None
    }
    return len(present - stuck) < bounds_of(moment.job).least


def _recovers(before: Goodput, history: Sequence[Episode]) -> bool:
    """Whether the last failure is not over yet. A check may have come between."""
    if before.state is not JobState.CHECKING:
        return before.state in _AFTER_A_FAILURE
    earlier = (episode.state for episode in reversed(history) if episode.state is not JobState.CHECKING)
    return next(earlier, JobState.PENDING) in _AFTER_A_FAILURE
