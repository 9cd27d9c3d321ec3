"""Which reconciler is woken by what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from controller.builder import ControllerBuilder
from controller.cache import Cache
from controller.manager import Manager
from controller.reconciler import Request
from controller.resources import (
    LEASES,
    NETWORKPOLICIES,
    NODES,
    PODDISRUPTIONBUDGETS,
    PODS,
    ROLEBINDINGS,
    ROLES,
    SERVICEACCOUNTS,
)
from crds import names
from reconcilers.autoscaling import wiring as autoscaling
from reconcilers.cordon import wiring as cordon
from reconcilers.gang import wiring as gang
from reconcilers.groups import wiring as groups
from reconcilers.job.reconciler import ElasticJobReconciler
from reconcilers.job.strategy import Strategies
from reconcilers.metrics import JobMetrics
from reconcilers.nodecheck.claiming import BY_CLAIM, claim_keys
from reconcilers.nodecheck.finished import BY_VERDICT, verdict_keys
from reconcilers.nodecheck.reconciler import NodeCheckReconciler
from reconcilers.observed.options import CordonOptions, PodOptions
from reconcilers.observed.ownership import BY_JOB, BY_OWNER, owner_uids
from reconcilers.observed.trust import Trust
from reconcilers.observed.worker_state import is_refused_its_pod
from reconcilers.predicates import (
    appears,
    becomes_ready_or_not,
    begins_or_ends,
    finishes,
    goes,
    halts_or_goes_on,
    makes_way,
    more_of_a_jobs_checks,
    more_of_an_answer,
    more_than_a_renewal,
    more_than_an_agents_later_reports,
    more_than_progress,
    more_than_status,
)
from reconcilers.roles import wiring as roles
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, ELASTICWORLDS, NODECHECKS, SCALEPLANS
from reconcilers.runtime.managed_by import OfOurJobs, own_key
from reconcilers.runtime.reconciled import UnreadableReconciler, reporter
from reconcilers.scale.writer import pods_job
from reconcilers.scaleplan import wiring as scaleplan
from reconcilers.shapes import SHAPES
from reconcilers.shards import wiring as shards
from reconcilers.worker.companions import CheckCompanionReconciler, CompanionReconciler
from reconcilers.worker.gates import Gate
from reconcilers.worker.leavers import BY_SLOT, slot_keys
from reconcilers.worker.reconciler import BY_NODE, WorkerReconciler, job_keys, node_names

_OURS = f"{names.LABEL_MANAGED_BY}={names.MANAGER}"
WATCHED_BY_LABEL = dict.fromkeys(
    (PODS, LEASES, NETWORKPOLICIES, PODDISRUPTIONBUDGETS, SERVICEACCOUNTS, ROLES, ROLEBINDINGS), _OURS
)
"""For `ManagerOptions.label_selectors`: a cluster has many of these that are none of our business."""

JOB_WORKERS = 8
WORKER_WORKERS = 16
COMPANION_WORKERS = 4
CHECK_WORKERS = 2
CHECK_TIMEOUT_SECONDS = 600.0
"""A check of 10,000 nodes makes as many workers in one look."""


def add_all(
    manager: Manager,
    cordons: CordonOptions | None = None,
    pods: PodOptions | None = None,
    clock: Clock | None = None,
) -> None:
    """Register every controller with the manager. Benchmarks bring their own clock."""
    clock = clock or Clock()
    manager.cache.keep_only(SHAPES)
    add_indexes(manager.cache)
    strategies, gates = Strategies(), list[Gate]()
    roles.add(strategies)
    gang.add(manager, clock, gates)
    add_jobs(manager, clock, pods or PodOptions(), strategies)
    autoscaling.add(manager, clock)
    scaleplan.add(manager, clock, strategies.counts_fault)
    groups.add(manager, clock)
    shards.add(manager, clock)
    add_workers(manager, clock, pods or PodOptions(), strategies, gates)
    add_companions(manager, clock, strategies)
    add_node_checks(manager, clock, pods or PodOptions())
    cordon.add(manager, clock, cordons or CordonOptions())
    _add_unreadable(manager, clock)
    manager.metrics_registry.register(JobMetrics(manager.cache, clock, lambda: manager.is_leader))


def add_indexes(cache: Cache) -> None:
    """What the reconcilers look up in the cache besides names."""
    cache.add_index(ELASTICJOBS, BY_OWNER, owner_uids)
    cache.add_index(ELASTICWORKERS, BY_JOB, job_keys)
    cache.add_index(ELASTICWORKERS, BY_NODE, node_names)
    cache.add_index(ELASTICWORKERS, BY_OWNER, owner_uids)
    cache.add_index(NODECHECKS, BY_JOB, job_keys)
    cache.add_index(NODECHECKS, BY_CLAIM, claim_keys)
    cache.add_index(NODECHECKS, BY_VERDICT, verdict_keys)
    cache.add_index(PODS, BY_OWNER, owner_uids)
    cache.add_index(PODS, BY_JOB, pods_job)
    cache.add_index(PODS, BY_SLOT, slot_keys)


def add_jobs(manager: Manager, clock: Clock, options: PodOptions, strategies: Strategies) -> None:
    most = options.workers_per_namespace
    jobs = ElasticJobReconciler(manager.client, manager.cache, manager.recorder, clock, most, strategies.plan)
    (
        ControllerBuilder(manager, "elasticjob")
        .for_(ELASTICJOBS)
        .owns(ELASTICWORKERS, predicate=more_than_progress)
        .owns(ELASTICWORLDS)
        .watches(NODECHECKS, checked_job, predicate=begins_or_ends)
        .reports_to(reporter(manager, "elasticjob", ELASTICJOBS, clock))
        .with_workers(JOB_WORKERS)
        .build(OfOurJobs(jobs, manager.cache, ELASTICJOBS, own_key))
    )


def add_workers(
    manager: Manager, clock: Clock, options: PodOptions, strategies: Strategies, gates: Sequence[Gate]
) -> None:
    cache = manager.cache
    workers = cache.store(ELASTICWORKERS)

    def owned_workers(owner: dict[str, Any]) -> Iterable[Request]:
        return _requests(workers.by_index(BY_OWNER, owner["metadata"]["uid"]))

    def workers_of_job(job: dict[str, Any]) -> Iterable[Request]:
        """Only what concerns Pods: suspension and the end, and an edit of a job whose Pods are refused. World
        changes are the agents' business."""
        halted = ("Suspended", "Succeeded", "Failed")
        found = workers.by_index(BY_OWNER, job["metadata"]["uid"])
        if job["spec"].get("suspend") or job.get("status", {}).get("phase") in halted:
            return _requests(found)
        return _requests(filter(is_refused_its_pod, found))

    def workers_of_check(check: dict[str, Any]) -> Iterable[Request]:
        """Its own, when it has finished; those of a job that it checks are the job's."""
        if check.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            return []
        return owned_workers(check)

    def workers_on_node(node: dict[str, Any]) -> Iterable[Request]:
        conditions = node.get("status", {}).get("conditions", ())
        if any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
            return []
        return _requests(workers.by_index(BY_NODE, node["metadata"]["name"]))

    def workers_beside(obj: dict[str, Any]) -> Iterable[Request]:
        """The workers of its owner: what their agents have rights by is gone."""
        return _requests(found for uid in owner_uids(obj) for found in workers.by_index(BY_OWNER, uid))

    def owner(request: Request) -> Request:
        """Workers of different jobs and checks take turns, with each other and with the job's own work."""
        worker = workers.get(request.namespace, request.name)
        spec = worker["spec"] if worker is not None else {}
        return Request(request.namespace, spec.get("jobName") or spec.get("checkName") or request.name)

    pods = WorkerReconciler(
        manager.client, cache, manager.recorder, manager.contact, clock, options, strategies.assign, gates
    )
    (
        ControllerBuilder(manager, "elasticworker")
        .for_(ELASTICWORKERS, predicate=more_than_an_agents_later_reports)
        .owns(PODS)
        .owns(LEASES, predicate=more_than_a_renewal)
        .watches(ELASTICJOBS, owned_workers, predicate=appears)
        .watches(ELASTICJOBS, workers_of_job, predicate=halts_or_goes_on)
        .watches(NODECHECKS, owned_workers, predicate=appears)
        .watches(NODECHECKS, workers_of_check, predicate=finishes)
        .watches(NODES, workers_on_node, predicate=becomes_ready_or_not)
        .watches(SERVICEACCOUNTS, workers_beside, predicate=goes)
        .watches(ROLES, workers_beside, predicate=goes)
        .watches(ROLEBINDINGS, workers_beside, predicate=goes)
        .in_flows(owner)
        .reports_to(reporter(manager, "elasticworker", ELASTICWORKERS, clock))
        .with_workers(WORKER_WORKERS)
        .build(OfOurJobs(pods, cache, ELASTICWORKERS, job_keys))
    )


def add_companions(manager: Manager, clock: Clock, strategies: Strategies) -> None:
    service_of = strategies.service_of
    reconciler = CompanionReconciler(manager.client, manager.cache, manager.recorder, service_of)
    (
        ControllerBuilder(manager, "jobcompanion")
        .for_(ELASTICJOBS, predicate=more_than_status)
        .owns(PODDISRUPTIONBUDGETS, predicate=more_than_status)
        .owns(NETWORKPOLICIES, predicate=more_than_status)
        .reports_to(reporter(manager, "jobcompanion", ELASTICJOBS, clock))
        .with_workers(COMPANION_WORKERS)
        .build(OfOurJobs(reconciler, manager.cache, ELASTICJOBS, own_key))
    )
    (
        ControllerBuilder(manager, "checkcompanion")
        .for_(NODECHECKS, predicate=more_than_status)
        .owns(NETWORKPOLICIES, predicate=more_than_status)
        .reports_to(reporter(manager, "checkcompanion", NODECHECKS, clock))
        .with_workers(CHECK_WORKERS)
        .build(CheckCompanionReconciler(manager.client, manager.cache, manager.recorder))
    )


def add_node_checks(manager: Manager, clock: Clock, options: PodOptions) -> None:
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

    reconciler = NodeCheckReconciler(
        manager.client, cache, manager.recorder, manager.contact, clock, options.workers_per_namespace
    )
    controller = (
        ControllerBuilder(manager, "nodecheck")
        .for_(NODECHECKS)
        .owns(ELASTICWORKERS, predicate=more_of_an_answer)
        .watches(ELASTICWORKERS, active_check, predicate=more_of_an_answer)
        .watches(ELASTICJOBS, checks_of_job, predicate=more_of_a_jobs_checks)
        .watches(NODECHECKS, reconciler.made_way, predicate=makes_way)
        .serves_first(Trust(cache).is_administrators)
        .reports_to(reporter(manager, "nodecheck", NODECHECKS, clock))
        .with_workers(CHECK_WORKERS)
        .with_timeout(CHECK_TIMEOUT_SECONDS)
        .build(OfOurJobs(reconciler, cache, NODECHECKS, job_keys))
    )
    reconciler.have_looked_at = controller.look_at


def _add_unreadable(manager: Manager, clock: Clock) -> None:
    """Report unreadable objects; their conditions have the name of the controller that withdraws them."""
    conditions = {
        resource: reporter(manager, controller, resource, clock)
        for controller, resource in (
            ("elasticjob", ELASTICJOBS),
            ("nodecheck", NODECHECKS),
            ("scaleplan", SCALEPLANS),
        )
    }
    reconciler = UnreadableReconciler(manager.cache, manager.recorder, conditions)
    ControllerBuilder(manager, "unreadable").for_unreadable().build(reconciler)


def checked_job(check: dict[str, Any]) -> Iterable[Request]:
    """The job whose workers a NodeCheck is of."""
    job = check["spec"].get("jobName")
    return [Request(check["metadata"].get("namespace"), job)] if job else []


def _requests(objects: Iterable[dict[str, Any]]) -> list[Request]:
    return [Request(o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
