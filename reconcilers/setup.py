"""Registration of all reconcilers, with the changes that wake them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from controller.builder import ControllerBuilder, controller_owner, requests_for
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
from reconcilers.evictions import wiring as evictions
from reconcilers.findings.faulty import is_ready
from reconcilers.findings.finished import BY_VERDICT, verdict_keys
from reconcilers.gang import wiring as gang
from reconcilers.groups import wiring as groups
from reconcilers.job.reconciler import ElasticJobReconciler
from reconcilers.job.strategy import Strategies
from reconcilers.kueue import wiring as kueue
from reconcilers.metrics import JobMetrics
from reconcilers.nodecheck import wiring as nodecheck
from reconcilers.observed import device_taints
from reconcilers.observed.hardware import own_fault
from reconcilers.observed.options import CordonOptions, PodOptions
from reconcilers.observed.ownership import BY_JOB, BY_OWNER, owner_uids
from reconcilers.observed.worker_state import is_refused_its_pod
from reconcilers.predicates import (
    appears,
    goes,
    halts_or_goes_on,
    is_granted,
    is_news_of_node,
    more_silent_peers,
    more_than_a_renewal,
    more_than_an_agents_later_reports,
    more_than_progress,
    more_than_status,
    wakes_by_device_taints,
)
from reconcilers.recheck import wiring as recheck
from reconcilers.roles import wiring as roles
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, ELASTICWORLDS, NODECHECKS, SCALEPLANS
from reconcilers.runtime.managed_by import OfOurJobs, build_for_jobs
from reconcilers.runtime.reconciled import ReconciledCondition, UnreadableReconciler
from reconcilers.runtime.tools import Tools
from reconcilers.scale.writer import pods_job
from reconcilers.scaleplan import wiring as scaleplan
from reconcilers.shapes import SHAPES
from reconcilers.shards import wiring as shards
from reconcilers.tracing import wiring as tracing
from reconcilers.worker.assignment import Gate, OtherOwner
from reconcilers.worker.companions import CompanionReconciler, EvictionHold
from reconcilers.worker.dialling import Dials
from reconcilers.worker.image_volumes import BY_IMAGE_VOLUMES, image_volume_keys
from reconcilers.worker.leavers import BY_SLOT, slot_keys
from reconcilers.worker.reach import BY_SILENT_PEER, silent_peer_keys, silent_peers_of
from reconcilers.worker.reconciler import BY_NODE, WorkerReconciler, job_keys, node_names

_OURS = f"{names.LABEL_MANAGED_BY}={names.MANAGER}"
WATCHED_BY_LABEL = dict.fromkeys(
    (PODS, LEASES, NETWORKPOLICIES, PODDISRUPTIONBUDGETS, SERVICEACCOUNTS, ROLES, ROLEBINDINGS), _OURS
)
"""For `ManagerOptions.label_selectors`: a cluster has many other objects of these kinds."""

JOB_WORKERS = 8
WORKER_WORKERS = 16
COMPANION_WORKERS = 4


def add_all(
    manager: Manager,
    cordons: CordonOptions | None = None,
    pods: PodOptions | None = None,
    clock: Clock | None = None,
    dials: Dials | None = None,
    *,
    queues: bool = False,
) -> None:
    """Register every controller with the manager.

    Args:
        clock: the clock; benchmarks inject their own.
        dials: connections to agents; tests inject their own.
        queues: whether jobs wait in queues of Kueue.
    """
    clock = clock or Clock()
    tools = Tools(manager.client, manager.cache, manager.recorder, manager.contact, clock)
    manager.cache.keep_only(SHAPES)
    add_indexes(manager.cache)
    strategies, gates, owners, holds = Strategies(), list[Gate](), list[OtherOwner](), list[EvictionHold]()
    roles.add(strategies)
    gang.add(manager, tools, gates)
    kueue.add(manager, tools, gates, is_wanted=queues)
    nodecheck.add(manager, tools, pods or PodOptions(), cordons or CordonOptions(), strategies, owners)
    add_jobs(manager, tools, pods or PodOptions(), strategies)
    autoscaling.add(manager, tools)
    evictions.add(manager, tools, holds)
    scaleplan.add(manager, tools, strategies.counts_fault)
    groups.add(manager, tools)
    shards.add(manager, tools)
    tracing.add(manager, tools)
    add_workers(manager, tools, pods or PodOptions(), strategies, gates, owners, dials)
    add_companions(manager, tools, strategies, holds, (pods or PodOptions()).controller_namespace)
    cordon.add(manager, tools, cordons or CordonOptions())
    recheck.add(manager, tools, cordons or CordonOptions())
    _add_unreadable(manager, tools)
    manager.metrics_registry.register(JobMetrics(manager.cache, clock, lambda: manager.is_leader))


def add_indexes(cache: Cache) -> None:
    """Add the indexes of the cache by which reconcilers find objects."""
    cache.add_index(ELASTICJOBS, BY_OWNER, owner_uids)
    cache.add_index(ELASTICWORKERS, BY_JOB, job_keys)
    cache.add_index(ELASTICWORKERS, BY_NODE, node_names)
    cache.add_index(ELASTICWORKERS, BY_OWNER, owner_uids)
    cache.add_index(ELASTICWORKERS, BY_SILENT_PEER, silent_peer_keys)
    cache.add_index(NODECHECKS, BY_JOB, job_keys)
    cache.add_index(NODECHECKS, BY_VERDICT, verdict_keys)
    cache.add_index(NODES, BY_IMAGE_VOLUMES, image_volume_keys)
    cache.add_index(PODS, BY_OWNER, owner_uids)
    cache.add_index(PODS, BY_JOB, pods_job)
    cache.add_index(PODS, BY_SLOT, slot_keys)
    device_taints.add_indexes(cache)


def add_jobs(manager: Manager, tools: Tools, options: PodOptions, strategies: Strategies) -> None:
    most, vetter = options.workers_per_namespace, strategies.vetter
    jobs = ElasticJobReconciler(tools, most, strategies.plan, vetter)
    controller = ControllerBuilder(manager, "elasticjob").for_(ELASTICJOBS)
    controller.owns(ELASTICWORKERS, predicate=more_than_progress).owns(ELASTICWORLDS)
    for wake in vetter.wakes:
        controller.watches(wake.resource, wake.jobs_of, predicate=wake.predicate)
    build_for_jobs(controller, jobs, tools, JOB_WORKERS)


def add_workers(
    manager: Manager,
    tools: Tools,
    options: PodOptions,
    strategies: Strategies,
    gates: Sequence[Gate],
    owners: Sequence[OtherOwner],
    dials: Dials | None,
) -> None:
    cache = manager.cache
    workers = cache.store(ELASTICWORKERS)

    def owned_workers(owner: dict[str, Any]) -> Iterable[Request]:
        return requests_for(workers.by_index(BY_OWNER, owner["metadata"]["uid"]))

    def workers_of_job(job: dict[str, Any]) -> Iterable[Request]:
        """Requests for changes that concern Pods: suspension, the end, and an edit of a job whose Pods are
        refused. Only agents need changes of the world."""
        halted = ("Suspended", "Succeeded", "Failed")
        found = workers.by_index(BY_OWNER, job["metadata"]["uid"])
        if job["spec"].get("suspend") or job.get("status", {}).get("phase") in halted:
            return requests_for(found)
        return requests_for(filter(is_refused_its_pod, found))

    def workers_on_node(node: dict[str, Any]) -> Iterable[Request]:
        if is_ready(node) and own_fault(node) is None:
            return []
        return requests_for(workers.by_index(BY_NODE, node["metadata"]["name"]))

    def workers_beside(obj: dict[str, Any]) -> Iterable[Request]:
        """Requests for the workers of its owner, whose agents have lost their rights."""
        return requests_for(found for uid in owner_uids(obj) for found in workers.by_index(BY_OWNER, uid))

    def owner(request: Request) -> Request:
        """The owner as the flow of a worker, so that workers of different owners take turns."""
        worker = workers.get(request.namespace, request.name) or {"metadata": {}}
        owners_of = worker["metadata"].get("ownerReferences") or ()
        names_of = (each["name"] for each in owners_of if each.get("controller"))
        return Request(request.namespace, next(names_of, request.name))

    pods = WorkerReconciler(tools, options, strategies.assign, gates, owners, dials)
    controller = (
        ControllerBuilder(manager, "elasticworker")
        .for_(ELASTICWORKERS, predicate=more_than_an_agents_later_reports)
        .owns(PODS)
        .owns(LEASES, predicate=more_than_a_renewal)
        .watches(ELASTICWORKERS, silent_peers_of, predicate=more_silent_peers)
        .watches(ELASTICJOBS, owned_workers, predicate=appears)
        .watches(ELASTICJOBS, owned_workers, predicate=is_granted)
        .watches(ELASTICJOBS, workers_of_job, predicate=halts_or_goes_on)
        .watches(NODES, workers_on_node, predicate=is_news_of_node)
        .watches(SERVICEACCOUNTS, workers_beside, predicate=goes)
        .watches(ROLES, workers_beside, predicate=goes)
        .watches(ROLEBINDINGS, workers_beside, predicate=goes)
        .in_flows(owner)
        .reports_to(ReconciledCondition(tools, "elasticworker", ELASTICWORKERS))
        .with_workers(WORKER_WORKERS)
    )
    wakes_by_device_taints(controller, cache, controller_owner(ELASTICWORKERS))
    for kind in owners:
        controller.watches(kind.resource, owned_workers, predicate=appears)
        controller.watches(kind.resource, owned_workers, predicate=kind.ends)
    controller.build(OfOurJobs(pods, cache, ELASTICWORKERS, job_keys))


def add_companions(
    manager: Manager,
    tools: Tools,
    strategies: Strategies,
    holds: Sequence[EvictionHold],
    controller_namespace: str,
) -> None:
    service_of = strategies.service_of
    reconciler = CompanionReconciler(tools, service_of, holds, controller_namespace)
    controller = (
        ControllerBuilder(manager, "jobcompanion")
        .for_(ELASTICJOBS, predicate=more_than_status)
        .owns(PODDISRUPTIONBUDGETS, predicate=more_than_status)
        .owns(NETWORKPOLICIES, predicate=more_than_status)
    )
    for hold in holds:
        hold.watch(controller)
    build_for_jobs(controller, reconciler, tools, COMPANION_WORKERS)


def _add_unreadable(manager: Manager, tools: Tools) -> None:
    """Report unreadable objects; their conditions have the name of the controller that withdraws them."""
    conditions = {
        resource: ReconciledCondition(tools, controller, resource)
        for controller, resource in (
            ("elasticjob", ELASTICJOBS),
            ("nodecheck", NODECHECKS),
            ("scaleplan", SCALEPLANS),
        )
    }
    reconciler = UnreadableReconciler(tools, conditions)
    ControllerBuilder(manager, "unreadable").for_unreadable().build(reconciler)
