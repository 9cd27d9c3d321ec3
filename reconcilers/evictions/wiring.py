"""The controller of announced evictions, and the changes that trigger it."""

from __future__ import annotations

from collections.abc import Iterable

from controller.builder import ControllerBuilder, controller_owner
from controller.manager import Manager
from controller.reconciler import Request
from controller.resources import NODES, Object
from controller.slices import computed
from crds import names
from crds.elasticjob import ElasticJob
from reconcilers.evictions.notices import BY_ANNOUNCED, Notices, announced_keys
from reconcilers.evictions.plan import held_seconds
from reconcilers.evictions.reconciler import EvictionReconciler
from reconcilers.observed.announced import announcement
from reconcilers.predicates import change_of, wakes_by_device_taints
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.runtime.managed_by import build_for_jobs
from reconcilers.runtime.tools import Tools
from reconcilers.worker.companions import EvictionHold
from reconcilers.worker.reconciler import BY_NODE

WORKERS = 4


def add(manager: Manager, tools: Tools, holds: list[EvictionHold]) -> None:
    """Register the controller with the manager, and the hold of budgets. Most looks end at once: few nodes
    announce evictions, and a Node triggers looks only at the jobs of its own workers."""
    cache = manager.cache
    cache.add_index(NODES, BY_ANNOUNCED, announced_keys)
    notices, workers = Notices(cache, tools.clock), cache.store(ELASTICWORKERS)
    job_of = controller_owner(ELASTICJOBS)

    def jobs_on(node: Object) -> Iterable[Request]:
        notices.remember(node)
        found = workers.by_index(BY_NODE, node["metadata"]["name"])
        return {job for worker in found for job in job_of(worker)}

    def jobs_with(pod: Object) -> Iterable[Request]:
        owners = controller_owner(ELASTICWORKERS)(pod)
        found = (workers.get(owner.namespace, owner.name) for owner in owners)
        return (job for worker in found if worker is not None for job in job_of(worker))

    def watch(controller: ControllerBuilder) -> None:
        controller.watches(NODES, jobs_on, predicate=more_of_announcements)
        wakes_by_device_taints(controller, cache, jobs_with)

    def hold_seconds(job: ElasticJob) -> float:
        return held_seconds(job, notices.of(job))

    async def compute_hold(job: ElasticJob) -> float:
        return await computed(notices.look_size(job), hold_seconds, job)

    holds.append(EvictionHold(compute_hold, watch))
    controller = ControllerBuilder(manager, "evictions").for_(ELASTICJOBS, predicate=more_of_moves)
    watch(controller.owns(ELASTICWORKERS, predicate=more_of_its_place))
    build_for_jobs(controller, EvictionReconciler(tools, notices), tools, WORKERS)


@change_of
def more_of_announcements(node: Object) -> object:
    """Whether a node announces evictions."""
    return node["metadata"]["uid"], bool(announcement(node))


@change_of
def more_of_its_place(worker: Object) -> object:
    """The node of a worker's Pod, and whether it runs."""
    status = worker.get("status") or {}
    return worker["spec"]["incarnation"], *(
        status.get(key) for key in ("phase", "nodeName", "observedIncarnation")
    )


@change_of
def more_of_moves(job: Object) -> object:
    """A job's requested and current moves, and its phase, since only training workers move."""
    status, metadata = job.get("status") or {}, job["metadata"]
    asked = (metadata.get("annotations") or {}).get(names.ANNOTATION_SCALE)
    moves = status.get("scaleRequest"), status.get("migrations")
    return metadata["uid"], metadata.get("generation"), status.get("phase"), asked, *moves
