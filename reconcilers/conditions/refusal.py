"""Condition `PodsAccepted`: what the API server said to a job's Pods before any was made. Pure.

The trial (`worker/trial.py`) is made once a generation of the job. Its answer is in the condition,
so that neither another look nor another leader asks again. No refusal is final, though: what a policy forbids
may be allowed later, who gave no answer may give one, and what is invalid may be so by a webhook that changes
Pods. A trial may take as long as a call may, and the look waits for it: so a job that has begun asks only of
what is refused, and rarely; and so does one that is suspended, which may wait for days.

While a job has not begun, a refusal keeps it from making its workers, and fails it after
`FAIL_AFTER_SECONDS`. That is time to correct the job in place, and for what is applied beside it (a
ServiceAccount, a policy) to arrive; and it is short enough for whoever waits for the job's end. A job that
has begun goes on: an edit of its template concerns its next Pods alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from crds.elasticjob import ElasticJob
from crds.model import Condition, ConditionStatus
from reconcilers.observed.conditions import (
    condition_of,
    is_false,
    is_same,
    with_condition,
)
from reconcilers.runtime.acts import Event
from reconcilers.worker.trial import Answer, Trial

PODS_ACCEPTED = "PodsAccepted"
FAIL_AFTER_SECONDS = 120.0
RETRY_SECONDS = 10.0
SLOW_RETRY_SECONDS: dict[str, float] = {Answer.FORBIDDEN: 300.0, Answer.INVALID: 3_600.0}
"""Of a job that has begun, or is suspended: its looks are not to wait for a webhook that hangs."""
REFUSED = (Answer.INVALID, Answer.FORBIDDEN)
AGAIN = (Answer.FORBIDDEN, Answer.NONE)

HURRY = f". Correct that within {FAIL_AFTER_SECONDS:g} s, or the job fails"
NO_HURRY = ". The Pods that exist go on, but no new one can be created; asked again every {minutes:g} minutes"
HELD = ". The job is suspended, and could not begin; asked again every {minutes:g} minutes"

_STATUS = {
    Answer.ACCEPTED: ConditionStatus.TRUE,
    Answer.INVALID: ConditionStatus.FALSE,
    Answer.FORBIDDEN: ConditionStatus.FALSE,
    Answer.UNSUPPORTED: ConditionStatus.UNKNOWN,
    Answer.NONE: ConditionStatus.UNKNOWN,
}


def is_due(job: ElasticJob, asked_seconds_ago: float | None, has_begun: bool) -> bool:
    """Whether the Pods are to be tried now.

    Args:
        asked_seconds_ago: how long ago the last trial had its answer; None if we know of none.
    """
    known = _known(job)
    if known is None or known.observed_generation != job.metadata.generation:
        return True
    pace = _pace_seconds(job, known.reason, has_begun)
    if asked_seconds_ago is None:
        return pace is not None and not _may_wait(job, has_begun)
    return pace is not None and asked_seconds_ago >= pace


def seconds_to_look(job: ElasticJob, has_begun: bool) -> float | None:
    """Until a job whose Pods are refused is to be looked at again; None if they are not."""
    known = _known(job)
    if known is None or not is_refused(job):
        return None
    return _pace_seconds(job, known.reason, has_begun) or RETRY_SECONDS


def _may_wait(job: ElasticJob, has_begun: bool) -> bool:
    return has_begun or job.spec.suspend


def _pace_seconds(job: ElasticJob, answer: str, has_begun: bool) -> float | None:
    """From one trial to the next; None of an answer that stays. What is invalid of a job that is to begin
    fails it before long."""
    if _may_wait(job, has_begun):
        return SLOW_RETRY_SECONDS.get(answer)
    return RETRY_SECONDS if answer in AGAIN else None


def with_trial(job: ElasticJob, trial: Trial | None, has_begun: bool, now: datetime) -> ElasticJob:
    """The job with what a trial came to in its conditions. The time that a refusal has begins anew with each
    generation: who corrects one thing after the other is not to run out of it."""
    if trial is None:
        return job
    conditions, known = job.status.conditions, _known(job)
    if known is not None and known.observed_generation != job.metadata.generation:
        conditions = [condition for condition in conditions if condition is not known]
    elif is_refused(job) and trial.answer is Answer.NONE:
        return job
    message = trial.message
    if trial.answer in REFUSED:
        message += _what_next(job, trial.answer, has_begun)
    status = _STATUS[trial.answer]
    conditions = with_condition(conditions, PODS_ACCEPTED, status, trial.answer.value, message, now)
    return job.with_status(conditions=conditions)


def _what_next(job: ElasticJob, answer: Answer, has_begun: bool) -> str:
    if not _may_wait(job, has_begun):
        return HURRY
    return (NO_HURRY if has_begun else HELD).format(minutes=SLOW_RETRY_SECONDS[answer] / 60)


def told(before: ElasticJob, after: ElasticJob) -> Iterator[Event]:
    """An Event when the Pods are refused, or refused for another reason."""
    old, new = _known(before), _known(after)
    if new is None or new.status is not ConditionStatus.FALSE:
        return
    if old is None or not is_same(old, new) or old.observed_generation != after.metadata.generation:
        yield Event("Warning", new.reason, new.message)


def is_refused(job: ElasticJob) -> bool:
    return is_false(job.status.conditions, PODS_ACCEPTED)


def seconds_to_failure(job: ElasticJob, now: datetime) -> float | None:
    """Until a job that has not begun fails for its refused Pods; None if they are not refused."""
    known = _known(job)
    if known is None or not is_refused(job):
        return None
    since = max(known.last_transition_time, job.status.start_time or known.last_transition_time)
    return FAIL_AFTER_SECONDS - (now - since).total_seconds()


def ending(job: ElasticJob) -> tuple[str, str]:
    """Reason and message of a job that fails for its refused Pods."""
    known = _known(job)
    assert known is not None
    message = known.message.removesuffix(HURRY)
    return known.reason, f"no Pod could be made within {FAIL_AFTER_SECONDS:g} s: {message}"


def _known(job: ElasticJob) -> Condition | None:
    return condition_of(job.status.conditions, PODS_ACCEPTED)
