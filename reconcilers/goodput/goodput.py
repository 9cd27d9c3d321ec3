"""Goodput: the effective training time in each round, as a share of the job's life (docs/metrics.md). Pure.

Reports of earlier incarnations and Pods count, too, while they exist.
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
    """Return each round's figures with the highest step, from `since` on; of equals, the lowest worker's."""
    best: dict[int, RoundProgress] = {}
    for report in _reports(workers):
        for figures in reversed(report.rounds):
            if figures.round < since:
                break
            so_far = best.get(figures.round)
            if so_far is None or figures.last_step > so_far.last_step:
                best[figures.round] = figures
    return [best[round_] for round_ in sorted(best)]


def first_step_at(round_: int, workers: Sequence[ElasticWorker]) -> datetime | None:
    """Return when the round's first step was reported, by the agents' clocks; None if that is unknown."""
    times = []
    for report in _reports(workers):
        figures = next((each for each in report.rounds if each.round == round_), None)
        progress = report.progress
        if figures is not None and progress is not None and progress.step == figures.last_step:
            times.append(progress.time - timedelta(seconds=figures.stepping_seconds))
    return min(times, default=None)


def last_step_at(round_: int, workers: Sequence[ElasticWorker]) -> datetime | None:
    """Return when the round's last step was reported; None without one."""
    return max(
        (
            report.progress.time
            for report in _reports(workers)
            if report.progress is not None and any(each.round == round_ for each in report.rounds[-1:])
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


def with_comparable_steps(job: ElasticJob, workers: Workers) -> Workers:
    """Return the workers, without agents' counts of steps if the script reports its own on any rank.

    A script that reports its steps only on rank 0 has numbers of its own, beside which counted workers might
    seem to lag behind.
    """
    reporting, goodput = workers.reporting_steps, job.status.goodput
    counted = {w.metadata.uid for w in reporting if w.status.agent and w.status.agent.rounds[-1].counted}
    latest = goodput.latest if goodput is not None else None
    has_own_steps = len(counted) < len(reporting) or (latest is not None and not latest.counted)
    if not counted or not has_own_steps:
        return workers
    return Workers(_without_steps(w) if w.metadata.uid in counted else w for w in workers)


def _without_steps(worker: ElasticWorker) -> ElasticWorker:
    report = worker.status.agent
    assert report is not None
    progress, failure = report.progress, report.failure
    if progress is not None:  # it may have reported a checkpoint
        saved = progress.checkpoint_step
        progress = None if saved is None else replace(progress, step=saved)
    if failure is not None:
        stacks = tuple(replace(stack, step=None) for stack in failure.stacks)
        failure = replace(failure, step=None, stacks=stacks)
    report = replace(report, progress=progress, rounds=(), failure=failure)
    return worker.model_copy(update={"status": worker.status.model_copy(update={"agent": report})})


AFTER_A_FAILURE = (JobState.RECOVERING, JobState.REFORMING, JobState.DOWN)
"""States in which a job is because of a failure."""
FALSE_START = timedelta(seconds=30)
"""A script that reports no steps counts as training while it runs, unless it fails within this time."""
NOT_YET_TRAINING = (JobState.RECOVERING, JobState.REFORMING, JobState.FORMING)
"""States of a formed world before its first step."""
DIGITS = 6
"""Decimal places of seconds, so that sums stay readable."""
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
    """Return a job's first account, which starts with its submission."""
    return Goodput(state=JobState.PENDING, since=job.metadata.creation_timestamp or now)


def goodput_now(job: ElasticJob, workers: Iterable[ElasticWorker], now: datetime) -> Goodput:
    """Return the account with all reports since it was written, and with the present ratio."""
    written = job.status.goodput
    if written is not None and job.status.finished:
        return written
    goodput = written or begun(job, now)
    reporting = with_comparable_steps(job, Workers(workers)).reporting_steps
    rounds = reported_rounds(reporting, since=goodput.round)
    return with_ratio(with_rounds(goodput, rounds), job, now)


def seconds_by_state(goodput: Goodput, until: datetime) -> dict[JobState, float]:
    """Return the seconds by state with the present one's; `until` is now, or the end of a finished job."""
    seconds = in_state(goodput, goodput.state, until).seconds
    return {state: seconds[state.value] for state in JobState if state.value in seconds}


def lost_seconds(goodput: Goodput) -> float:
    """Return the time lost by failures, up to the last state: from each until training went on."""
    return sum(goodput.seconds.get(state.value, 0.0) for state in AFTER_A_FAILURE)


def in_state(goodput: Goodput, state: JobState, at: datetime) -> Goodput:
    """Enter a state at `at`, but never before the last one began."""
    at = max(at, goodput.since)
    return _spent(goodput, goodput.state, (at - goodput.since).total_seconds()).model_copy(
        update={"state": state, "since": at}
    )


def reassigned(goodput: Goodput, state: JobState, until: datetime) -> Goodput:
    """Count the time from `since` to `until` for this state, instead of the assumed one."""
    until = max(until, goodput.since)
    seconds = (until - goodput.since).total_seconds()
    return _spent(goodput, state, seconds).model_copy(update={"since": until})


def moved(goodput: Goodput, source: JobState, target: JobState, seconds: float) -> Goodput:
    """Move counted time from one state to another; at most as much as is counted."""
    seconds = min(seconds, goodput.seconds.get(source.value, 0.0))
    return _spent(_spent(goodput, source, -seconds), target, seconds)


def with_rounds(goodput: Goodput, rounds: Sequence[RoundProgress]) -> Goodput:
    """Add the figures of the last round in the account and of later ones.

    When a script reports its first own step, steps that agents counted for it are dropped and no longer
    accepted, since the numbers are not comparable.
    """
    for figures in rounds:
        latest = goodput.latest
        if latest is not None and figures.counted and not latest.counted:
            continue
        if latest is not None and latest.counted and not figures.counted:
            goodput = goodput.model_copy(update=_NO_STEPS)
        if figures.round > goodput.round:
            goodput = _with_new_round(goodput, figures)
        elif figures.round == goodput.round and goodput.latest is not None:
            goodput = _corrected(goodput, goodput.latest, figures)
    return goodput


def effective_seconds(goodput: Goodput, *, of_group: bool = False) -> float | None:
    """Return steps kept × seconds per step; None before two steps of one round were reported.

    Args:
        of_group: the account is a replica group's. Others make steps without the group, so only its timed
            steps count as kept.
    """
    if goodput.first_step is None or goodput.last_step is None or not goodput.steps_timed:
        return None
    kept = goodput.last_step - goodput.first_step + 1
    if of_group:
        kept = max(0, goodput.steps_timed - goodput.steps_redone)
    return kept * goodput.stepping_seconds / goodput.steps_timed


def with_ratio(goodput: Goodput, job: ElasticJob, now: datetime) -> Goodput:
    """Set the ratio of effective time to the time since submission, at most 1 in spite of wrong clocks."""
    effective = effective_seconds(goodput, of_group=group_of(job) is not None)
    submitted = job.metadata.creation_timestamp
    if effective is None or submitted is None or now <= submitted:
        return goodput.model_copy(update={"ratio": None})
    ratio = effective / (now - submitted).total_seconds()
    return goodput.model_copy(update={"ratio": round(min(1.0, ratio), DIGITS)})


def with_steps_of(account: Goodput, job: ElasticJob, groups: Sequence[Goodput], now: datetime) -> Goodput:
    """Return the account of a job with replica groups, with its steps by the accounts of its groups.

    Its steps are those of the group with the highest step. Their time is the average training time of the
    groups, each at most the job's. So the ratio is the share of effective training in the time of all wanted
    groups.
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


def _corrected(goodput: Goodput, counted: RoundProgress, figures: RoundProgress) -> Goodput:
    """Replace the figures of the last counted round by later ones, with the same first step.

    Its new steps up to the highest step ever count as redone.
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
    """Whether the step from which the last start went on is unknown, so that goodput is a lower bound."""
    return (
        goodput is not None
        and goodput.latest is not None
        and goodput.latest.counted is True
        and (goodput.latest.start_unknown is True or goodput.latest.first_step == 1)
        and goodput.steps_redone > 0
    )
