"""The controllers of checks and of their NetworkPolicies, and the checks' part in the job's controller."""

from __future__ import annotations

from collections.abc import Iterable

from controller.builder import ControllerBuilder, requests_for
from controller.cache import Cache
from controller.client import AsyncClient
from controller.manager import Manager
from controller.reconciler import Request
from controller.resources import NAMESPACES, NETWORKPOLICIES, NODES, Object
from controller.store import Change
from crds.elasticworker import ElasticWorker
from crds.nodecheck import NodeCheck
from reconcilers.findings.finished import decided_nodes, is_finished
from reconcilers.job.seen import Vetter, Wake
from reconcilers.job.strategy import Strategies
from reconcilers.nodecheck.claiming import BY_CLAIM, claim_keys
from reconcilers.nodecheck.claims import WAITING_FOR_CHECK
from reconcilers.nodecheck.condition import KIND
from reconcilers.nodecheck.job_checks import JobChecksView
from reconcilers.nodecheck.pod import CheckAssignment, CheckCompanionReconciler
from reconcilers.nodecheck.reconciler import NodeCheckReconciler
from reconcilers.nodecheck.records import NodeRecordReconciler
from reconcilers.observed.options import CordonMode, CordonOptions, PodOptions
from reconcilers.observed.ownership import BY_JOB
from reconcilers.observed.trust import CLUSTER, Trust
from reconcilers.predicates import (
    appears,
    change_of,
    cordon_label_changes,
    more_than_metadata,
    more_than_status,
)
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS
from reconcilers.runtime.managed_by import OfOurJobs
from reconcilers.runtime.reconciled import ReconciledCondition
from reconcilers.runtime.tools import Tools
from reconcilers.worker.assignment import OtherOwner
from reconcilers.worker.reconciler import job_keys

WORKERS = 2
RECORD_WORKERS = 16
TIMEOUT_SECONDS = 600.0
"""Time limit of one look, which decides on up to 10,000 nodes."""


def add(
    manager: Manager,
    tools: Tools,
    options: PodOptions,
    cordons: CordonOptions,
    strategies: Strategies,
    owners: list[OtherOwner],
) -> None:
    """Register the controllers with the manager, and the checks with the controllers of jobs and workers."""
    cache = manager.cache
    add_indexes(cache)
    strategies.vetter = vetter_of(tools.client, cache)
    owners.append(owner_of(cache, options.check_image))
    _add_checks(manager, tools, options)
    (
        ControllerBuilder(manager, "checkcompanion")
        .for_(NODECHECKS, predicate=more_than_status)
        .owns(NETWORKPOLICIES, predicate=more_than_status)
        .reports_to(ReconciledCondition(tools, "checkcompanion", NODECHECKS))
        .with_workers(WORKERS)
        .build(CheckCompanionReconciler(tools))
    )
    if cordons.mode is not CordonMode.OFF:
        _add_records(manager, tools)


def add_indexes(cache: Cache) -> None:
    """Add the index of claims."""
    cache.add_index(NODECHECKS, BY_CLAIM, claim_keys)


def _add_checks(manager: Manager, tools: Tools, options: PodOptions) -> None:
    cache = manager.cache
    jobs, checks = cache.store(ELASTICJOBS), cache.store(NODECHECKS)

    def active_check(worker: Object) -> Iterable[Request]:
        """The worker's job's current check."""
        namespace = worker["metadata"]["namespace"]
        job = jobs.get(namespace, worker["spec"].get("jobName") or "")
        active = (job or {}).get("status", {}).get("activeCheck")
        return [Request(namespace, active)] if active else []

    def checks_of_job(job: Object) -> Iterable[Request]:
        namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
        return requests_for(checks.by_index(BY_JOB, f"{namespace}/{name}"))

    reconciler = NodeCheckReconciler(tools, options.workers_per_namespace)
    controller = (
        ControllerBuilder(manager, "nodecheck")
        .for_(NODECHECKS)
        .owns(ELASTICWORKERS, predicate=more_of_an_answer)
        .watches(ELASTICWORKERS, active_check, predicate=more_of_an_answer)
        .watches(ELASTICJOBS, checks_of_job, predicate=more_of_a_jobs_checks)
        .watches(NODECHECKS, reconciler.made_way, predicate=makes_way)
        .serves_first(Trust(cache).is_administrators)
        .reports_to(ReconciledCondition(tools, "nodecheck", NODECHECKS))
        .with_workers(WORKERS)
        .with_timeout(TIMEOUT_SECONDS)
        .build(OfOurJobs(reconciler, cache, NODECHECKS, job_keys))
    )
    reconciler.wake = controller.look_at


def _add_records(manager: Manager, tools: Tools) -> None:
    nodes, trust = manager.cache.store(NODES), Trust(manager.cache)

    def decided(check: Object) -> Iterable[Request]:
        counts = trust.counts(check["metadata"]["namespace"], CLUSTER)
        return [Request(None, node) for node in decided_nodes(check)] if counts else []

    def all_nodes(_: Object) -> Iterable[Request]:
        return requests_for(nodes.list())

    (
        ControllerBuilder(manager, "noderecord")
        .for_(NODES, predicate=appears)
        .watches(NODECHECKS, decided, predicate=more_than_metadata)
        .watches(NAMESPACES, all_nodes, predicate=cordon_label_changes)
        .with_workers(RECORD_WORKERS)
        .build(NodeRecordReconciler(tools))
    )


def checked_job(check: Object) -> Iterable[Request]:
    """The job whose workers a NodeCheck tests."""
    job = check["spec"].get("jobName")
    return [Request(check["metadata"].get("namespace"), job)] if job else []


def vetter_of(client: AsyncClient, cache: Cache) -> Vetter:
    """The feature that vets a job's nodes by its checks."""
    wake = Wake(NODECHECKS, checked_job, begins_or_ends)
    return Vetter(JobChecksView(client, cache).of, (KIND,), (wake,))


def owner_of(cache: Cache, image: str) -> OtherOwner:
    """NodeChecks as owners of ElasticWorkers.

    Args:
        image: image of Pods whose check has no template.
    """
    nodes, parse = cache.store(NODES), cache.models(NODECHECKS, NodeCheck)

    def assign(worker: ElasticWorker, owner: Object) -> CheckAssignment | None:
        check = parse.parse_or_none(owner)
        node = nodes.get(None, worker.spec.node_name) if worker.spec.node_name else None
        return None if check is None else CheckAssignment(worker, owner, check, node, image)

    return OtherOwner(NODECHECKS, assign, ends)


def makes_way(change: Change) -> bool:
    """Whether a check has finished, is gone, or has released some of its nodes, so that others may begin."""
    old, new = change.old, change.new
    if old is None:
        return False
    return new is None or is_finished(new) or appears(change) or _left_behind(old) != _left_behind(new)


def ends(change: Change) -> bool:
    """Whether a check has just finished or been marked for deletion, which releases its own workers."""
    old, new = change.old, change.new
    return new is not None and _is_over(new) and not (old is not None and _is_over(old))


@change_of
def begins_or_ends(check: Object) -> object:
    """The parts of a check that concern its job: its end, its verdicts, and a wait for another check."""
    status = check.get("status", {})
    waits = _waits_for_check(check)
    return status.get("phase"), waits, status.get("nodeSets"), check["metadata"].get("deletionTimestamp")


@change_of
def more_of_an_answer(worker: Object) -> object:
    """The parts of a worker that concern a check: the state and node of its Pod, and its agent's answers."""
    status = worker.get("status", {})
    report = status.get("agent") or {}
    reported = [report.get(key) for key in ("incarnation", "podUid", "state", "check")]
    of_pod = [status.get(key) for key in ("observedIncarnation", "phase", "podUid", "nodeName", "conditions")]
    return worker["spec"]["incarnation"], worker["metadata"].get("deletionTimestamp"), *reported, *of_pod


@change_of
def more_of_a_jobs_checks(job: Object) -> object:
    """The parts of a job that concern its checks: its current one, its phase, and its world's phase."""
    status = job.get("status", {})
    return status.get("activeCheck"), status.get("phase"), (status.get("rendezvous") or {}).get("phase")


def _is_over(check: Object) -> bool:
    return is_finished(check) or bool(check["metadata"].get("deletionTimestamp"))


def _waits_for_check(check: Object) -> bool:
    """Return whether a check waits for another one."""
    conditions = check.get("status", {}).get("conditions") or ()
    return any(
        (c["type"], c["status"], c["reason"]) == ("Running", "False", WAITING_FOR_CHECK) for c in conditions
    )


def _left_behind(check: Object) -> object:
    """The nodes that an unfinished check has released."""
    status = check.get("status", {})
    return status.get("nodeSets") or {}  # the first status has an empty one
