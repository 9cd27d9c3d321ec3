"""A job's account of its time and steps: `status.goodput` and `status.history` (docs/metrics.md).

It is written when state, round or members change, and at the job's end. In between it is updated at most once
a minute, with other writes of the status; the figures stay in the agents' reports. It is written on its own
only if the ratio that `kubectl get` shows is wrong by a point. That is checked each time when the job is a
quarter older, so that a steady job causes few writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

from controller.wording import first_line
from crds import names
from crds.agent_report import FailureCause, RoundProgress
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, ExitClass, WorkerPhase
from crds.job_status import (
    MAX_EPISODE_MEMBERS,
    MAX_EPISODE_REASON,
    MAX_EPISODES,
    ElasticJobStatus,
    Episode,
    EpisodeFailure,
    Goodput,
    JobFailure,
    JobState,
)
from crds.phases import JobPhase, RendezvousPhase
from crds.ranges import as_ranges
from crds.rendezvous import Rendezvous
from crds.texts import shortened
from reconcilers.failure.facts import Break
from reconcilers.failure.incidents import in_one_line
from reconcilers.goodput.goodput import (
    AFTER_A_FAILURE,
    FALSE_START,
    NOT_YET_TRAINING,
    all_run,
    begun,
    first_step_at,
    goodput_now,
    in_state,
    last_step_at,
    reassigned,
    reported_rounds,
    with_ratio,
    with_rounds,
)
from reconcilers.goodput.lives import with_lives
from reconcilers.observed.slots import present_slots
from reconcilers.observed.worker_state import stuck_by
from reconcilers.observed.workers import Workers
from reconcilers.world.participants import bounds_of


@dataclass(frozen=True)
class Moment:
    """A job at one reconcile."""

    job: ElasticJob
    status: ElasticJobStatus
    """The status that will be written."""
    workers: Workers
    now: datetime
    broken_at: datetime | None = None
    """When the world failed, if it ends just now because of that."""

    @cached_property
    def reported(self) -> list[RoundProgress]:
        """Reported figures of the last counted round and of later ones."""
        goodput = self.job.status.goodput
        return reported_rounds(self.workers.reporting_steps, since=goodput.round if goodput else 0)

    @property
    def published(self) -> Rendezvous:
        return self.job.status.world

    @property
    def world(self) -> Rendezvous:
        return self.status.world


@dataclass(frozen=True)
class Transition:
    """The begin of a state."""

    state: JobState
    at: datetime


def transitions(before: Goodput, history: Sequence[Episode], moment: Moment) -> list[Transition]:
    """Return the states since the last reconcile, the present one last; neighbours differ."""
    found = [Transition(before.state, before.since)]

    def becomes(state: JobState, at: datetime) -> None:
        if state is not found[-1].state:
            found.append(Transition(state, min(max(at, found[-1].at), moment.now)))

    # The agents' clocks may be wrong by hours; the time that their steps took is not.
    stepping = _stepping_time(moment)
    if before.state in NOT_YET_TRAINING and _has_steps(moment):
        latest = moment.now - stepping
        first = first_step_at(moment.published.round, moment.workers.reporting_steps)
        becomes(JobState.TRAINING, first if first is not None and before.since <= first <= latest else latest)
    if moment.broken_at is not None:
        trained = found[-1].state is JobState.TRAINING
        becomes(JobState.RECOVERING, max(moment.broken_at, found[-1].at + stepping * trained))
    if not moment.status.finished:
        recovering = moment.broken_at is not None or _recovers(before, history)
        becomes(_state(found[-1].state, before, moment, recovering), moment.now)
    return found


def failed_at(
    breaks: Sequence[Break], round_: int, workers: Sequence[ElasticWorker], now: datetime
) -> datetime | None:
    """Return when the world of this round failed; None if it has not, or members only leave it."""
    failed = [b for b in breaks if not (b.trains_on or b.stops_in_good_order)]
    if not failed:
        return None
    by_index = {worker.spec.index: worker for worker in workers if worker.spec.type == names.WORKER}
    last_step = last_step_at(round_, workers)
    return min(_break_time(b, by_index.get(b.index), last_step, now) for b in failed)


def _break_time(
    b: Break, worker: ElasticWorker | None, last_step: datetime | None, now: datetime
) -> datetime:
    """Return when a member failed: a hang or a silent node, found only after a wait, at the last step."""
    failure = b.report.failure if b.report is not None else None
    if failure is not None:
        hangs = failure.cause in (FailureCause.HANG, FailureCause.TIMED_OUT)
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
    if moment.status.rendezvous is None:  # a job without a world trains while it runs
        trains = moment.status.phase in (JobPhase.RUNNING, JobPhase.SCALING)
        begun = trains or moment.status.phase is JobPhase.RESTARTING
        return JobState.TRAINING if trains else JobState.RECOVERING if begun else JobState.PENDING
    if world.phase is RendezvousPhase.FORMED:
        if _trains(last, before, moment):
            return JobState.TRAINING
        if last is JobState.REFORMING and world.round == moment.published.round:
            return last
    elif moment.status.active_check is not None:
        return JobState.CHECKING
    elif world.phase is RendezvousPhase.FORMING:
        return JobState.PENDING
    elif _too_few(moment):
        return JobState.DOWN
    return JobState.RECOVERING if recovering else JobState.FORMING


def _trains(last: JobState, before: Goodput, moment: Moment) -> bool:
    """Whether a script trains: from its first step of the round on, or, if it reports none, while it runs."""
    if moment.published.round == moment.world.round and last is JobState.TRAINING:
        return True
    if before.first_step is not None or moment.reported:
        return False
    return all_run(moment.world, moment.workers)


def _has_steps(moment: Moment) -> bool:
    """Whether members of the published world have reported steps of its round."""
    published = moment.published
    formed = published.phase is RendezvousPhase.FORMED
    return formed and any(figures.round == published.round for figures in moment.reported)


def _stepping_time(moment: Moment) -> timedelta:
    """Time from the first to the last reported step of the published world."""
    seconds = (f.stepping_seconds for f in moment.reported if f.round == moment.published.round)
    return timedelta(seconds=max(seconds, default=0.0))


def _too_few(moment: Moment) -> bool:
    """Whether there are too few workers for a world, even with those that are starting."""
    present = set(present_slots(moment.job, names.WORKER))
    stuck = {
        worker.spec.index
        for worker in moment.workers
        if worker.spec.type == names.WORKER and worker.spec.index in present and stuck_by(worker) is not None
    }
    return len(present - stuck) < bounds_of(moment.job).least


def _recovers(before: Goodput, history: Sequence[Episode]) -> bool:
    """Whether the last failure is not over yet, even if a check came in between."""
    if before.state is not JobState.CHECKING:
        return before.state in AFTER_A_FAILURE
    earlier = (episode.state for episode in reversed(history) if episode.state is not JobState.CHECKING)
    return next(earlier, JobState.PENDING) in AFTER_A_FAILURE


def with_episode(history: Sequence[Episode], episode: Episode) -> tuple[Episode, ...]:
    """Append the new episode, unless it equals the last one; when full, the oldest is dropped.

    A round that fails before it has trained begins no episode: its failure is added to the last one.
    """
    last = history[-1] if history else None
    if last is not None and _what(last) == _what(episode):
        failure = last.failure or episode.failure
        return (*history[:-1], last.model_copy(update={"failure": failure}))
    if last is not None and last.since > episode.since:
        episode = episode.model_copy(update={"since": last.since})
    return (*history, episode)[-MAX_EPISODES:]


def episode_of(
    state: JobState, since: datetime, world: Rendezvous, reason: str, failure: EpisodeFailure | None = None
) -> Episode:
    members = () if world.phase is RendezvousPhase.FORMING else world.members
    return Episode(
        state=state,
        since=since,
        round=world.round,
        size=len(members) or None,
        members=in_short(members),
        reason=shortened(reason, MAX_EPISODE_REASON),
        failure=failure,
    )


def in_short(members: Sequence[int]) -> str:
    """Return text such as `0-3,6`, cut if it gets too long."""
    text = as_ranges(sorted(members))
    if len(text) <= MAX_EPISODE_MEMBERS:
        return text
    return text[: text.rindex(",", 0, MAX_EPISODE_MEMBERS - 1) + 1] + "…"


def _what(episode: Episode) -> tuple[object, ...]:
    return episode.state, episode.round, episode.members


REFRESH_SECONDS = 60.0
"""Least time between updates of the account, unless its state changes."""
REFRESH_SHARE = 0.2
"""Share of the job's age after which the written ratio is checked. In this time the ratio can change by no
more than that share."""
POINT = 0.01
"""Least change of the ratio for which the account is written on its own."""


def with_account(moment: Moment, differs: bool, age_seconds: float) -> ElasticJobStatus:
    """Return the moment's status, with the account updated if that is due.

    Args:
        differs: whether other fields are written; otherwise the account stays until its ratio is too old.
        age_seconds: time since the account was written.
    """
    stored, status = moment.job.status, moment.status
    account = balanced(moment)
    if account is not None:
        return status.model_copy(update={"goodput": account[0], "history": list(account[1])})
    limit_seconds = REFRESH_SECONDS if differs else refresh_seconds(moment.job, moment.now)
    if stored.goodput is None or stored.completion_time is not None or age_seconds < limit_seconds:
        return status
    goodput = goodput_now(moment.job, moment.workers, moment.now)
    if not differs and not _has_moved(stored.goodput, goodput):
        return status
    return status.model_copy(update={"goodput": goodput})


def refresh_seconds(job: ElasticJob, now: datetime) -> float:
    """Return the age at which the written ratio is compared with the present one."""
    submitted = job.metadata.creation_timestamp or now
    return max(REFRESH_SECONDS, REFRESH_SHARE * (now - submitted).total_seconds())


def seconds_to_refresh(job: ElasticJob, now: datetime, age_seconds: float) -> float:
    """Return the time until the next check of the written ratio."""
    limit = refresh_seconds(job, now)
    return limit - age_seconds if age_seconds < limit else limit


def _has_moved(written: Goodput, present: Goodput) -> bool:
    if written.ratio is None or present.ratio is None:
        return written.ratio is not present.ratio
    return abs(written.ratio - present.ratio) >= POINT


def balanced(moment: Moment) -> tuple[Goodput, tuple[Episode, ...]] | None:
    """Return account and history with all changes since they were written; None without changes."""
    stored = moment.job.status
    if stored.finished:
        return None
    before = stored.goodput or begun(moment.job, moment.now)
    earlier = tuple(stored.history) or (Episode(state=before.state, since=before.since, reason="submitted"),)
    goodput, history = _with_first_steps(*_without_false_start(before, earlier, moment), moment)
    goodput, history = with_lives(goodput, history, moment.published, moment.workers)

    found = transitions(goodput, history, moment)
    goodput = with_rounds(goodput, moment.reported)
    for transition in found[1:]:
        goodput = in_state(goodput, transition.state, transition.at)
    history = _with_blame(_with_episodes(history, found, moment), moment)
    if moment.status.finished:
        goodput = in_state(goodput, goodput.state, moment.now)
    if (goodput.state, goodput.since, history) == (before.state, before.since, tuple(stored.history)):
        return None
    return with_ratio(goodput, moment.job, moment.now), history


def _without_false_start(
    goodput: Goodput, history: tuple[Episode, ...], moment: Moment
) -> tuple[Goodput, tuple[Episode, ...]]:
    """Take back assumed training: a script without reported steps that failed soon has not trained."""
    is_assumed = goodput.state is JobState.TRAINING and goodput.first_step is None and not moment.reported
    if not is_assumed or moment.broken_at is None or len(history) < 2:
        return goodput, history
    earlier = history[-2].state
    if earlier not in NOT_YET_TRAINING or moment.broken_at - goodput.since > FALSE_START:
        return goodput, history
    return goodput.model_copy(update={"state": earlier}), history[:-1]


def _with_first_steps(
    goodput: Goodput, history: tuple[Episode, ...], moment: Moment
) -> tuple[Goodput, tuple[Episode, ...]]:
    """Correct assumed training: once a script reports its first step, it has trained only from then on."""
    published, rounds = moment.published, moment.reported
    is_assumed = goodput.state is JobState.TRAINING and goodput.first_step is None
    if not is_assumed or len(history) < 2 or not rounds or rounds[-1].round != published.round:
        return goodput, history
    earlier = history[-2].state
    if earlier not in NOT_YET_TRAINING:
        return goodput, history
    at = min(first_step_at(published.round, moment.workers.reporting_steps) or moment.now, moment.now)
    goodput = reassigned(goodput, earlier, at)
    began = history[-1].model_copy(
        update={"since": goodput.since, "reason": _reason(JobState.TRAINING, published, moment)}
    )
    return goodput, (*history[:-1], began)


def _with_episodes(
    history: tuple[Episode, ...], found: Sequence[Transition], moment: Moment
) -> tuple[Episode, ...]:
    """Append the changes of state and world; states that came and went meanwhile belong to the old world."""
    worlds = [moment.published] * (len(found) - 1) + [moment.world]
    for number, (transition, world) in enumerate(zip(found, worlds, strict=True)):
        if number == 0 and len(found) > 1:
            continue  # it is in the history
        at = transition.at if number else moment.now
        reason = _reason(transition.state, world, moment)
        failure = _news(moment) if transition.state is JobState.RECOVERING else None
        episode = episode_of(transition.state, at, world, reason, _in_brief(failure))
        history = with_episode(history, episode)
    return history


def _with_blame(history: tuple[Episode, ...], moment: Moment) -> tuple[Episode, ...]:
    """Write the culprit of a round into the history when the blame moves from one worker to another.

    The same applies when it is found for a round that ended before, such as one that hung.
    """
    before, now = moment.job.status.last_failure, moment.status.last_failure
    if now is None or now.round is None or before == now:
        return history
    why = {"reason": shortened(in_one_line(now), MAX_EPISODE_REASON), "failure": _in_brief(now)}
    was_open = moment.published.phase is RendezvousPhase.REFORMING and moment.published.round == now.round

    def is_of_it(episode: Episode) -> bool:
        if episode.failure is not None:
            return episode.failure.round == now.round
        return was_open and episode.state is JobState.RECOVERING and episode.round == now.round

    return tuple(each.model_copy(update=why) if is_of_it(each) else each for each in history)


def _news(moment: Moment) -> JobFailure | None:
    """Return the last failure, if it is recorded now."""
    failure = moment.status.last_failure
    return failure if failure != moment.job.status.last_failure else None


def _in_brief(failure: JobFailure | None) -> EpisodeFailure | None:
    if failure is None:
        return None
    return EpisodeFailure(
        worker=failure.worker,
        exit_class=failure.exit_class,
        round=failure.round,
        message=first_line(failure.message),
        time=failure.time,
    )


def _reason(state: JobState, world: Rendezvous, moment: Moment) -> str:
    match state:
        case JobState.PENDING:
            return "resumed"
        case JobState.CHECKING:
            return f"check {moment.status.active_check}"
        case JobState.TRAINING:
            first = next(
                (figures.first_step for figures in moment.reported if figures.round == world.round), None
            )
            newest = moment.world if moment.world.round == world.round else world
            where = f", {newest.resume.tier.origin}" if newest.resume else ""
            return "" if first is None else f"from step {first} on{where}"
        case JobState.RECOVERING:
            failure = _news(moment)
            return in_one_line(failure) if failure is not None else world.reason
        case _:
            return world.reason
