"""All conditions and warnings of an ElasticJob: how each is judged, and the Event of its change. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from controller.events import EventType
from crds.job_status import ElasticJobStatus, JobWarning
from crds.model import Condition
from crds.phases import JobPhase
from reconcilers.conditions import (
    launcher_flags,
    life,
    pods,
    refusal,
    reported,
    scaled,
    slow,
)
from reconcilers.conditions.facts import JobFacts, Judge, Warn, WarningState
from reconcilers.observed.conditions import ConditionState, condition_of, data_of, stated, warning_of
from reconcilers.runtime.acts import Event


def _keep(old: Any, _: JobFacts) -> Any:
    return old


def _withdraw(_: JobWarning | None, __: JobFacts) -> None:
    return None


def _quietly(_: Condition | None, __: Condition) -> None:
    return None


@dataclass(frozen=True)
class ConditionKind:
    """A type of condition."""

    type: str
    judge: Judge = _keep
    """The judgement in a job that goes on, or is suspended."""
    at_end: Judge = _keep
    """The judgement when the job ends."""
    event: Callable[[Condition | None, Condition], Event | None] = _quietly
    """The Event of a change, from the condition before and after."""


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
    """Return what a condition states, in whatever words."""
    if condition is None:
        return ()
    return condition.status, condition.reason, data_of(condition), condition.last_transition_time


def is_changed(old: JobWarning | None, new: JobWarning) -> bool:
    """Whether it states other facts than before, or began again. A count alone is no news: it changes with
    each Pod of a large job."""
    return old is None or _facts(old) != _facts(new)


def _facts(warning: JobWarning) -> tuple[Any, ...]:
    return warning.reason, warning.since, data_of(warning).model_copy(update={"count": None})


def _is_taken_anew(old: JobWarning | None, new: JobWarning) -> bool:
    """Whether names were taken; a refusal has an Event of its own."""
    return new.reason == pods.NAMES_TAKEN and is_changed(old, new)


def _has_another_reason(old: JobWarning | None, new: JobWarning) -> bool:
    return old is None or old.reason != new.reason


@dataclass(frozen=True)
class WarningKind:
    """A type of warning."""

    type: str
    judge: Warn
    """The judgement in a job that goes on, or is suspended."""
    at_end: Warn = _keep
    """The judgement when the job ends."""
    event: EventType | None = None
    """Type of the Event when it begins or changes; None for no Event."""
    by_reason: bool = False
    """The Event has the warning's reason, and not its type."""
    is_news: Callable[[JobWarning | None, JobWarning], bool] = is_changed
    over: tuple[str, str] | None = None
    """Reason and message of the Event when it is over."""


def _pods(_: JobWarning | None, facts: JobFacts) -> JobWarning | None:
    return facts.pods_not_accepted


_HEARD = ("AgentsHeard", "all agents are heard again")
_SAVED = ("CheckpointsSaved", "checkpoints are saved again, after {reason}")
_FAST = ("SlowOver", "a step takes no longer than it did before")

WARNINGS = (
    WarningKind(refusal.PODS_NOT_ACCEPTED, _pods, _pods, "Warning", by_reason=True),
    WarningKind(
        pods.WORKERS_NOT_MADE, pods.not_made, _withdraw, "Warning", by_reason=True, is_news=_is_taken_anew
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
    WarningKind(pods.WORKERS_GIVEN_UP, pods.given_up, event="Warning"),
    WarningKind(slow.SLOW, slow.judge, _withdraw, "Warning", over=_FAST),
    WarningKind(reported.AGENTS_SILENT, reported.agents_silent, _withdraw, "Warning", over=_HEARD),
    WarningKind(reported.AGENTS_UNHEARD, reported.agents_unheard, _withdraw, "Warning"),
    WarningKind(reported.HEARTBEAT_LATE, reported.heartbeat_late, _withdraw),
    WarningKind(reported.RANKS_BEHIND, reported.ranks_behind, _withdraw, "Warning"),
    WarningKind(reported.SIDECARS_FAILED, reported.sidecars_failed, reported.sidecars_failed, "Warning"),
    WarningKind(reported.PROCESS_LINGERS, reported.process_lingers, reported.process_lingers, "Warning"),
    WarningKind(reported.NO_STEPS, reported.no_steps, event="Warning"),
    WarningKind(reported.START_UNKNOWN, reported.start_unknown),
    WarningKind(
        pods.TEMPLATE_CHANGED, pods.template_changed, pods.template_changed, "Normal", is_news=pods.more_pods
    ),
    WarningKind(pods.PATTERNS_NOT_APPLIED, pods.patterns_not_applied, event="Warning"),
    WarningKind(launcher_flags.LAUNCHER_FLAGS_IGNORED, launcher_flags.judge),
    WarningKind(pods.MASTER_IGNORED, pods.master_ignored, event="Normal"),
)


@dataclass(frozen=True)
class ConditionTable:
    """All that is stated about jobs of one kind."""

    conditions: Sequence[ConditionKind] = CONDITIONS
    warnings: Sequence[WarningKind] = WARNINGS
    """The gravest first."""

    def beside(self, conditions: Sequence[ConditionKind]) -> ConditionTable:
        """The table with conditions of features."""
        return replace(self, conditions=(*self.conditions, *conditions))


TABLE = ConditionTable()
"""The table of jobs with a world."""


@dataclass(frozen=True)
class Judgement:
    """What a look states about a job."""

    conditions: Sequence[Condition]
    warnings: Sequence[JobWarning]


def judged(before: ElasticJobStatus, facts: JobFacts, table: ConditionTable = TABLE) -> Judgement:
    """Return the conditions and warnings after this look; conditions of other writers stay."""
    warnings = warned(table.warnings, before.warnings, facts)
    facts = replace(facts, warnings=warnings)
    found = {condition.type: condition for condition in before.conditions}
    for kind in table.conditions:
        old = found.pop(kind.type, None)
        judgement = (kind.at_end if facts.phase.finished else kind.judge)(old, facts)
        if isinstance(judgement, ConditionState):
            judgement = stated(old, kind.type, judgement, facts.now)
        if judgement is not None:
            found[kind.type] = judgement
    return Judgement(list(found.values()), warnings)


def warned(kinds: Sequence[WarningKind], before: Sequence[JobWarning], facts: JobFacts) -> list[JobWarning]:
    """Return the warnings of these kinds, in their order."""
    known, found = {warning.type: warning for warning in before}, []
    for kind in kinds:
        old = known.get(kind.type)
        judgement = (kind.at_end if facts.phase.finished else kind.judge)(old, facts)
        if isinstance(judgement, WarningState):
            since = facts.now.replace(microsecond=0) if old is None else old.since
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


def events(
    before: ElasticJobStatus, after: ElasticJobStatus, table: ConditionTable = TABLE
) -> Iterator[Event]:
    """Yield the Events of what changed, began or is over."""
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
