"""Condition `StepsKnown`: whether training reports its steps, or agents count them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.job_status import JobState
from crds.model import Condition, ConditionStatus
from reconcilers.conditions.facts import Facts
from reconcilers.goodput.goodput import seconds_by_state, start_is_unknown
from reconcilers.goodput.rounds import counts_steps, tells_steps
from reconcilers.observed.conditions import NextState, State, condition_of

STEPS_KNOWN = "StepsKnown"
TOLD, COUNTED, NO_STEPS = "Told", "Counted", "NoSteps"

NO_STEPS_MESSAGE = (
    "no step in {minutes:g} min of training: hangs are not found (hangTimeoutSeconds has no effect), and "
    "there is no goodput. Call dlr.report(step) in the script. Without it, the steps of torch's "
    "optimizers are counted, but only in processes that dlr run forks (docs/hangs.md)"
)
START_UNKNOWN_MESSAGE = (
    "nobody knows which step the last start went on with: its optimizer keeps no number of its steps, as "
    "SGD, or was not loaded. Goodput is at least what it says, since it takes all earlier steps as trained "
    "again; dlr.report(step) would tell"
)
PATIENCE_FACTOR = 3
"""So many times `hangTimeoutSeconds` of training without a step: as long as a first step may take."""


def judge(known: Condition | None, facts: Facts) -> NextState:
    """Judges whose word of the steps there is; there is no condition before the first, or a long silence."""
    job, workers, now = facts.job, facts.workers.telling_steps, facts.now
    if tells_steps(job, workers):
        return State(ConditionStatus.TRUE, TOLD)
    if any(counts_steps(worker.status.agent) for worker in workers):
        message = START_UNKNOWN_MESSAGE if start_is_unknown(job.status.goodput) else ""
        return State(ConditionStatus.TRUE, COUNTED, message)
    left = seconds_to_notice(job, workers, now)
    if left is None or left > 0:
        return known
    message = NO_STEPS_MESSAGE.format(minutes=round(patience_seconds(job) / 60, 1))
    return State(ConditionStatus.FALSE, NO_STEPS, message)


def seconds_to_notice(job: ElasticJob, workers: Sequence[ElasticWorker], now: datetime) -> float | None:
    """How long training may still go on without a step before that is told; None where it is not to be.

    Of a job that tells none, the account takes the time for training in which all members run.
    """
    goodput = job.status.goodput
    known = condition_of(job.status.conditions, STEPS_KNOWN)
    if known is not None or goodput is None or goodput.state is not JobState.TRAINING:
        return None
    if any(worker.status.agent is not None and worker.status.agent.rounds for worker in workers):
        return None
    return patience_seconds(job) - seconds_by_state(goodput, now).get(JobState.TRAINING, 0.0)


def patience_seconds(job: ElasticJob) -> float:
    return PATIENCE_FACTOR * job.spec.elastic_policy.hang_timeout_seconds
