"""Extra workers: those beyond the count that was asked for, of a job that grows into free room. Pure.

They are the highest slots. Which of them go with a smaller count, `reconcilers/capacity/growth.py` says.
"""

from __future__ import annotations

from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.job_spec import Opportunistic
from crds.job_status import Opportunity
from reconcilers.observed.slots import place_of, wanted_slots


def policy_of(job: ElasticJob) -> Opportunistic | None:
    return job.spec.elastic_policy.opportunistic if names.WORKER in job.spec.replica_specs else None


def opportunity_of(job: ElasticJob) -> Opportunity | None:
    """What is remembered; None of a job that does not grow by itself."""
    if policy_of(job) is None or job.status.scaling is None:
        return None
    return job.status.scaling.opportunity


def extra_slots(job: ElasticJob) -> frozenset[int]:
    known = opportunity_of(job)
    return frozenset() if known is None else frozenset(wanted_slots(job, names.WORKER)[known.base :])


def is_extra(job: ElasticJob, worker: ElasticWorker) -> bool:
    known = opportunity_of(job)
    if known is None or worker.spec.type != names.WORKER:
        return False
    place = place_of(job, names.WORKER, worker.spec.index)
    return place is not None and place >= known.base


def priority_class_of(job: ElasticJob, worker: ElasticWorker) -> str | None:
    """Returns the priority class of the worker's next Pod, where that is not for the template to say."""
    policy = policy_of(job)
    return policy.priority_class_name if policy is not None and is_extra(job, worker) else None
