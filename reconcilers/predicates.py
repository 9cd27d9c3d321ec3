"""Which changes wake a reconciler, and which do not concern it.

Most predicates are a view of one object, as the API server stores it: the change matters if what the view
shows is another than before (`change_of`).
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
from reconcilers.runtime.kinds import DEVICETAINTRULES, RESOURCECLAIMS, RESOURCESLICES


def change_of(view: Callable[[Object], object]) -> Callable[[Change], bool]:
    """Return the predicate that is true where the view changes, or the object appears or goes."""

    def differs(change: Change) -> bool:
        old, new = change.old, change.new
        return (None if old is None else view(old)) != (None if new is None else view(new))

    return differs


def appears(change: Change) -> bool:
    """The object was not there, or another of its name was. Objects that were looked at before need it."""
    old, new = change.old, change.new
    return new is not None and (old is None or old["metadata"]["uid"] != new["metadata"]["uid"])


def goes(change: Change) -> bool:
    """The object is deleted."""
    return change.new is None


@change_of
def is_news_of_node(node: Object) -> object:
    """The node's Ready condition, and the fault that its agents report. Workers go by these alone; kubelets
    write often."""
    conditions = node.get("status", {}).get("conditions", ())
    ready = [c["status"] for c in conditions if c["type"] == "Ready"]
    return node["metadata"]["uid"], ready, fault_view(node)


@change_of
def more_than_status(obj: Object) -> object:
    """What is wanted of an object, and its end. Of a job, also whether a queue grants it Pods, and how many
    of its workers are needed, which its minimum follows, and which are replaced: they are in its status one
    write after its count; and whether it ever had a world."""
    said = [obj["metadata"].get(key) for key in ("labels", "ownerReferences", "deletionTimestamp")]
    status = obj.get("status", {})
    needed = (status.get("scaling") or {}).get("base"), status.get("migrations")
    has_begun = bool((status.get("rendezvous") or {}).get("round"))
    return generation_of(obj), has_ended(obj), _is_queued(obj), has_begun, *needed, *said


def is_granted(change: Change) -> bool:
    """A queue grants a job its first Pods. Workers that were looked at before are due at no time."""
    old, new = change.old, change.new
    return old is not None and new is not None and _is_queued(old) and not _is_queued(new)


def _is_queued(job: Object) -> bool:
    return (job.get("status", {}).get("admission") or {}).get("workers") == 0


@change_of
def halts_or_goes_on(job: Object) -> object:
    """What a job's workers go by. The counts of its status follow their Pods, and lead back to nobody."""
    return generation_of(job), job.get("status", {}).get("phase"), job["metadata"].get("deletionTimestamp")


@change_of
def more_than_a_renewal(lease: Object) -> object:
    """The holder. Agents renew their Leases every few seconds, and who waits for one looks when it is due."""
    spec = lease.get("spec", {})
    return lease["metadata"]["uid"], spec.get("holderIdentity"), "renewTime" in spec


@change_of
def more_than_an_agents_later_reports(worker: Object) -> object:
    """The agent's first report, or more. From then on its silence counts: its Lease may never be renewed."""
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
"""Parts of a report that decide about a job, beside what `more_than_progress` takes of others."""
_OF_REPLICAS = ("round", "brokenVersion", "leftOutVersion", "lateVersion", "lateGroups")
"""Parts of a worker's part in the replica groups that decide likewise."""


@change_of
def more_than_progress(worker: Object) -> object:
    """What decides about a job: not the steps, which every worker reports every few seconds.

    A checkpoint may: a world that is to grow can wait for it. So may the first step of a round, by which the
    job trains (again), a loss that stops being a number, the checkpoint that a round resumed from, and the
    worker's part in the replica groups.
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
    """Spec, status and deletion of an ElasticWorker, without its agent's report."""
    status = {field: value for field, value in worker.get("status", {}).items() if field != "agent"}
    return worker["spec"], status, worker["metadata"].get("deletionTimestamp")


def generation_of(obj: Object) -> object:
    """What stands for the spec, which may have 1 MB, or be nested too deeply to be compared."""
    return obj["metadata"]["uid"], obj["metadata"].get("generation")


def wakes_by_device_taints(
    controller: ControllerBuilder, cache: Cache, requests_of: Callable[[Object], Iterable[Request]]
) -> None:
    """Wake a controller where the taints of the devices of a Pod change.

    Args:
        requests_of: the looks that a raw Pod leads to.
    """
    taints = cache.shared(DeviceTaints)

    def map_function(obj: Object) -> Iterable[Request]:
        return {request for pod in taints.pods_of(obj) for request in requests_of(pod)}

    for resource in (RESOURCESLICES, RESOURCECLAIMS, DEVICETAINTRULES):
        controller.watches(resource, map_function, predicate=change_of(taint_view))
