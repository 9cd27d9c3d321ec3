"""Where jobs with parameter servers are set apart from others."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from controller.resources import Object
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from reconcilers.job.plan import Plan
from reconcilers.job.seen import Seen
from reconcilers.job.strategy import Strategy
from reconcilers.roles.planner import plan_cluster
from reconcilers.roles.pods import RoleAssignment, service_of
from reconcilers.roles.tasks import counts_fault
from reconcilers.worker.assignment import JobAssignment


def in_cluster(job: ElasticJob) -> bool:
    """Whether the job has parameter servers, and so a cluster instead of a world."""
    spec = job.spec.replica_specs.get(names.PS)
    return spec is not None and spec.replicas > 0


def with_roles(others: Strategy) -> Strategy:
    """The strategy of all jobs, where those without parameter servers have the others'."""

    def plan(seen: Seen, now: datetime) -> Plan:
        return (plan_cluster if in_cluster(seen.job) else others.plan)(seen, now)

    def assign(worker: ElasticWorker, owner: Object, job: ElasticJob) -> JobAssignment:
        return (RoleAssignment if in_cluster(job) else others.assign)(worker, owner, job)

    def service(job: ElasticJob) -> Object | None:
        return (service_of if in_cluster(job) else others.service_of)(job)

    def fault(job: ElasticJob, counts: Mapping[str, int]) -> str:
        return (counts_fault if in_cluster(job) else others.counts_fault)(job, counts)

    return Strategy(plan, assign, service, fault)
