"""Condition `PodsAccepted`: the API server's answer to a job's Pods before any was made. Pure.

The trial (`worker/trial.py`) is made once a generation of the job. Its answer is in the condition,
so that neither another look nor another leader asks again. No refusal is final, though: what a policy forbids
may be allowed later, who gave no answer may give one, and what is invalid may be so by a webhook that changes
Pods. A trial may take as long as a call may, and the look waits for it: so a job that has begun asks only of
what is refused, and rarely; and so does one that is suspended, which may wait for days.

While a job has not begun, a refusal keeps it from making its workers, and fails it after
`FAIL_AFTER_SECONDS`. That is time to correct the job in place, and for what is applied beside it (a
ServiceAccount, a policy) to arrive; and it is short enough for people who wait for the job's end. A job that
has begun goes on: an edit of its template concerns its next Pods alone.
"""

from __future__ import annotations

from datetime import datetime

from crds.elasticjob import ElasticJob
from crds.model import Condition, ConditionStatus
from reconcilers.observed.conditions import State, condition_of, stated
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


def seconds_to_look(known: Condition | None, job: ElasticJob, has_begun: bool) -> float | None:
    """Until a job whose Pods are refused is to be looked at again; None if they are not."""
    if known is None or not is_refused(known):
        return None
    return _pace_seconds(job, known.reason, has_begun) or RETRY_SECONDS


def _may_wait(job: ElasticJob, has_begun: bool) -> bool:
    return has_begun or job.spec.suspend


def _pace_seconds(job: ElasticJob, answer: str, has_begun: bool) -> float | None:
    """Return the seconds from one trial to the next; None after an answer that stays. What is invalid in a
    job that has not begun fails it before long."""
    if _may_wait(job, has_begun):
        return SLOW_RETRY_SECONDS.get(answer)
    return RETRY_SECONDS if answer in AGAIN else None


def judge(job: ElasticJob, trial: Trial | None, has_begun: bool, now: datetime) -> Condition | None:
    """Judges the answer to a trial, if there was one in this look.

    The time of a refusal starts again with each generation: there is time to correct one thing after the
    other.
    """
    known = _known(job)
    if trial is None:
        return known
    if known is not None and known.observed_generation != job.metadata.generation:
        known = None
    elif is_refused(known) and trial.answer is Answer.NONE:
        return known
    message = trial.message
    if trial.answer in REFUSED:
        message += _what_next(job, trial.answer, has_begun)
    return stated(known, PODS_ACCEPTED, State(_STATUS[trial.answer], trial.answer.value, message), now)


def _what_next(job: ElasticJob, answer: Answer, has_begun: bool) -> str:
    if not _may_wait(job, has_begun):
        return HURRY
    return (NO_HURRY if has_begun else HELD).format(minutes=SLOW_RETRY_SECONDS[answer] / 60)


def is_refused(known: Condition | None) -> bool:
    return known is not None and known.status is ConditionStatus.FALSE


def seconds_to_failure(known: Condition | None, job: ElasticJob, now: datetime) -> float | None:
    """Until a job that has not begun fails for its refused Pods; None if they are not refused."""
    if known is None or not is_refused(known):
        return None
    since = max(known.last_transition_time, job.status.start_time or known.last_transition_time)
    return FAIL_AFTER_SECONDS - (now - since).total_seconds()


def ending(known: Condition | None) -> tuple[str, str]:
    """Reason and message of a job that fails for its refused Pods."""
    assert known is not None
    message = known.message.removesuffix(HURRY)
    return known.reason, f"no Pod could be made within {FAIL_AFTER_SECONDS:g} s: {message}"


def _known(job: ElasticJob) -> Condition | None:
    return condition_of(job.status.conditions, PODS_ACCEPTED)
