"""Warning `PodsNotAccepted`: the API server's answer to a job's Pods before any was made. Pure.

The trial (`worker/trial.py`) is made once a generation of the job (`status.observedGeneration`), so that
neither another look nor another leader repeats it. No refusal is final, though: what a policy forbids may be
allowed later, a server that gave no answer may give one, and what is invalid may be so by a webhook that
changes Pods. A trial may take as long as a call may, and the look waits for it: so for a job that has begun,
or is suspended, which may last for days, it is repeated only after a refusal, and rarely.

While a job has not begun, a refusal keeps it from making its workers, and fails it after
`FAIL_AFTER_SECONDS`. That is time to correct the job in place, and for what is applied beside it (a
ServiceAccount, a policy) to arrive; and it is short enough for people who wait for the job's end. A job that
has begun goes on: an edit of its template concerns its next Pods alone.
"""

from __future__ import annotations

from datetime import datetime

from crds.elasticjob import ElasticJob
from crds.job_status import JobWarning
from reconcilers.observed.conditions import warning_of
from reconcilers.worker.trial import Answer, Trial

PODS_NOT_ACCEPTED = "PodsNotAccepted"
FAIL_AFTER_SECONDS = 120.0
RETRY_SECONDS = 10.0
SLOW_RETRY_SECONDS: dict[str, float] = {Answer.FORBIDDEN: 300.0, Answer.INVALID: 3_600.0}
"""Of a job that has begun, or is suspended: its looks are not to wait for a webhook that hangs."""
REFUSED = (Answer.INVALID, Answer.FORBIDDEN)
AGAIN = (Answer.FORBIDDEN, Answer.NONE)

NOT_BEGUN = (
    ". Correct the job in place within {seconds:g} s; after that it fails, and has to be created again"
)
HAS_BEGUN = (
    ". The Pods that exist go on, but no new one can be created; tried again every {minutes:g} minutes"
)
SUSPENDED = ". The job is suspended, and could not begin; tried again every {minutes:g} minutes"


def is_due(job: ElasticJob, trial_age_seconds: float | None, has_begun: bool) -> bool:
    """Whether a trial of the Pods is due now.

    Args:
        trial_age_seconds: time since the last trial had its answer; None if that is unknown.
    """
    if job.status.observed_generation != job.metadata.generation:
        return True
    pace = _pace_seconds(job, _warning(job), has_begun)
    if trial_age_seconds is None:
        return pace is not None and not _may_wait(job, has_begun)
    return pace is not None and trial_age_seconds >= pace


def seconds_to_look(before: JobWarning | None, job: ElasticJob, has_begun: bool) -> float | None:
    """Return the time to the next look at a job whose Pods are refused; None if they are not."""
    return (_pace_seconds(job, before, has_begun) or RETRY_SECONDS) if is_refused(before) else None


def _may_wait(job: ElasticJob, has_begun: bool) -> bool:
    return has_begun or job.spec.suspend


def _pace_seconds(job: ElasticJob, before: JobWarning | None, has_begun: bool) -> float | None:
    """Return the seconds from one trial to the next; None after an answer that stays. What is invalid in a
    job that has not begun fails it before long."""
    answer = None if before is None else before.reason
    if answer is not None and _may_wait(job, has_begun):
        return SLOW_RETRY_SECONDS.get(answer)
    return RETRY_SECONDS if answer in AGAIN else None


def judge(
    job: ElasticJob, trial: Trial | None, has_begun: bool, now: datetime, *, has_pods: bool = False
) -> JobWarning | None:
    """Judges the answer to a trial, if there was one in this look.

    The time of a refusal starts again with each generation: there is time to correct one thing after the
    other.

    Args:
        has_pods: all its Pods are there, of the present template: a trial that said nothing is answered.
    """
    before = _warning(job)
    if trial is None:
        return before if is_refused(before) or not has_pods else None
    if job.status.observed_generation != job.metadata.generation:
        before = None
    elif is_refused(before) and trial.answer is Answer.NONE:
        return before
    if trial.answer is Answer.ACCEPTED:
        return None
    message = trial.message
    if trial.answer in REFUSED:
        message += _what_next(job, trial.answer, has_begun)
    goes_on = before is not None and is_refused(before) == (trial.answer in REFUSED)
    return JobWarning(
        type=PODS_NOT_ACCEPTED,
        reason=trial.answer.value,
        message=message,
        since=before.since if before is not None and goes_on else now.replace(microsecond=0),
    )


def _what_next(job: ElasticJob, answer: Answer, has_begun: bool) -> str:
    if not _may_wait(job, has_begun):
        return NOT_BEGUN.format(seconds=FAIL_AFTER_SECONDS)
    return (HAS_BEGUN if has_begun else SUSPENDED).format(minutes=SLOW_RETRY_SECONDS[answer] / 60)


def is_refused(before: JobWarning | None) -> bool:
    return before is not None and before.reason in REFUSED


def seconds_to_failure(before: JobWarning | None, job: ElasticJob, now: datetime) -> float | None:
    """Return the time until a job that has not begun fails for its refused Pods; None if none is refused."""
    if before is None or not is_refused(before):
        return None
    since = max(before.since, job.status.start_time or before.since)
    return FAIL_AFTER_SECONDS - (now - since).total_seconds()


def ending(before: JobWarning | None) -> tuple[str, str]:
    """Reason and message of a job that fails for its refused Pods."""
    assert before is not None and before.reason is not None
    return before.reason, f"no Pod could be made: {before.message}"


def _warning(job: ElasticJob) -> JobWarning | None:
    return warning_of(job.status.warnings, PODS_NOT_ACCEPTED)
