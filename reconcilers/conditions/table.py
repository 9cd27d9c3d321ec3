"""All conditions and warnings of an ElasticJob, with judgement and Event of each. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from crds.job_status import ElasticJobStatus, JobWarning
from crds.model import Condition
from crds.phases import JobPhase
from reconcilers.conditions import (
    life,
    pods,
    reported,
    scaled,
    slow,
)
from reconcilers.failure import refusal
from reconcilers.look import ConditionKind, ConditionTable, DesiredJob, WarningKind, WarningState, is_changed
from reconcilers.observed.conditions import ConditionState, condition_of, data_of, stated, warning_of
from reconcilers.runtime.acts import Event


def _withdraw(_: JobWarning | None, __: DesiredJob) -> None:
    return None


CONDITIONS = (
    ConditionKind(life.RUNNING, life.running, life.running, life.no_replicas),
    ConditionKind(life.SUSPENDED, life.suspended),
    ConditionKind(life.SUCCEEDED, at_end=life.end_in(JobPhase.SUCCEEDED)),
    ConditionKind(life.FAILED, at_end=life.end_in(JobPhase.FAILED)),
    ConditionKind(life.WORLD_FORMED, life.world_formed, life.world_at_end),
    ConditionKind(life.WORKERS_READY, life.workers_ready, life.workers_ready),
    ConditionKind(scaled.SCALED, scaled.judge, life.wait_at_end),
)


def _states(condition: Condition | None) -> tuple[Any, ...]:
    """Return the facts that a condition states, without its words."""
    if condition is None:
        return ()
    return condition.status, condition.reason, data_of(condition), condition.last_transition_time


def _has_new_names(old: JobWarning | None, new: JobWarning) -> bool:
    """Whether other names are taken; a refusal has an Event of its own."""
    return new.reason == pods.NAMES_TAKEN and is_changed(old, new)


def _has_another_reason(old: JobWarning | None, new: JobWarning) -> bool:
    return old is None or old.reason != new.reason


def _pods(_: JobWarning | None, look: DesiredJob) -> JobWarning | None:
    return None if look.refusal is None else look.refusal.warning_with_advice


def _pods_at_end(_: JobWarning | None, look: DesiredJob) -> JobWarning | None:
    return None if look.refusal is None else look.refusal.warning


_HEARD = ("AgentsHeard", "all agents are heard again")
_SAVED = ("CheckpointsSaved", "checkpoints are saved again, after {reason}")
_FAST = ("SlowOver", "a step takes no longer than it did before")

WARNINGS = (
    WarningKind(refusal.PODS_NOT_ACCEPTED, _pods, _pods_at_end, "Warning", by_reason=True),
    WarningKind(
        pods.WORKERS_NOT_MADE, pods.not_made, _withdraw, "Warning", by_reason=True, is_news=_has_new_names
    ),
    WarningKind(pods.WORKERS_NOT_STARTED, pods.not_started, event="Warning", by_reason=True),
    WarningKind(pods.WORKERS_UNSCHEDULED, pods.unscheduled, event="Warning", by_reason=True),
    WarningKind(reported.NON_FINITE_LOSS, reported.non_finite_loss, reported.non_finite_loss, "Warning"),
    WarningKind(
        reported.CHECKPOINTS_FAILING,
        reported.checkpoints_failing,
        event="Warning",
        is_news=_has_another_reason,
        over=_SAVED,
    ),
    WarningKind(pods.WORKERS_GIVEN_UP, pods.exhausted, event="Warning"),
    WarningKind(slow.SLOW, slow.judge, _withdraw, "Warning", over=_FAST),
    WarningKind(reported.AGENTS_SILENT, reported.agents_silent, _withdraw, "Warning", over=_HEARD),
    WarningKind(reported.AGENTS_UNHEARD, reported.agents_unheard, _withdraw, "Warning"),
    WarningKind(reported.HEARTBEAT_LATE, reported.heartbeat_late, _withdraw),
    WarningKind(reported.RANKS_BEHIND, reported.ranks_behind, _withdraw, "Warning"),
    WarningKind(reported.SIDECARS_FAILED, reported.sidecars_failed, reported.sidecars_failed, "Warning"),
    WarningKind(reported.NODES_REPORTED, reported.nodes_reported, _withdraw, "Warning"),
    WarningKind(reported.PROCESS_LINGERS, reported.process_lingers, reported.process_lingers, "Warning"),
    WarningKind(reported.NO_STEPS, reported.no_steps, event="Warning"),
    WarningKind(reported.START_UNKNOWN, reported.start_unknown),
    WarningKind(
        pods.TEMPLATE_CHANGED, pods.template_changed, pods.template_changed, "Normal", is_news=pods.more_pods
    ),
    WarningKind(pods.NODES_WITHOUT_DOMAIN, pods.without_domain, _withdraw, "Warning"),
    WarningKind(pods.PATTERNS_NOT_APPLIED, pods.patterns_not_applied, event="Warning"),
    WarningKind(pods.MASTER_IGNORED, pods.master_ignored, event="Normal"),
)


TABLE = ConditionTable(CONDITIONS, WARNINGS)
"""The table of jobs with a world."""


def judged(look: DesiredJob) -> DesiredJob:
    """Return the job with its new conditions and warnings; conditions of other writers stay."""
    before = look.seen.job.status
    look = replace(look, warnings=warned(look.table.warnings, before.warnings, look))
    found = {condition.type: condition for condition in before.conditions}
    for kind in look.table.conditions:
        old = found.pop(kind.type, None)
        judgement = (kind.at_end if look.phase.finished else kind.judge)(old, look)
        if isinstance(judgement, ConditionState):
            judgement = stated(old, kind.type, judgement, look.now)
        if judgement is not None:
            found[kind.type] = judgement
    return replace(look, conditions=list(found.values()))


def warned(kinds: Sequence[WarningKind], before: Sequence[JobWarning], look: DesiredJob) -> list[JobWarning]:
    """Return the warnings of these kinds, in their order."""
    present, found = {warning.type: warning for warning in before}, []
    for kind in kinds:
        old = present.get(kind.type)
        judgement = (kind.at_end if look.phase.finished else kind.judge)(old, look)
        if isinstance(judgement, WarningState):
            since = look.now.replace(microsecond=0) if old is None else old.since
            judgement = JobWarning(
                type=kind.type,
                reason=judgement.reason,
                message=judgement.message,
                since=since,
                data=judgement.data,
            )
        if judgement is not None:
            found.append(judgement)
    return found


def events(before: ElasticJobStatus, after: ElasticJobStatus, table: ConditionTable) -> Iterator[Event]:
    """Yield the Events of changed conditions, and of warnings that changed, began or are over."""
    for kind in table.conditions:
        old, new = condition_of(before.conditions, kind.type), condition_of(after.conditions, kind.type)
        if new is None or _states(old) == _states(new):
            continue
        if (event := kind.event(old, new)) is not None:
            yield event
    is_over = after.finished
    for each in table.warnings:
        was, now = warning_of(before.warnings, each.type), warning_of(after.warnings, each.type)
        if now is not None and each.event is not None and each.is_news(was, now):
            yield Event(each.event, now.reason if each.by_reason and now.reason else now.type, now.message)
        if was is not None and now is None and each.over is not None and not is_over:
            reason, message = each.over
            yield Event("Normal", reason, message.format(reason=was.reason))
