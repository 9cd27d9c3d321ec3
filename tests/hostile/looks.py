"""What the controller and the CLI make of an object, as one call: all of it is pure."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Sequence
from datetime import UTC
from typing import Any

import orjson
from rich.console import Console

from controller.store import Change
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.nodecheck import NodeCheck
from crds.scaleplan import ScalePlan
from dlr.commands.job.screen import render
from dlr.commands.job.status import change_line
from dlr.dashboard.curves import past_of, usage_line
from dlr.dashboard.ranks import grid
from dlr.job.case import Case
from dlr.job.evidence import sections
from dlr.job.verdict import verdict
from reconcilers import predicates
from reconcilers.gang.podgroup import pod_group_of
from reconcilers.gang.wiring import concerns_gang
from reconcilers.job.plan import JobPlan
from reconcilers.job.strategy import Strategies
from reconcilers.look import ObservedJob
from reconcilers.metrics import job_samples, worker_samples
from reconcilers.nodecheck import wiring as checks
from reconcilers.nodecheck.condition import KIND
from reconcilers.nodecheck.job_checks import JobChecks
from reconcilers.nodecheck.pod import build_check_pod
from reconcilers.observed.options import AgentSource
from reconcilers.observed.resources import memory_checkpoint_fault
from reconcilers.observed.slots import training_types
from reconcilers.observed.workers import Workers, new_worker
from reconcilers.roles import wiring
from reconcilers.scaleplan.plan_request import request_of
from reconcilers.scaleplan.reconciler import is_for
from reconcilers.scaleplan.verdicts import applied, choose_plan, without_job
from reconcilers.scaleplan.wiring import more_of_a_plan
from reconcilers.worker.companions import budget_of
from reconcilers.worker.injection import inject_agent
from reconcilers.worker.worker_status import observe
from tests.reconcilers.build import NOW
from tests.reconcilers.observing import observation

JSON = dict[str, Any]
PREDICATES = {
    "ElasticJob": (
        predicates.appears,
        predicates.more_than_status,
        predicates.halts_or_goes_on,
        concerns_gang,
        checks.more_of_a_jobs_checks,
    ),
    "ElasticWorker": (
        predicates.more_than_progress,
        predicates.more_than_an_agents_later_reports,
        checks.more_of_an_answer,
    ),
    "ScalePlan": (more_of_a_plan,),
    "NodeCheck": (checks.begins_or_ends, checks.ends, checks.makes_way),
}
NODES = [
    {"metadata": {"name": f"n{i}"}, "status": {"allocatable": {"cpu": "8", "memory": "32Gi"}}} for i in (1, 2)
]
STRATEGY = Strategies()
wiring.add(STRATEGY)
AGENT = AgentSource("agent:1", "/opt/dlr", "/opt/dlr-agent")


def wake(kind: str, new: JSON) -> None:
    """Whether a change of the object concerns anybody: in the informer's own task."""
    for predicate in PREDICATES[kind]:
        predicate(Change(None, new))
        predicate(Change(copy.copy(new), new))
        again = orjson.loads(orjson.dumps(new)) if kind == "ElasticWorker" else new
        predicate(Change(again, new))


def look_at_job(job: ElasticJob, raw: JSON, workers: Sequence[ElasticWorker] = (), **more: Any) -> JobPlan:
    """All that follows from a job, and from its workers, in one look."""
    seen = ObservedJob(job, raw, Workers(workers), nodes=NODES, vetting=JobChecks(), kinds=(KIND,), **more)
    plan = STRATEGY.plan(seen, NOW)
    orjson.dumps(plan.status_patch)
    for act in plan.acts:
        orjson.dumps(act.body)
    list(job_samples(job, workers, NOW))
    for worker in workers:
        list(worker_samples(job, worker))
    return plan


def pods_of(job: ElasticJob, raw: JSON) -> list[JSON]:
    """The first Pod of each type, and what is beside them."""
    pods = []
    for type_ in training_types(job):
        worker = ElasticWorker.model_validate(_with_uid(new_worker(job, type_, 0)))
        assignment = STRATEGY.assign(worker, raw, job)
        pod = assignment.build_pod()
        inject_agent(pod, AGENT)
        assert assignment.workers >= 0 and assignment.topology_keys is not None
        assignment.seconds_to_cleaning(pod_ended=False, now=NOW)
        memory_checkpoint_fault(job, type_)
        pods.append(pod)
        orjson.dumps(pod)
    for made in (
        budget_of(job),
        STRATEGY.service_of(job),
        group.wanted if (group := pod_group_of(job, is_offered=True)) else None,
    ):
        orjson.dumps(made)
    return pods


def _with_uid(worker: JSON) -> JSON:
    return {**worker, "metadata": {**worker["metadata"], "uid": "w", "resourceVersion": "1"}}


def look_at_plan(
    plan: ScalePlan, raw: JSON, job: ElasticJob | None, workers: Sequence[ElasticWorker]
) -> None:
    for end in without_job([plan]):
        orjson.dumps(end.act(NOW).body)
    if job is not None and is_for(raw, job.metadata.uid):
        chosen, found = choose_plan([plan], job, workers, NODES)
        assert chosen or found
        for end in [*found, *([applied(plan, job)] if chosen else [])]:
            orjson.dumps(end.act(NOW).body)
            orjson.dumps(request_of(plan, job).to_patch())


def status_of(worker: ElasticWorker, pod: JSON | None, **more: Any) -> Any:
    status = observe(worker, observation(pod=pod, **more), NOW)
    orjson.dumps(status.model_copy(update={"agent": None}).to_wire())
    return status


def show(job: JSON, workers: list[JSON]) -> str:
    """What people see of it: `dlr job status`, `dlr job diagnose`, the dashboard."""
    now = NOW.astimezone(UTC)
    out = Console(file=io.StringIO(), width=100)
    case = Case(job, workers, [], now)
    out.print(render(case, out))
    change_line(job)
    sections(case, verdict(case))
    json.dumps(grid(case, verdict(case).odd))
    json.dumps([past_of(job, case.reports, now), usage_line(case)])
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def pod_of_check(check: NodeCheck, worker: ElasticWorker) -> None:
    orjson.dumps(build_check_pod(check, worker, None, "image:1"))
