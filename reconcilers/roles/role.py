"""What each role of a job with parameter servers is to it: one table, which every other module asks.

Such a job has no world: nobody in it is anybody's rank, and a worker that is lost is nobody's business.
"""

from __future__ import annotations

from dataclasses import dataclass

from crds import names
from crds.cluster import MAX_TASKS
from crds.cluster_status import MAX_PARAMETER_SERVERS
from crds.elasticjob import ElasticJob


@dataclass(frozen=True)
class Role:
    least: int = 0
    """So many Pods a job has at least, whatever a ScalePlan asks for."""
    most: int = MAX_TASKS
    is_vital: bool = False
    """Whether nothing is trained unless all of them run."""
    makes_version: bool = False
    """What it holds is lost with its Pod: a change of its tasks, or of their Pods, is another cluster."""
    ends_job: bool = False
    """Its command's end is the job's."""
    is_spare: bool = False
    """One that has spent its budget does not fail the job."""


ROLES = {
    names.CHIEF: Role(least=1, most=1, is_vital=True, ends_job=True),
    names.PS: Role(least=1, most=MAX_PARAMETER_SERVERS, is_vital=True, makes_version=True),
    names.WORKER: Role(is_spare=True),
    names.EVALUATOR: Role(is_spare=True),
}


def of_types(job: ElasticJob, *, vital: bool = False, makes_version: bool = False) -> list[str]:
    """The job's types whose roles are so."""
    return [
        type_
        for type_, role in ROLES.items()
        if type_ in job.spec.replica_specs and role.is_vital >= vital and role.makes_version >= makes_version
    ]
