"""Jobs of several clusters: a manager cluster dispatches them, and a worker cluster runs a copy. Pure.

The manager's job has `spec.managedBy`, and we create only its Workload; Kueue copies both to a worker
cluster, and the copy's status back. The copy names the Workload that was created for it.
https://github.com/kubernetes-sigs/kueue/blob/v0.19.1/pkg/controller/admissionchecks/multikueue/externalframeworks/adapter.go
"""

from __future__ import annotations

from controller.resources import Object
from crds.elasticjob import ElasticJob
from reconcilers.kueue.manifest import Wish, counts, workload_of
from reconcilers.kueue.workload import GROUP, Workload

MANAGER = f"{GROUP}/multikueue"
PREBUILT = f"{GROUP}/prebuilt-workload-name"
OUT_OF_SYNC = "OutOfSync"


def is_dispatched(job: Object) -> bool:
    """Whether the job runs in another cluster."""
    return bool(job["spec"].get("managedBy") == MANAGER)


def prebuilt_name(job: Object) -> str:
    """The name of the Workload that was created for a copy; empty for a job that is no copy."""
    metadata = job["metadata"]
    for found in (metadata.get("annotations") or {}, metadata.get("labels") or {}):
        if name := found.get(PREBUILT):
            return str(name)
    return ""


def is_controlled(workload: Workload, *, other_than: str) -> bool:
    """Whether another owner controls a Workload, so that a job that names it may not adopt it."""
    owners = workload.raw["metadata"].get("ownerReferences") or ()
    return any(owner.get("controller") and owner["uid"] != other_than for owner in owners)


def adoption_of(job: ElasticJob, wish: Wish, prebuilt: Workload) -> Object | None:
    """Return the patch that makes a Workload the job's own; None if it requests other Pods."""
    if counts(prebuilt.pod_sets) != wish.sets:
        return None
    mine = workload_of(job, wish, wish.sets, 1, {})["metadata"]
    present = prebuilt.raw["metadata"]
    finalizers = dict.fromkeys((*(present.get("finalizers") or ()), *mine["finalizers"]))
    return {
        "metadata": {
            "labels": mine["labels"],
            "annotations": mine["annotations"],
            "ownerReferences": mine["ownerReferences"],
            "finalizers": list(finalizers),
        }
    }
