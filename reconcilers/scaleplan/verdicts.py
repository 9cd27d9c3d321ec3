"""The verdicts on a job's ScalePlans: the plan to apply, and the status of each. Pure.

A verdict follows from the job and its plans without one: a plan is applied once its request is written into
the job, superseded if a newer one is not refused, or refused for its request. A plan that comes after the
verdict on another is applied over it. The newer plan is the one created later, even within the same second,
in the order of a watch: so the same plan applies in the end, whether two are seen together or one by one
(while the API servers' clocks agree).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controller.errors import WebhookUnavailable
from controller.events import EventType
from controller.store import version_number
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.model import MAX_CONDITION_MESSAGE, ConditionStatus
from crds.scaleplan import ScalePlan, ScalePlanPhase, ScalePlanStatus
from crds.texts import shortened
from reconcilers.observed.conditions import is_false, with_condition
from reconcilers.observed.status_patch import validated
from reconcilers.observed.suitable import Sizes
from reconcilers.runtime.acts import Act, Event, RequestVerb
from reconcilers.runtime.clock import LONG_AGO
from reconcilers.runtime.kinds import SCALEPLANS
from reconcilers.runtime.reconciled import RECONCILED
from reconcilers.runtime.refused import WRITE_REFUSED
from reconcilers.scale.permission import ScaleRefusal
from reconcilers.scale.request import last_plan, overridden
from reconcilers.scaleplan.plan_request import impossible, refusal

APPLIED = "Applied"
"""Type of the condition."""
MOST_REFUSALS = 10
"""Limit of plans that a look refuses: each is compared with all nodes. Refusals trigger the next look."""


@dataclass(frozen=True)
class PlanVerdict:
    """The verdict on a plan, or why there is none yet."""

    plan: ScalePlan
    phase: ScalePlanPhase | None
    """None while the plan waits."""
    reason: str
    message: str

    def act(self, now: datetime) -> Act:
        """The write of the plan's status, which is refused if the plan has changed since it was read."""
        metadata, conditions = self.plan.metadata, self.plan.status.conditions
        applied = self.phase is ScalePlanPhase.APPLIED
        status = ConditionStatus.TRUE if applied else ConditionStatus.FALSE
        conditions = with_condition(conditions, APPLIED, status, self.reason, self.message, now)
        if is_false(conditions, RECONCILED):  # the plan can be read again
            conditions = with_condition(conditions, RECONCILED, ConditionStatus.TRUE, "Recovered", "", now)
        observed = [c.model_copy(update={"observed_generation": metadata.generation}) for c in conditions]
        body = {
            "metadata": {"resourceVersion": metadata.resource_version},
            "status": validated(ScalePlanStatus(phase=self.phase, conditions=observed)),
        }
        ended = self.phase if self.phase is not ScalePlanPhase.REFUSED else None
        type_: EventType = "Normal" if ended else "Warning"
        reason = ended.value if ended else self.reason
        event = Event(type_, reason, self.message)
        name, namespace = metadata.name, metadata.namespace
        return Act(RequestVerb.PATCH, SCALEPLANS, name, namespace, body, "status", events=(event,))


def refused(plan: ScalePlan, why: ScaleRefusal) -> PlanVerdict:
    return PlanVerdict(plan, ScalePlanPhase.REFUSED, why.reason, why.message)


def refused_by_server(plan: ScalePlan, error: str) -> PlanVerdict:
    return refused(plan, ScaleRefusal("Refused", f"the job's counts were refused: {error}"))


def delayed(plan: ScalePlan, error: WebhookUnavailable) -> PlanVerdict:
    message = shortened(f"waits: the job's counts cannot be changed: {error}", MAX_CONDITION_MESSAGE)
    return PlanVerdict(plan, None, WRITE_REFUSED, message)


def without_job(plans: Iterable[ScalePlan]) -> list[PlanVerdict]:
    """The verdicts on plans whose job does not exist."""
    return [refused(plan, why) for plan in plans if (why := impossible(plan, None)) is not None]


def choose_plan(
    plans: Sequence[ScalePlan],
    job: ElasticJob,
    workers: Sequence[ElasticWorker],
    nodes: Collection[Mapping[str, Any]],
) -> tuple[ScalePlan | None, list[PlanVerdict]]:
    """Return the plan to write into the job, and verdicts on the others, or on the newest if many fail.

    Verdicts are in order from the oldest plan to the newest, so that after a crash between their writes no
    older plan is applied over a newer one.
    """
    stands: ScalePlan | None = None
    verdicts, sizes, last = list[PlanVerdict](), Sizes(nodes), last_plan(job)
    for plan in sorted(plans, key=age, reverse=True):
        if plan.metadata.uid == last:
            verdicts.append(applied(plan, job))
        elif stands is not None:
            message = f"the ScalePlan {stands.metadata.name} is newer"
            verdicts.append(PlanVerdict(plan, ScalePlanPhase.SUPERSEDED, "NewerPlan", message))
        elif (why := impossible(plan, job) or refusal(plan, job, workers, sizes)) is not None:
            verdicts.append(refused(plan, why))
            if len(verdicts) == MOST_REFUSALS:
                break
            continue
        stands = stands or plan
    is_new = stands is not None and stands.metadata.uid != last
    return stands if is_new else None, verdicts[::-1]


def applied(plan: ScalePlan, job: ElasticJob) -> PlanVerdict:
    why = overridden(job, plan.metadata.uid)
    written = f"written into the job {job.metadata.name}" + (f", but {why}" if why else "")
    message = f"{written}; the job's condition Scaled has the progress"
    return PlanVerdict(plan, ScalePlanPhase.APPLIED, APPLIED, message)


def age(plan: ScalePlan) -> tuple[datetime, int, str]:
    """Sort key of plans by age, the newest last; within one second, by the last write of each.

    The plan that waits for a webhook counts as the older: it was chosen before, and its status was written.
    """
    metadata = plan.metadata
    waits = any(each.reason == WRITE_REFUSED for each in plan.status.conditions)
    written = 0 if waits else version_number(metadata.resource_version) or 0
    return metadata.creation_timestamp or LONG_AGO, written, metadata.name
