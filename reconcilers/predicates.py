"""Predicates: whether a change wakes a reconciler.

Most predicates are a view of one stored object: a change matters if the view differs from the one before
(`change_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from controller.builder import ControllerBuilder
from controller.cache import Cache
from controller.reconciler import Request
from controller.resources import Object
from controller.store import Change
from reconcilers.observed.containers import has_ended
from reconcilers.observed.device_taints import DeviceTaints, taint_view
from reconcilers.observed.hardware import fault_view
from reconcilers.observed.reach import silent_peers
from reconcilers.observed.trust import may_cordon
from reconcilers.runtime.kinds import DEVICETAINTRULES, RESOURCECLAIMS, RESOURCESLICES


def change_of(view: Callable[[Object], object]) -> Callable[[Change], bool]:
    """Return a predicate that is true if the view changes, or the object appears or goes."""

    def differs(change: Change) -> bool:
        old, new = change.old, change.new
        return (None if old is None else view(old)) != (None if new is None else view(new))

    return differs


def appears(change: Change) -> bool:
    """Whether the object is new, even if another had its name; dependents may have been seen before it."""
    old, new = change.old, change.new
    return new is not None and (old is None or old["metadata"]["uid"] != new["metadata"]["uid"])


def goes(change: Change) -> bool:
    """Whether the object is deleted."""
    return change.new is None


@change_of
def is_news_of_node(node: Object) -> object:
    """The node's Ready condition, and the fault that its agents report. Workers depend only on these, and
    kubelets write often."""
    conditions = node.get("status", {}).get("conditions", ())
    ready = [c["status"] for c in conditions if c["type"] == "Ready"]
    return node["metadata"]["uid"], ready, fault_view(node)


@change_of
def more_than_status(obj: Object) -> object:
    """The desired state of an object, and its end. For a job also: whether a queue grants it Pods; how many
    workers are needed, which limits its minimum, and which are replaced, as both are in its status one write
    after its count; and whether it ever had a world."""
    metadata = [obj["metadata"].get(key) for key in ("labels", "ownerReferences", "deletionTimestamp")]
    status = obj.get("status", {})
    needed = (status.get("scaling") or {}).get("base"), status.get("migrations")
    has_begun = bool((status.get("rendezvous") or {}).get("round"))
    return generation_of(obj), has_ended(obj), _is_queued(obj), has_begun, *needed, *metadata


def is_granted(change: Change) -> bool:
    """Whether a queue grants a job its first Pods, for which workers that were seen before wait."""
    old, new = change.old, change.new
    return old is not None and new is not None and _is_queued(old) and not _is_queued(new)


def _is_queued(job: Object) -> bool:
    return (job.get("status", {}).get("admission") or {}).get("workers") == 0


@change_of
def halts_or_goes_on(job: Object) -> object:
    """The parts of a job on which its workers depend, without the counts that follow their Pods."""
    return generation_of(job), job.get("status", {}).get("phase"), job["metadata"].get("deletionTimestamp")


@change_of
def more_than_a_renewal(lease: Object) -> object:
    """The holder of a Lease. Agents renew it every few seconds, and its worker checks it when it is due."""
    spec = lease.get("spec", {})
    return lease["metadata"]["uid"], spec.get("holderIdentity"), "renewTime" in spec


@change_of
def more_than_an_agents_later_reports(worker: Object) -> object:
    """All but an agent's later reports: from the first on, silence counts, even without a Lease renewal."""
    return without_report(worker), (worker.get("status", {}).get("agent") or {}).get("podUid")


@change_of
def more_silent_peers(worker: Object) -> object:
    """The members that its agent reports as silent."""
    return silent_peers(worker)


_OF_REPORTS = (
    *("protocol", "incarnation", "podUid", "address", "storePort", "localWorldSize"),
    *("observedRound", "state", "since", "failure", "departure"),
    *("slow", "checkpointTrouble", "livedOn", "lingers"),
)
"""Fields of a report on which a job's decisions depend, beside those that `more_than_progress` adds."""
_OF_REPLICAS = ("round", "brokenVersion", "leftOutVersion", "lateVersion", "lateGroups")
"""The same of a report's field `replicas`."""


@change_of
def more_than_progress(worker: Object) -> object:
    """The parts of a worker on which a job's decisions depend, without its steps, reported every few seconds.

    A checkpoint is one of them, since a world may wait for it to grow. So are the first step of a round, with
    which the job trains (again), a loss that becomes NaN or infinite, the checkpoint that a round resumed
    from, and the worker's progress in the replica groups.
    """
    report = worker.get("status", {}).get("agent") or {}
    return (
        without_report(worker),
        *(report.get(field) for field in _OF_REPORTS),
        (report.get("progress") or {}).get("checkpointStep"),
        [(each["round"], each.get("nonFiniteStep")) for each in report.get("rounds") or ()],
        (report.get("memory") or {}).get("resumed"),
        *((report.get("replicas") or {}).get(field) for field in _OF_REPLICAS),
    )


def without_report(worker: Object) -> object:
    """Return spec, status and deletion of an ElasticWorker, without its agent's report."""
    status = {field: value for field, value in worker.get("status", {}).items() if field != "agent"}
    return worker["spec"], status, worker["metadata"].get("deletionTimestamp")


def generation_of(obj: Object) -> object:
    """Return a substitute for the spec, which may be 1 MB large, or nested too deeply to be compared."""
    return obj["metadata"]["uid"], obj["metadata"].get("generation")


def wakes_by_device_taints(
    controller: ControllerBuilder, cache: Cache, requests_of: Callable[[Object], Iterable[Request]]
) -> None:
    """Wake a controller when the taints of a Pod's devices change.

    Args:
        requests_of: the requests for a raw Pod.
    """
    taints = cache.shared(DeviceTaints)

    def map_function(obj: Object) -> Iterable[Request]:
        return {request for pod in taints.pods_of(obj) for request in requests_of(pod)}

    for resource in (RESOURCESLICES, RESOURCECLAIMS, DEVICETAINTRULES):
        controller.watches(resource, map_function, predicate=change_of(taint_view))


@change_of
def more_than_metadata(check: Object) -> object:
    """What the verdicts of a NodeCheck follow from; tenants may label it often."""
    return generation_of(check), check.get("status"), check["metadata"].get("deletionTimestamp")


def cordon_label_changes(change: Change) -> bool:
    """Whether the Namespace's may-cordon label changed, which is rare, and triggers a look at all nodes."""
    return may_cordon(change.old) != may_cordon(change.new)
