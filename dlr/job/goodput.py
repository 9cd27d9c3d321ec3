"""A job's goodput and its time by state (docs/metrics.md), by the controller's formulas, up to now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from pydantic import ValidationError

from controller.wording import counted
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.grouping import is_grouped
from crds.job_status import Goodput, JobState
from dlr.job.report import by_job, is_finished
from dlr.job.wording import duration, parse_time
from dlr.kube.api import JSON
from reconcilers.goodput.goodput import goodput_now, seconds_by_state, start_is_unknown, with_steps_of

LEAST_SECONDS = 0.5
"""Shortest time to show."""


def account_of(
    job: JSON, workers: Sequence[JSON], now: datetime, groups: Sequence[JSON] = ()
) -> Goodput | None:
    """Return the job's account up to now; None without one, or if this version cannot read it.

    Only worker 0 of each job matters, since ranks step together; a list of all jobs reads only that one.

    Args:
        groups: the job's replica groups, whose accounts add up to the job's.
    """
    stored = (job.get("status") or {}).get("goodput")
    if not stored:
        return None
    try:
        known = Goodput.model_validate(stored)
        if is_finished(job):
            return known
        if is_grouped(job):
            return _of_groups(known, job, workers, now, groups)
        leads = [ElasticWorker.model_validate(each) for each in workers if _is_lead(each)]
        account = goodput_now(ElasticJob.model_validate(job), leads, now)
        # While it trains, the ratio at the last report is more accurate than one that falls until the next.
        has_news = account.steps_timed != known.steps_timed or known.state is not JobState.TRAINING
        return account if has_news else known
    except (KeyError, ValidationError):
        return None


def _of_groups(
    before: Goodput, job: JSON, workers: Sequence[JSON], now: datetime, groups: Sequence[JSON]
) -> Goodput:
    """Return the account with the steps that the groups have reported by now."""
    of_group = by_job(workers)
    accounts = (account_of(group, of_group.get(group["metadata"]["name"], ()), now) for group in groups)
    there = [each for each in accounts if each is not None]
    unknown = next((each.latest for each in there if start_is_unknown(each)), None)
    found = with_steps_of(before, ElasticJob.model_validate(job), there, now)
    return found.model_copy(update={"latest": unknown})


def _is_lead(worker: JSON) -> bool:
    return (worker["spec"]["type"], worker["spec"]["index"]) == (names.WORKER, 0)


def goodput_line(account: Goodput) -> str:
    """Return the ratio, and the number of repeated steps; empty before the first steps."""
    if account.ratio is None or account.first_step is None or account.last_step is None:
        return ""
    line = f"{account.ratio:.1%} of the time since submission"
    if not account.steps_redone:
        return line
    trained = account.last_step - account.first_step + 1 + account.steps_redone
    if start_is_unknown(account):
        return f"at least {line}; how many of {trained} trained steps are repeats is unknown"
    return f"{line}; {account.steps_redone} of {trained} trained steps are repeats"


def redone(account: Goodput | None) -> str:
    """Return how many steps were trained again, such as `17 steps`; empty if none were."""
    if account is None or not account.steps_redone:
        return ""
    if start_is_unknown(account):
        return "an unknown number of steps"
    return counted(account.steps_redone, "step")


def time_by_state(account: Goodput, job: JSON, now: datetime) -> dict[str, float]:
    """Return the seconds since submission by state, up to now or the job's end."""
    until = parse_time((job.get("status") or {}).get("completionTime")) or now
    found = seconds_by_state(account, until)
    return {state.value: seconds for state, seconds in found.items() if seconds >= LEAST_SECONDS}


def time_line(seconds: Mapping[str, float]) -> str:
    """List states with their times, the longest first."""
    total = sum(seconds.values())
    return ", ".join(
        f"{state} {duration(value)} ({value / total:.0%})"
        for state, value in sorted(seconds.items(), key=lambda item: -item[1])
    )
