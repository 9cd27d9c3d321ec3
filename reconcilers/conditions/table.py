"""All conditions of an ElasticJob in one table: how each is judged, and the Event of its change. Pure.

A judgement is the next state of a condition, the condition as it is, or None for no condition. Events come
from one comparison of status, reason and data, never from sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from controller.events import EventType
from crds.elasticjob import ElasticJob
from crds.job_status import JobUsage
from crds.model import Condition, ConditionStatus
from crds.protocol import JobPhase
from crds.rendezvous import Rendezvous
from reconcilers.capacity import profile, sizing
from reconcilers.conditions import (
    edits,
    job_finding,
    launcher_flags,
    loss,
    refusal,
    saving,
    silent,
    slow,
    steps_known,
    training,
)
from reconcilers.observed.conditions import (
    SCALED,
    WORKERS_SCHEDULED,
    Judgement,
    State,
    condition_of,
    is_same,
    stated,
)
from reconcilers.observed.roles import in_cluster
from reconcilers.observed.workers import Workers
from reconcilers.roles import hot
from reconcilers.roles import progress as roles
from reconcilers.runtime.acts import Event
from reconcilers.scale import scaled
from reconcilers.scale.rolling import Freshness
from reconcilers.shards import job_shards
from reconcilers.shards.sets import ShardSet

TRUE, FALSE = ConditionStatus.TRUE, ConditionStatus.FALSE


@dataclass(frozen=True)
class Facts:
    """What the conditions follow from: what is observed of a job, and what this look decides."""

    job: ElasticJob
    """The job with the requested scale in its status."""
    workers: Workers
    phase: JobPhase
    """The phase that is written, but for `Scaling`."""
    world: Rendezvous
    now: datetime
    pods_accepted: Condition | None = None
    profiled: Condition | None = None
    shards: Sequence[ShardSet] | None = None
    """The next shard sets; None if nothing in them changes."""
    outdated_pods: int = 0
    pods: int = 0
    neighbours: Sequence[slow.Neighbour] = ()
    checks: job_finding.CheckState | None = None
    """None for a job that does not go on."""
    exhausted_workers: Mapping[str, str] = field(default_factory=dict)
    left_out: frozenset[int] = frozenset()
    fresh: Freshness = field(default_factory=Freshness)
    scale_requested: bool = False
    usage: JobUsage | None = None
    end: State | None = None
    """What `Succeeded` or `Failed` states of a job that ends now."""

    @property
    def goes_on(self) -> bool:
        return not self.phase.finished and self.phase is not JobPhase.SUSPENDED


Judge = Callable[[Condition | None, Facts], Judgement]
Announce = Callable[[Condition | None, Condition], Event | None]


def _keep(known: Condition | None, _: Facts) -> Judgement:
    return known


def _silently(_: Condition | None, __: Condition) -> None:
    return None


def _over(known: Condition | None, facts: Facts) -> Judgement:
    return training.not_any_more(known, facts.phase)


@dataclass(frozen=True)
class Kind:
    type: str
    judge: Judge = _keep
    """The judgement in a job that goes on, or is suspended."""
    at_end: Judge = _keep
    """The judgement when the job ends."""
    event: Announce = _silently
    """The Event of a change."""


def _announced(
    type_: EventType, *, status: ConditionStatus | None = None, of: str = "", reason: str = ""
) -> Announce:
    """Announces a condition that has this status, or the reason `of`.

    Args:
        reason: of the Event; the condition's where it is not given.
    """

    def event(_: Condition | None, new: Condition) -> Event | None:
        is_meant = new.status is status or (bool(of) and new.reason == of)
        return Event(type_, reason or new.reason, new.message) if is_meant else None

    return event


def _in_cluster(judge: Judge) -> Judge:
    return lambda known, facts: judge(known, facts) if in_cluster(facts.job) else known


def _in_world(judge: Judge) -> Judge:
    return lambda known, facts: known if in_cluster(facts.job) else judge(known, facts)


def _going_on(judge: Judge) -> Judge:
    return lambda known, facts: judge(known, facts) if facts.goes_on else known


def _always(judge: Judge) -> tuple[Judge, Judge]:
    return judge, judge


def _ended(phase: JobPhase) -> Judge:
    return lambda known, facts: facts.end if facts.phase is phase else known


def _scaled(known: Condition | None, facts: Facts) -> Judgement:
    return scaled.judge(
        known,
        facts.job,
        facts.workers,
        facts.world,
        facts.left_out,
        facts.fresh,
        scale_requested=facts.scale_requested,
        exhausted_workers=facts.exhausted_workers,
    )


def _shards_at_end(known: Condition | None, facts: Facts) -> Judgement:
    found = job_shards.judge(known, facts.shards)
    if isinstance(found, State):
        found = stated(known, job_shards.SHARDS_DONE, found, facts.now)
    return job_shards.judge_at_end(found)


TABLE = (
    Kind(
        training.RUNNING,
        lambda _, facts: training.running(facts.job, facts.phase),
        lambda _, facts: State(FALSE, facts.phase.value),
        _announced("Normal", of=training.NO_REPLICAS),
    ),
    Kind(roles.CLUSTER_FORMED, _in_cluster(lambda _, facts: roles.cluster_formed(facts.job, facts.workers))),
    Kind(
        roles.TF_CONFIG_KEPT,
        _in_cluster(lambda _, facts: roles.tf_config_kept(facts.job)),
        event=_announced("Normal", status=TRUE, reason=roles.TF_CONFIG_KEPT),
    ),
    Kind(
        hot.PARAMETER_SERVER_HOT,
        _in_cluster(lambda known, facts: hot.judge(known, facts.job, facts.workers)),
        _over,
        _announced("Warning", status=TRUE, reason=hot.PARAMETER_SERVER_HOT),
    ),
    Kind(
        training.WORLD_FORMED,
        _in_world(lambda _, facts: training.world_formed(facts.world)),
        lambda known, facts: training.world_at_end(known, facts.world, facts.phase),
    ),
    Kind(training.SUSPENDED, lambda known, facts: training.suspended(known, facts.job)),
    Kind(
        training.MASTER_IGNORED,
        lambda known, facts: training.master_ignored(known, facts.job),
        event=_announced("Normal", status=TRUE, reason=training.MASTER_IGNORED),
    ),
    Kind(launcher_flags.LAUNCHER_FLAGS_IGNORED, lambda _, facts: launcher_flags.judge(facts.job)),
    Kind(
        steps_known.STEPS_KNOWN,
        lambda known, facts: steps_known.judge(known, facts.job, facts.workers.telling_steps, facts.now),
        event=_announced("Warning", of=steps_known.NO_STEPS),
    ),
    Kind(
        loss.LOSS_FINITE,
        *_always(lambda known, facts: loss.judge(known, facts.job, facts.workers)),
        _announced("Warning", of=loss.NON_FINITE),
    ),
    Kind(
        saving.CHECKPOINTS_FAILING,
        lambda known, facts: saving.judge(known, facts.workers, facts.world),
        event=saving.event,
    ),
    Kind(
        slow.SLOW,
        lambda known, facts: slow.judge(known, facts.workers, facts.world, facts.neighbours, facts.now),
        _over,
        slow.event,
    ),
    Kind(
        silent.AGENTS_SILENT,
        lambda known, facts: silent.judge(known, facts.job, facts.workers),
        _over,
        silent.event,
    ),
    Kind(
        WORKERS_SCHEDULED,
        lambda known, facts: training.scheduled(known, facts.job, facts.workers, facts.now),
        lambda known, _: training.wait_at_end(known),
        _announced("Warning", status=FALSE),
    ),
    Kind(
        training.WORKERS_STARTED,
        lambda known, facts: training.started(known, facts.workers, facts.now),
        lambda known, _: training.wait_at_end(known),
        _announced("Warning", status=FALSE),
    ),
    Kind(SCALED, _going_on(_scaled), lambda known, _: training.wait_at_end(known)),
    Kind(
        training.WORKERS_GIVEN_UP,
        _going_on(lambda known, facts: training.given_up(known, facts.exhausted_workers)),
        event=_announced("Warning", status=TRUE, reason=training.WORKERS_GIVEN_UP),
    ),
    Kind(
        job_shards.SHARDS_DONE,
        lambda known, facts: job_shards.judge(known, facts.shards),
        _shards_at_end,
    ),
    Kind(training.SUCCEEDED, at_end=_ended(JobPhase.SUCCEEDED)),
    Kind(training.FAILED, at_end=_ended(JobPhase.FAILED)),
    Kind(
        job_finding.NODES_CHECKED,
        *_always(lambda known, facts: job_finding.judge(known, facts.job, facts.checks)),
        job_finding.event,
    ),
    Kind(
        refusal.PODS_ACCEPTED,
        *_always(lambda _, facts: facts.pods_accepted),
        _announced("Warning", status=FALSE),
    ),
    Kind(
        edits.TEMPLATE_APPLIED,
        *_always(lambda known, facts: edits.judge(known, facts.outdated_pods, facts.pods)),
        edits.event,
    ),
    Kind(profile.PROFILED, *_always(lambda _, facts: facts.profiled), profile.event),
)

SIZES = (
    Kind(
        sizing.OVERSIZED,
        *_always(lambda known, facts: sizing.oversized(known, facts.job, facts.usage, facts.now)),
        _announced("Normal", status=TRUE, reason=sizing.OVERSIZED),
    ),
    Kind(
        sizing.UNDERSIZED,
        *_always(lambda known, facts: sizing.undersized(known, facts.job, facts.usage, facts.now)),
        _announced("Normal", status=TRUE, reason=sizing.UNDERSIZED),
    ),
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
        if new is None or (is_same(old, new) and _since(old) == _since(new)):
            continue
        if (event := kind.event(old, new)) is not None:
            yield event


def _since(condition: Condition | None) -> datetime | None:
    return condition.last_transition_time if condition is not None else None
