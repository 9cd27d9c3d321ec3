"""Automatic ScalePlans: what the controller asks of a job's scale by itself. Pure.

They are plans as anybody could make them: so they keep within the job's limits, are told in its history, and
end where other plans end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from controller.resources import Object
from crds import names
from crds.elasticjob import ElasticJob
from crds.scaleplan import ScalePlan, ScalePlanPhase
from reconcilers.observed.builder import owner_reference
from reconcilers.runtime.acts import Act, create, deleted
from reconcilers.runtime.kinds import SCALEPLANS
from reconcilers.scale.opportunity import REMEMBERED_SECONDS
from reconcilers.scale.plan import AUTO, LABEL_ASKED_BY, LABEL_SCALE_TYPE
from reconcilers.scale.uptake import Plans


@dataclass(frozen=True)
class Scale:
    """A count of workers that is not the job's."""

    replicas: int
    removed: tuple[int, ...] = ()
    """The slots that go, of a smaller one."""
    resources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Amounts for each Pod of a type, by type."""


def acts(job: ElasticJob, scale: Scale, plans: Plans, why: str, now: datetime) -> tuple[Act, ...]:
    """The plan that asks for it, one for each generation of the job; and those that are over go.

    Somebody else's plan that has yet to begin comes first: a newer one would end it. What was refused is
    asked for again after an hour: an admission webhook or a policy may say otherwise by then.

    Args:
        plans: the job's.
        why: one word for what asks, which becomes part of the plan's name.
    """
    if _waits(job, plans.newest):
        return ()
    asked = _asked(job, scale, why)
    name = asked["metadata"]["name"]
    same = next((each for each in plans.spent if each.metadata.name == name), None)
    kept = same if same is not None and _was_refused(same, scale) and is_final(same, now) else None
    over = tuple(deleted(SCALEPLANS, each.metadata) for each in plans.spent if each is not kept)
    under_way = plans.newest is not None and plans.newest.metadata.name == name
    return over if same is not None or under_way else (create(SCALEPLANS, asked), *over)


def _waits(job: ElasticJob, newest: ScalePlan | None) -> bool:
    """Whether somebody has asked for something that the job has not taken over yet."""
    return newest is not None and not is_ours(newest) and job.status.scale_plan_uid != newest.metadata.uid


def _was_refused(plan: ScalePlan, scale: Scale) -> bool:
    """Whether it asked for the same, and was refused."""
    asked = plan.spec.replica_resource_specs.get(names.WORKER)
    removed = tuple(pod.rank_index for pod in plan.spec.remove_pods)
    same = asked is not None and (asked.replicas, removed) == (scale.replicas, scale.removed)
    return same and plan.status.phase is ScalePlanPhase.FAILED


def is_final(refused: ScalePlan, now: datetime) -> bool:
    """Whether it is too early to ask again."""
    return _seconds_to_retry(refused, now) > 0


def seconds_to_retry(plans: Iterable[ScalePlan], now: datetime) -> float | None:
    """Until what was refused may be asked for again; None if there is nothing to wait for."""
    refused = (plan for plan in plans if plan.status.phase is ScalePlanPhase.FAILED)
    return min((_seconds_to_retry(plan, now) for plan in refused if is_final(plan, now)), default=None)


def _seconds_to_retry(refused: ScalePlan, now: datetime) -> float:
    return REMEMBERED_SECONDS - (now - (refused.status.finish_time or now)).total_seconds()


def plan_name(job: ElasticJob, why: str) -> str:
    """Returns the name of the plan that asks for something of this generation of the job."""
    return f"{job.metadata.name}-{why}-{job.metadata.generation}"


def _asked(job: ElasticJob, scale: Scale, why: str) -> Object:
    metadata, workers = job.metadata, [names.WORKER] if names.WORKER in job.spec.replica_specs else []
    asked: Object = {
        "replicaResourceSpecs": {
            type_: {
                **({"replicas": scale.replicas} if type_ == names.WORKER else {}),
                **({"resource": dict(scale.resources[type_])} if type_ in scale.resources else {}),
            }
            for type_ in dict.fromkeys((*workers, *scale.resources))
        }
    }
    if scale.removed:
        asked["removePods"] = [{"type": names.WORKER, "rankIndex": index} for index in scale.removed]
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ScalePlan",
        "metadata": {
            "name": plan_name(job, why),
            "namespace": metadata.namespace,
            "labels": {
                names.LABEL_APP: names.APP,
                names.LABEL_JOB: metadata.name,
                names.LABEL_MANAGED_BY: names.MANAGER,
                LABEL_SCALE_TYPE: AUTO,
                LABEL_ASKED_BY: why,
            },
            "ownerReferences": [owner_reference("ElasticJob", metadata.name, metadata.uid)],
        },
        "spec": {"ownerJob": metadata.name, **asked},
    }


def is_ours(plan: ScalePlan) -> bool:
    """Whether it was made here."""
    return plan.metadata.labels.get(names.LABEL_MANAGED_BY) == names.MANAGER


def asked_by(plan: ScalePlan) -> str:
    """What it was made for; empty if it was not made here."""
    return plan.metadata.labels.get(LABEL_ASKED_BY, "")
