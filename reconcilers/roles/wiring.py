"""The strategy of jobs with parameter servers, and the test for them."""

from __future__ import annotations

from crds import names
from crds.elasticjob import ElasticJob
from reconcilers.job.strategy import Strategies, Strategy
from reconcilers.roles.planner import plan_cluster
from reconcilers.roles.pods import RoleAssignment, service_of
from reconcilers.roles.tasks import counts_fault


def add(strategies: Strategies) -> None:
    """Register the strategy of these jobs."""
    strategies.add(in_cluster, Strategy(plan_cluster, RoleAssignment, service_of, counts_fault))


def in_cluster(job: ElasticJob) -> bool:
    """Whether the job has parameter servers, and so a cluster instead of a world."""
    spec = job.spec.replica_specs.get(names.PS)
    return spec is not None and spec.replicas > 0
