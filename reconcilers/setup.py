"""Which reconciler is woken by what."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from controller.builder import ControllerBuilder
from controller.cache import Cache
from controller.manager import Manager
from controller.reconciler import Request
from controller.resources import (
    ELASTICJOBS,
    ELASTICWORKERS,
    LEASES,
    NODECHECKS,
    NODES,
    PODDISRUPTIONBUDGETS,
    PODS,
    SCALEPLANS,
)
from controller.store import Change
from crds import names
from reconcilers.check_options import DEFAULT_IMAGE
from reconcilers.clock import Clock
from reconcilers.companions import CompanionReconciler
from reconcilers.cordon_mark import MarkState
from reconcilers.cordon_options import CordonOptions
from reconcilers.elasticjob import ElasticJobReconciler
from reconcilers.job_metrics import JobMetrics
from reconcilers.job_plans import BY_OWNER_JOB, owner_job
from reconcilers.node_check import NodeCheckReconciler, has_nodes, is_finished
from reconcilers.node_cordon import BY_CORDON, NodeCordonReconciler, cordon_states, cordon_view
from reconcilers.scaleplan import ScalePlanReconciler, is_over
from reconcilers.verdicts import BY_EXIT_CLASS, failed_nodes, judged_nodes, last_exit_classes
from reconcilers.worker import BY_JOB, BY_NODE, BY_OWNER, WorkerReconciler, job_keys, node_names, owner_uids

_OURS = f"{names.LABEL_MANAGED_BY}={names.MANAGER}"
WATCHED_BY_LABEL = {PODS: _OURS, LEASES: _OURS, PODDISRUPTIONBUDGETS: _OURS}
"""For `ManagerOptions.label_selectors`: a cluster has many of these that are none of our business."""

JOB_WORKERS = 4
WORKER_WORKERS = 16
COMPANION_WORKERS = 4
CHECK_WORKERS = 2
PLAN_WORKERS = 2
CHECK_TIMEOUT_SECONDS = 600.0
"""Where nothing passes among 5,000 nodes, a round is planned for a minute of CPU time; 1,000 take 3 s."""
CORDON_WORKERS = 1
"""No more: two cordons at once could both take the last place under the limit."""


def add_all(manager: Manager, cordon: CordonOptions | None = None, check_image: str = DEFAULT_IMAGE) -> None:
    """Register every controller with the manager."""
    clock = Clock()
    add_indexes(manager.cache)
    add_jobs(manager, clock)
    add_workers(manager, clock, check_image)
    add_companions(manager)
    add_node_checks(manager, clock)
    add_scale_plans(manager, clock)
    _add_cordon(manager, clock, cordon or CordonOptions())
    manager.metrics_registry.register(JobMetrics(manager.cache, clock, lambda: manager.is_leader))


def add_indexes(cache: Cache) -> None:
    """What the reconcilers look up in the cache besides names."""
    cache.add_index(ELASTICWORKERS, BY_JOB, job_keys)
    cache.add_index(ELASTICWORKERS, BY_NODE, node_names)
    cache.add_index(ELASTICWORKERS, BY_OWNER, owner_uids)
    cache.add_index(NODECHECKS, BY_JOB, job_keys)
    cache.add_index(PODS, BY_OWNER, owner_uids)
    cache.add_index(SCALEPLANS, BY_OWNER_JOB, owner_job)


def add_jobs(manager: Manager, clock: Clock) -> None:
    jobs = ElasticJobReconciler(manager.client, manager.cache, manager.recorder, clock)
    (
        ControllerBuilder(manager, "elasticjob")
        .for_(ELASTICJOBS)
        .owns(ELASTICWORKERS, predicate=more_than_progress)
        .watches(NODECHECKS, checked_job, predicate=begins_or_ends)
        .watches(SCALEPLANS, planned_job, predicate=plans_otherwise)
        .with_workers(JOB_WORKERS)
        .build(jobs)
    )


def add_workers(manager: Manager, clock: Clock, check_image: str) -> None:
    cache = manager.cache
    workers = cache.store(ELASTICWORKERS)

    def workers_of_job(job: dict[str, Any]) -> Iterable[Request]:
        """Only what concerns Pods: suspension and the end. World changes are the agents' business."""
        metadata = job["metadata"]
        halted = ("Suspended", "Succeeded", "Failed")
        if not job["spec"].get("suspend") and job.get("status", {}).get("phase") not in halted:
            return []
        return _requests(workers.by_index(BY_JOB, f"{metadata['namespace']}/{metadata['name']}"))

    def workers_of_check(check: dict[str, Any]) -> Iterable[Request]:
        """Its own, when it has finished; those of a job that it checks are the job's."""
        if check.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            return []
        return _requests(workers.by_index(BY_OWNER, check["metadata"]["uid"]))

    def workers_on_node(node: dict[str, Any]) -> Iterable[Request]:
        conditions = node.get("status", {}).get("conditions", ())
        if any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
            return []
        return _requests(workers.by_index(BY_NODE, node["metadata"]["name"]))

    pods = WorkerReconciler(manager.client, cache, manager.recorder, manager.contact, clock, check_image)
    (
        ControllerBuilder(manager, "elasticworker")
        .for_(ELASTICWORKERS, predicate=more_than_an_agents_later_reports)
        .owns(PODS)
        .owns(LEASES)
        .watches(ELASTICJOBS, workers_of_job)
        .watches(NODECHECKS, workers_of_check)
        .watches(NODES, workers_on_node)
        .with_workers(WORKER_WORKERS)
        .build(pods)
    )


def add_companions(manager: Manager) -> None:
    reconciler = CompanionReconciler(manager.client, manager.cache, manager.recorder)
    (
        ControllerBuilder(manager, "jobcompanion")
        .for_(ELASTICJOBS, predicate=more_than_status)
        .owns(PODDISRUPTIONBUDGETS, predicate=more_than_status)
        .with_workers(COMPANION_WORKERS)
        .build(reconciler)
    )


def add_node_checks(manager: Manager, clock: Clock) -> None:
    cache = manager.cache
    jobs, checks = cache.store(ELASTICJOBS), cache.store(NODECHECKS)

    def active_check(worker: dict[str, Any]) -> Iterable[Request]:
        """The check that the worker's job carries out now."""
        namespace = worker["metadata"]["namespace"]
        job = jobs.get(namespace, worker["spec"].get("jobName") or "")
        active = (job or {}).get("status", {}).get("activeCheck")
        return [Request(namespace, active)] if active else []

    def checks_of_job(job: dict[str, Any]) -> Iterable[Request]:
        metadata = job["metadata"]
        return _requests(checks.by_index(BY_JOB, f"{metadata['namespace']}/{metadata['name']}"))

    def waiting_checks(_: dict[str, Any]) -> Iterable[Request]:
        return _requests(check for check in checks.list() if not has_nodes(check))

    reconciler = NodeCheckReconciler(manager.client, cache, manager.recorder, manager.contact, clock)
    (
        ControllerBuilder(manager, "nodecheck")
        .for_(NODECHECKS)
        .owns(ELASTICWORKERS, predicate=more_of_an_answer)
        .watches(ELASTICWORKERS, active_check, predicate=more_of_an_answer)
        .watches(ELASTICJOBS, checks_of_job, predicate=more_of_a_jobs_checks)
        .watches(NODECHECKS, waiting_checks, predicate=makes_way)
        .with_workers(CHECK_WORKERS)
        .with_timeout(CHECK_TIMEOUT_SECONDS)
        .build(reconciler)
    )


def add_scale_plans(manager: Manager, clock: Clock) -> None:
    plans = manager.cache.store(SCALEPLANS)

    def plans_for(namespace: str, job: str) -> Iterable[Request]:
        found = plans.by_index(BY_OWNER_JOB, f"{namespace}/{job}")
        return _requests(plan for plan in found if not is_over(plan))

    def plans_of_job(job: dict[str, Any]) -> Iterable[Request]:
        return plans_for(job["metadata"]["namespace"], job["metadata"]["name"])

    def siblings(plan: dict[str, Any]) -> Iterable[Request]:
        return plans_for(plan["metadata"]["namespace"], plan["spec"]["ownerJob"])

    reconciler = ScalePlanReconciler(manager.client, manager.cache, manager.recorder, clock)
    (
        ControllerBuilder(manager, "scaleplan")
        .for_(SCALEPLANS)
        .watches(SCALEPLANS, siblings, predicate=plans_otherwise)
        .watches(ELASTICJOBS, plans_of_job)
        .with_workers(PLAN_WORKERS)
        .build(reconciler)
    )


def _add_cordon(manager: Manager, clock: Clock, options: CordonOptions) -> None:
    """Whatever may give or take room under the limit also wakes the nodes that wait for it."""
    cache = manager.cache
    cache.add_index(ELASTICWORKERS, BY_EXIT_CLASS, last_exit_classes)
    cache.add_index(NODES, BY_CORDON, cordon_states)
    nodes = cache.store(NODES)

    def held(_: dict[str, Any]) -> Iterable[Request]:
        return _requests(nodes.by_index(BY_CORDON, MarkState.HELD))

    def judged(check: dict[str, Any]) -> Iterable[Request]:
        names_judged = judged_nodes(check)
        return [*_named(names_judged), *held(check)] if names_judged else []

    def failures(worker: dict[str, Any]) -> Iterable[Request]:
        failed = failed_nodes(worker)
        return [*_named(failed), *held(worker)] if failed else []

    cordons = NodeCordonReconciler(manager.client, cache, manager.recorder, clock, options)
    (
        ControllerBuilder(manager, "nodecordon")
        .for_(NODES, predicate=more_than_a_heartbeat)
        .watches(NODES, held, predicate=more_than_a_heartbeat)
        .watches(NODECHECKS, judged)
        .watches(ELASTICWORKERS, failures, predicate=more_than_the_agents_report)
        .with_workers(CORDON_WORKERS)
        .build(cordons)
    )


def checked_job(check: dict[str, Any]) -> Iterable[Request]:
    """The job whose workers a NodeCheck is of."""
    job = check["spec"].get("jobName")
    return [Request(check["metadata"].get("namespace"), job)] if job else []


def planned_job(plan: dict[str, Any]) -> Iterable[Request]:
    """The job that a ScalePlan is for."""
    return [Request(plan["metadata"].get("namespace"), plan["spec"]["ownerJob"])]


def begins_or_ends(change: Change) -> bool:
    """A job does not follow the rounds of its checks."""
    return _ending(change.old) != _ending(change.new)


def plans_otherwise(change: Change) -> bool:
    """A job does not follow what its plans say of their progress."""
    return _planned(change.old) != _planned(change.new)


def more_than_status(change: Change) -> bool:
    """What is wanted of an object, or that it has come to its end."""
    return _wanted(change.old) != _wanted(change.new)


def more_than_progress(change: Change) -> bool:
    """Steps are reported every few seconds by every worker, and decide nothing about a job.

    A checkpoint may: a world that is to grow can wait for it. And the first step of a round says that a job
    trains (again).
    """
    return _without_steps(change.old) != _without_steps(change.new)


def more_than_the_agents_report(change: Change) -> bool:
    """A worker's Pod does not depend on what its agent says."""
    return _without_report(change.old) != _without_report(change.new)


def more_than_an_agents_later_reports(change: Change) -> bool:
    """From its first report on, an agent's silence counts: its Lease may never be renewed again."""
    return _speaker(change.old) != _speaker(change.new) or more_than_the_agents_report(change)


def more_of_an_answer(change: Change) -> bool:
    """What a check wants to know of a worker: where its Pod is, how it is, and what its agent found out."""
    return _voice(change.old) != _voice(change.new)


def more_of_a_jobs_checks(change: Change) -> bool:
    """Which check the job carries out, whether it still has a world, and whether it has ended."""
    return _part_in_checks(change.old) != _part_in_checks(change.new)


def makes_way(change: Change) -> bool:
    """A check has finished or is gone: one that waits for its nodes may begin."""
    return change.old is not None and (change.new is None or is_finished(change.new))


def more_than_a_heartbeat(change: Change) -> bool:
    """Kubelets write every Node's status every few minutes or seconds."""
    return cordon_view(change.old) != cordon_view(change.new)


def _wanted(obj: dict[str, Any] | None) -> tuple[object, ...] | None:
    if obj is None:
        return None
    said = [obj["metadata"].get(key) for key in ("labels", "ownerReferences", "deletionTimestamp")]
    return obj["spec"], obj.get("status", {}).get("phase") in ("Succeeded", "Failed"), *said


def _without_report(worker: dict[str, Any] | None) -> tuple[object, ...] | None:
    """Spec, status and deletion of an ElasticWorker, but for what its agent says."""
    if worker is None:
        return None
    status = {k: v for k, v in worker.get("status", {}).items() if k != "agent"}
    return worker["spec"], status, worker["metadata"].get("deletionTimestamp")


def _speaker(worker: dict[str, Any] | None) -> str | None:
    """The Pod whose agent reports."""
    return ((worker or {}).get("status", {}).get("agent") or {}).get("podUid")


def _without_steps(worker: dict[str, Any] | None) -> tuple[object, ...] | None:
    """Of the agent's progress no more than its last checkpoint, and in which rounds there was any."""
    report = (worker or {}).get("status", {}).get("agent") or {}
    rest = {k: v for k, v in report.items() if k not in ("progress", "rounds", "usage")}
    rounds = [told["round"] for told in report.get("rounds") or ()]
    return _without_report(worker), rest, (report.get("progress") or {}).get("checkpointStep"), rounds


def _planned(plan: dict[str, Any] | None) -> tuple[object, ...] | None:
    if plan is None:
        return None
    status, metadata = plan.get("status", {}), plan["metadata"]
    return plan["spec"], status.get("phase"), status.get("replicas"), metadata.get("deletionTimestamp")


def _voice(worker: dict[str, Any] | None) -> tuple[object, ...] | None:
    if worker is None:
        return None
    status = worker.get("status", {})
    report = status.get("agent") or {}
    said = [report.get(key) for key in ("incarnation", "podUid", "state", "check")]
    known = [status.get(key) for key in ("observedIncarnation", "phase", "podUid", "nodeName", "conditions")]
    return worker["spec"]["incarnation"], worker["metadata"].get("deletionTimestamp"), *said, *known


def _part_in_checks(job: dict[str, Any] | None) -> tuple[object, ...] | None:
    if job is None:
        return None
    status = job.get("status", {})
    return status.get("activeCheck"), status.get("phase"), (status.get("rendezvous") or {}).get("phase")


def _ending(check: dict[str, Any] | None) -> tuple[object, ...] | None:
    """What a job goes by: whether the check has finished, with which verdicts, and whether it is to go."""
    if check is None:
        return None
    status = check.get("status", {})
    return status.get("phase"), status.get("nodeResults"), check["metadata"].get("deletionTimestamp")


def _named(nodes: Iterable[str]) -> list[Request]:
    return [Request(None, name) for name in nodes]


def _requests(objects: Iterable[dict[str, Any]]) -> list[Request]:
    return [Request(o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
