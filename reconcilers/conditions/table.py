"""All conditions of an ElasticJob in one table: how each is judged, and the Event of its change. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from controller.events import EventType
from crds.model import Condition, ConditionStatus
from crds.phases import JobPhase
from reconcilers.capacity import profile
from reconcilers.conditions import (
    hot,
    job_finding,
    launcher_flags,
    loss,
    refusal,
    saving,
    scaled,
    silent,
    sizing,
    slow,
    steps_known,
    training,
)
from reconcilers.conditions.facts import Facts, Judge
from reconcilers.observed.conditions import (
    SCALED,
    WORKERS_SCHEDULED,
    NextState,
    State,
    condition_of,
    is_same,
    stated,
)
from reconcilers.observed.roles import in_cluster
from reconcilers.roles import progress as roles
from reconcilers.runtime.acts import Event
from reconcilers.shards import job_shards

TRUE, FALSE = ConditionStatus.TRUE, ConditionStatus.FALSE
Announce = Callable[[Condition | None, Condition], Event | None]
"""The Event of a change, from the condition before and after."""


def _keep(known: Condition | None, _: Facts) -> NextState:
    return known


def _quietly(_: Condition | None, __: Condition) -> None:
    return None


def _announced(type_: EventType, status: ConditionStatus) -> Announce:
    """Announces a condition in this status: by its type where it is True, by its reason else.

    A count alone is no news: it changes with each Pod of a large job.
    """
    return lambda old, new: (
        Event(type_, new.type if status is TRUE else new.reason, new.message)
        if new.status is status and not _is_same(old and _uncounted(old), _uncounted(new))
        else None
    )


@dataclass(frozen=True)
class Kind:
    type: str
    judge: Judge = _keep
    """The judgement in a job that goes on, or is suspended."""
    at_end: Judge = _keep
    """The judgement when the job ends."""
    event: Announce = _quietly


def _in_cluster(judge: Judge) -> Judge:
    return lambda known, facts: judge(known, facts) if in_cluster(facts.job) else known


def _world_formed(known: Condition | None, facts: Facts) -> NextState:
    return known if in_cluster(facts.job) else training.world_formed(known, facts)


def _shards(known: Condition | None, facts: Facts) -> NextState:
    return job_shards.judge(known, facts.shards, has_ended=facts.phase.finished)


_WARNS, _NOTES, _FAILS = _announced("Warning", TRUE), _announced("Normal", TRUE), _announced("Warning", FALSE)
_OVER, _WAITED = training.not_any_more, training.wait_at_end
_TRIED: Judge = lambda _, facts: facts.pods_accepted  # noqa: E731
_PROFILED: Judge = lambda _, facts: facts.profiled  # noqa: E731

TABLE = (
    Kind(training.RUNNING, training.running, training.running, training.no_replicas),
    Kind(roles.CLUSTER_FORMED, _in_cluster(lambda _, facts: roles.cluster_formed(facts.job, facts.workers))),
    Kind(roles.TF_CONFIG_KEPT, _in_cluster(lambda _, facts: roles.tf_config_kept(facts.job)), event=_NOTES),
    Kind(hot.PARAMETER_SERVER_HOT, _in_cluster(hot.judge), _OVER, _WARNS),
    Kind(training.WORLD_FORMED, _world_formed, training.world_at_end),
    Kind(training.SUSPENDED, training.suspended),
    Kind(training.MASTER_IGNORED, training.master_ignored, event=_NOTES),
    Kind(launcher_flags.LAUNCHER_FLAGS_IGNORED, launcher_flags.judge),
    Kind(steps_known.STEPS_KNOWN, steps_known.judge, event=_FAILS),
    Kind(loss.LOSS_FINITE, loss.judge, loss.judge, _FAILS),
    Kind(saving.CHECKPOINTS_FAILING, saving.judge, event=saving.event),
    Kind(slow.SLOW, slow.judge, _OVER, slow.event),
    Kind(silent.AGENTS_SILENT, silent.judge, _OVER, silent.event),
    Kind(training.SIDECARS_FAILED, training.sidecars_failed, training.sidecars_failed, _WARNS),
    Kind(WORKERS_SCHEDULED, training.scheduled, _WAITED, _FAILS),
    Kind(training.WORKERS_STARTED, training.started, _WAITED, _FAILS),
    Kind(SCALED, scaled.judge, _WAITED),
    Kind(training.WORKERS_GIVEN_UP, training.given_up, event=_WARNS),
    Kind(job_shards.SHARDS_DONE, _shards, _shards),
    Kind(training.SUCCEEDED, at_end=training.end_in(JobPhase.SUCCEEDED)),
    Kind(training.FAILED, at_end=training.end_in(JobPhase.FAILED)),
    Kind(job_finding.NODES_CHECKED, job_finding.judge, job_finding.judge, job_finding.event),
    Kind(refusal.PODS_ACCEPTED, _TRIED, _TRIED, _FAILS),
    Kind(
        training.TEMPLATE_APPLIED,
        training.template_applied,
        training.template_applied,
        training.template_changed,
    ),
    Kind(profile.PROFILED, _PROFILED, _PROFILED, profile.event),
)
SIZES = (
    Kind(sizing.OVERSIZED, sizing.oversized, sizing.oversized, _NOTES),
    Kind(sizing.UNDERSIZED, sizing.undersized, sizing.undersized, _NOTES),
)
"""Judged apart: their figures are brought up to date only where the status is written anyway, or at times."""


def judged(kinds: Sequence[Kind], conditions: Sequence[Condition], facts: Facts) -> list[Condition]:
    """The conditions after the judgements of these kinds; those of other kinds stay."""
    found = {condition.type: condition for condition in conditions}
    for kind in kinds:
        known = found.get(kind.type)
        judge = kind.at_end if facts.phase.finished else kind.judge
        judgement = judge(known, facts)
        if isinstance(judgement, State):
            judgement = stated(known, kind.type, judgement, facts.now)
        if judgement is not None:
            found[kind.type] = judgement
        elif known is not None:
            del found[kind.type]
    return list(found.values())


def events(before: Sequence[Condition], after: Sequence[Condition]) -> Iterator[Event]:
    """The Events of what changed in status, reason or data, or began again."""
    for kind in (*TABLE, *SIZES):
        old, new = condition_of(before, kind.type), condition_of(after, kind.type)
        if new is None or _is_same(old, new):
            continue
        if (event := kind.event(old, new)) is not None:
            yield event


def _is_same(old: Condition | None, new: Condition) -> bool:
    return is_same(old, new) and _since(old) == _since(new)


def _uncounted(condition: Condition) -> Condition:
    if condition.data is None:
        return condition
    return condition.model_copy(update={"data": condition.data.model_copy(update={"count": None})})


def _since(condition: Condition | None) -> datetime | None:
    return condition.last_transition_time if condition is not None else None
