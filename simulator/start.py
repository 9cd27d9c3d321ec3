"""The job as its user writes it, and as it is when it trains and nothing has ever happened to it."""

from __future__ import annotations

from crds.elasticjob import ElasticJob
from simulator import objects
from simulator.fleet import Fleet
from simulator.planned import PlannedJob


def least_of(fleet: Fleet) -> int:
    """Return the least number of nodes that a world trains on."""
    if fleet.policies.group_nodes is not None:
        return fleet.policies.group_nodes
    return fleet.nodes if fleet.min_nodes is None else fleet.min_nodes


def job_of(fleet: Fleet, members: int, hidden: int) -> ElasticJob:
    """The job as its user writes it, less those who are hidden."""
    policies = fleet.policies
    wanted = members if fleet.max_nodes is None else members + fleet.max_nodes - fleet.nodes
    worker = {
        "replicas": wanted,
        "minReplicas": max(least_of(fleet) - hidden, fleet.node_unit),
        "standby": policies.standby if policies.group_nodes is None else 0,
        "restartCount": policies.restart_count,
    }
    elastic = {
        "nodeUnit": fleet.node_unit,
        "shrinkAfterSeconds": policies.shrink_after_seconds,
        "heartbeatTimeoutSeconds": policies.heartbeat_timeout_seconds,
        "hangTimeoutSeconds": policies.hang_timeout_seconds,
    }
    check = {"enabled": policies.node_check_after, "excludeStragglers": policies.exclude_stragglers}
    return objects.new_job(worker, {"elasticPolicy": elastic, "nodeCheck": check})


def trained(job: ElasticJob, least: int, hidden: int) -> PlannedJob:
    """The job as it trains when nothing has ever happened to it."""
    made = PlannedJob(job, least, hidden)
    for index in made.look(objects.EPOCH).new_pods:
        now = objects.at(1.0)
        worker = objects.with_pod(made.workers[index], f"{objects.JOB}-{index}", now)
        made.put(objects.ready(worker, now))
    if job.spec.node_check.enabled:
        _checked(made)
    made.look(objects.at(2.0))
    made.run_round(1, objects.at(3.0))
    made.look(objects.at(3.0))
    return made


def _checked(job: PlannedJob) -> None:
    """A first check has found all of its nodes healthy."""
    body = job.look(objects.at(1.5)).check
    if body is not None:
        workers = job.workers
        verdicts = {
            "nodes": [workers[i].status.node_name for i in workers],
            "workers": list(workers),
            "incarnations": [1] * len(workers),
        }
        job.end_check(body, verdicts, objects.at(1.8))
