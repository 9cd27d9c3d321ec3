"""Goodput: what a job trained in each round, and what share of its life that was (docs/metrics.md). Pure.

Reports of earlier incarnations and Pods count too, as long as they are there: what they say has happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from crds import names
from crds.agent_report import AgentReport, AgentState, RoundProgress
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.job_status import Goodput, JobState
from crds.rendezvous import Rendezvous
from reconcilers.observed.groups import group_of
from reconcilers.observed.worker_state import current_report
from reconcilers.observed.workers import Workers


def reported_rounds(workers: Sequence[ElasticWorker], since: int = 0) -> list[RoundProgress]:
    """Returns by round, from `since` on, the figures that are furthest; of equals, the lowest worker's."""
    best: dict[int, RoundProgress] = {}
    for report in _reports(workers):
        for told in reversed(report.rounds):
            if told.round < since:
                break
            known = best.get(told.round)
            if known is None or told.last_step > known.last_step:
                best[told.round] = told
    return [best[round_] for round_ in sorted(best)]


def first_step_at(round_: int, workers: Sequence[ElasticWorker]) -> datetime | None:
    """When the round's first step was told, by the agents' clocks; None if that is not known."""
    times = []
    for report in _reports(workers):
        told = next((told for told in report.rounds if told.round == round_), None)
        progress = report.progress
        if told is not None and progress is not None and progress.step == told.last_step:
            times.append(progress.time - timedelta(seconds=told.stepping_seconds))
    return min(times, default=None)


def last_step_at(round_: int, workers: Sequence[ElasticWorker]) -> datetime | None:
    """When the last step that was told in the round was told; None if none was."""
    return max(
        (
            report.progress.time
            for report in _reports(workers)
            if report.progress is not None and any(told.round == round_ for told in report.rounds[-1:])
        ),
        default=None,
    )


def all_run(world: Rendezvous, workers: Sequence[ElasticWorker]) -> bool:
    """Whether all members report that the processes of the world's round run, or have ended well."""
    running = {
        worker.spec.index
        for worker in workers
        if worker.spec.type == names.WORKER and _runs(worker, world.round)
    }
    return running >= set(world.members)


def _runs(worker: ElasticWorker, round_: int) -> bool:
    report = current_report(worker)
    return (
        report is not None
        and report.observed_round == round_
        and report.state in (AgentState.RUNNING, AgentState.SUCCEEDED)
    )


def _reports(workers: Sequence[ElasticWorker]) -> list[AgentReport]:
    training = [worker for worker in workers if worker.spec.type == names.WORKER]
    training.sort(key=lambda worker: worker.spec.index)
    return [worker.status.agent for worker in training if worker.status.agent is not None]


def tells_steps(job: ElasticJob, workers: Iterable[ElasticWorker]) -> bool:
    """Whether the script is known to tell its steps, on some rank or other."""
    goodput = job.status.goodput
    known = goodput is not None and goodput.latest is not None and not goodput.latest.counted
    return known or any(_tells(worker.status.agent) for worker in workers)


def counts_steps(report: AgentReport | None) -> bool:
    """Whether an agent counts: its rounds are all of one kind."""
    return report is not None and bool(report.rounds) and report.rounds[-1].counted is True


def with_comparable_steps(job: ElasticJob, workers: Workers) -> Workers:
    """The workers, without the counts of those beside whom others tell their steps.

    A script that tells its steps on rank 0 alone goes by numbers of its own: beside them, whoever was counted
    might seem to lag behind.
    """
    telling = workers.reporting_steps
    counted = {worker.metadata.uid for worker in telling if counts_steps(worker.status.agent)}
    if not counted or not tells_steps(job, telling):
        return workers
    return Workers(_without_steps(w) if w.metadata.uid in counted else w for w in workers)


def _tells(report: AgentReport | None) -> bool:
    return report is not None and bool(report.rounds) and not report.rounds[-1].counted


def _without_steps(worker: ElasticWorker) -> ElasticWorker:
    report = worker.status.agent
    assert report is not None
    progress, failure = report.progress, report.failure
    if progress is not None:  # it may have told a checkpoint
        saved = progress.checkpoint_step
        progress = None if saved is None else replace(progress, step=saved)
    if failure is not None:
        stacks = tuple(replace(stack, step=None) for stack in failure.stacks)
        failure = replace(failure, step=None, stacks=stacks)
    said = replace(report, progress=progress, rounds=(), failure=failure)
    return worker.model_copy(update={"status": worker.status.model_copy(update={"agent": said})})


AFTER_A_FAILURE = (JobState.RECOVERING, JobState.REFORMING, JobState.DOWN)
"""States in which a job is because of a failure."""
FALSE_START = timedelta(seconds=30)
"""A script that reports no steps counts as training while it runs, unless it fails within this time."""
NOT_YET_TRAINING = (JobState.RECOVERING, JobState.REFORMING, JobState.FORMING)
"""States of a formed world before its first step."""
DIGITS = 6
"""Of seconds, so that sums stay readable."""
_NO_STEPS = {
    "first_step": None,
    "last_step": None,
    "steps_redone": 0,
    "steps_timed": 0,
    "stepping_seconds": 0.0,
    "round": 0,
    "latest": None,
}


def begun(job: ElasticJob, now: datetime) -> Goodput:
    """A job's account starts with its submission."""
    return Goodput(state=JobState.PENDING, since=job.metadata.creation_timestamp or now)


def goodput_now(job: ElasticJob, workers: Iterable[ElasticWorker], now: datetime) -> Goodput:
    """The account with all that the job's workers have told since it was written, and the ratio as of now."""
    known = job.status.goodput
    if known is not None and job.status.finished:
        return known
    goodput = known or begun(job, now)
    telling = with_comparable_steps(job, Workers(workers)).reporting_steps
    told = reported_rounds(telling, since=goodput.round)
    return with_ratio(with_rounds(goodput, told), job, now)


def seconds_by_state(goodput: Goodput, until: datetime) -> dict[JobState, float]:
    """Adds the present state's time; `until` is now, or the end of a job that has finished."""
    seconds = in_state(goodput, goodput.state, until).seconds
    return {state: seconds[state.value] for state in JobState if state.value in seconds}


def lost_seconds(goodput: Goodput) -> float:
    """What failures have cost, up to the last state: the time from each until training went on."""
    return sum(goodput.seconds.get(state.value, 0.0) for state in AFTER_A_FAILURE)


def in_state(goodput: Goodput, state: JobState, at: datetime) -> Goodput:
    """Enters that state at `at`, but never before the last one began."""
    at = max(at, goodput.since)
    return _spent(goodput, goodput.state, (at - goodput.since).total_seconds()).model_copy(
        update={"state": state, "since": at}
    )


def reassigned(goodput: Goodput, state: JobState, until: datetime) -> Goodput:
    """The time from `since` until then was spent in another state than was thought."""
    until = max(until, goodput.since)
    seconds = (until - goodput.since).total_seconds()
    return _spent(goodput, state, seconds).model_copy(update={"since": until})


def moved(goodput: Goodput, source: JobState, target: JobState, seconds: float) -> Goodput:
    """Time that is counted in one state already was spent in another; no more than is counted."""
    seconds = min(seconds, goodput.seconds.get(source.value, 0.0))
    return _spent(_spent(goodput, source, -seconds), target, seconds)


def with_rounds(goodput: Goodput, told: Sequence[RoundProgress]) -> Goodput:
    """Adds all that was reported of the last round in the account and of later ones.

    The steps that agents counted for a script are forgotten when it tells the first itself, and none are
    taken afterwards: the numbers do not compare.
    """
    for figures in told:
        latest = goodput.latest
        if latest is not None and figures.counted and not latest.counted:
            continue
        if latest is not None and latest.counted and not figures.counted:
            goodput = goodput.model_copy(update=_NO_STEPS)
        if figures.round > goodput.round:
            goodput = _with_new_round(goodput, figures)
        elif figures.round == goodput.round and goodput.latest is not None:
            goodput = _put_right(goodput, goodput.latest, figures)
    return goodput


def effective_seconds(goodput: Goodput, *, of_group: bool = False) -> float | None:
    """Steps kept × seconds a step; None before two steps of one round were told.

    Args:
        of_group: the account is that of a replica group, without which the others make steps; so those that
            are kept are its timed ones.
    """
    if goodput.first_step is None or goodput.last_step is None or not goodput.steps_timed:
        return None
    kept = goodput.last_step - goodput.first_step + 1
    if of_group:
        kept = max(0, goodput.steps_timed - goodput.steps_redone)
    return kept * goodput.stepping_seconds / goodput.steps_timed


def with_ratio(goodput: Goodput, job: ElasticJob, now: datetime) -> Goodput:
    """Over the time since submission; no more than all of it, whatever workers and clocks say."""
    effective = effective_seconds(goodput, of_group=group_of(job) is not None)
    submitted = job.metadata.creation_timestamp
    if effective is None or submitted is None or now <= submitted:
        return goodput.model_copy(update={"ratio": None})
    ratio = effective / (now - submitted).total_seconds()
    return goodput.model_copy(update={"ratio": round(min(1.0, ratio), DIGITS)})


def with_steps_of(account: Goodput, job: ElasticJob, groups: Sequence[Goodput], now: datetime) -> Goodput:
    """Return the account of a job with replica groups, with its steps by the accounts of its groups.

    Its steps are those of the group that got furthest. They took what the groups trained on an average, each
    no longer than the job did. So the ratio is the share of the time of all wanted groups that was effective
    training.
    """
    first = min((each.first_step for each in groups if each.first_step is not None), default=None)
    last = max((each.last_step for each in groups if each.last_step is not None), default=None)
    if first is None or last is None:
        return account
    most = seconds_by_state(account, now).get(JobState.TRAINING, 0.0)
    trained = sum(min(most, effective_seconds(each, of_group=True) or 0.0) for each in groups)
    figures = {
        "first_step": first,
        "last_step": last,
        "steps_redone": max(account.steps_redone, *(each.steps_redone for each in groups)),
        "steps_timed": last - first + 1,
        "stepping_seconds": round(trained / max(1, job.group_count), DIGITS),
    }
    return with_ratio(account.model_copy(update=figures), job, now)


def _spent(goodput: Goodput, state: JobState, seconds: float) -> Goodput:
    if not seconds:
        return goodput
    spent = dict(goodput.seconds)
    spent[state.value] = round(spent.get(state.value, 0.0) + seconds, DIGITS)
    return goodput.model_copy(update={"seconds": spent})


def _with_new_round(goodput: Goodput, figures: RoundProgress) -> Goodput:
    before = goodput.last_step
    redone = 0 if before is None else max(min(before, figures.last_step) + 1 - figures.first_step, 0)
    return _counted(goodput, figures, steps_redone=goodput.steps_redone + redone)


def _put_right(goodput: Goodput, counted: RoundProgress, figures: RoundProgress) -> Goodput:
    """Later figures of the round that was counted last. Its first step was known from the beginning.

    As long as it is below the highest step, what it trained since is trained again.
    """
    if figures.last_step <= counted.last_step:
        return goodput
    highest = goodput.last_step if goodput.last_step is not None else counted.last_step
    redone = max(min(highest, figures.last_step) - counted.last_step, 0)
    without = goodput.model_copy(
        update={
            "steps_timed": goodput.steps_timed - (counted.last_step - counted.first_step),
            "stepping_seconds": goodput.stepping_seconds - counted.stepping_seconds,
        }
    )
    return _counted(without, figures, steps_redone=goodput.steps_redone + redone)


def _counted(goodput: Goodput, figures: RoundProgress, steps_redone: int) -> Goodput:
    first = (goodput.first_step, figures.first_step)
    last = (goodput.last_step, figures.last_step)
    return goodput.model_copy(
        update={
            "first_step": min(step for step in first if step is not None),
            "last_step": max(step for step in last if step is not None),
            "steps_redone": steps_redone,
            "steps_timed": goodput.steps_timed + figures.last_step - figures.first_step,
            "stepping_seconds": round(max(goodput.stepping_seconds, 0.0) + figures.stepping_seconds, DIGITS),
            "round": figures.round,
            "latest": figures,
        }
    )


def start_is_unknown(goodput: Goodput | None) -> bool:
    """Return whether the step from which the last start went on is unknown: goodput is a lower bound then."""
    return (
        goodput is not None
        and goodput.latest is not None
        and goodput.latest.counted is True
        and (goodput.latest.start_unknown is True or goodput.latest.first_step == 1)
        and goodput.steps_redone > 0
    )
