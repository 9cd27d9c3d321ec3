"""Readiness of the CRDs and of the controller, each with a sentence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from dlr.job.report import condition_of, message_of
from dlr.kube.api import JSON


@dataclass(frozen=True)
class Reading:
    ready: bool
    sentence: str


def crds_reading(crds: Iterable[JSON]) -> Reading:
    """Read whether all CRDs are served."""
    waiting = []
    for crd in crds:
        name = crd["metadata"]["name"]
        if condition_of(crd, "Established", "True"):
            continue
        refused = condition_of(crd, "NamesAccepted", "False")
        waiting.append(f"{name} ({refused.get('message')})" if refused else name)
    if waiting:
        return Reading(False, f"These CRDs are not established yet: {', '.join(waiting)}.")
    return Reading(True, "The CRDs are established.")


def controller_reading(deployment: JSON, pods: Iterable[JSON], lease: JSON | None, now: datetime) -> Reading:
    """Read whether the Deployment is rolled out, as `kubectl rollout status` does, and one Pod leads."""
    status, wanted = deployment.get("status") or {}, deployment["spec"].get("replicas", 1)
    updated, available = status.get("updatedReplicas", 0), status.get("availableReplicas", 0)
    seen = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    if not seen or updated < wanted or available < wanted or status.get("replicas", 0) > updated:
        ready = min(updated, available) if seen else 0
        why = "; ".join(sorted(set(_waits(deployment, pods))))
        return Reading(
            False, f"{ready} of {wanted} Pods of the controller are ready" + (f" ({why})." if why else ".")
        )
    holder = leader(lease, now)
    if holder is None:
        return Reading(False, "The controller's Pods are ready, and none of them leads yet.")
    return Reading(True, f"The controller is ready; {holder} leads.")


def leader(lease: JSON | None, now: datetime) -> str | None:
    """Return the Pod, or else the identity, that holds a Lease; None if it is free or has expired."""
    spec = (lease or {}).get("spec") or {}
    holder, renewed = spec.get("holderIdentity"), spec.get("renewTime")
    if not holder or not renewed:
        return None
    age_seconds = (now - datetime.fromisoformat(renewed)).total_seconds()
    return str(holder).partition("_")[0] if age_seconds <= spec.get("leaseDurationSeconds", 0) else None


def _waits(deployment: JSON, pods: Iterable[JSON]) -> Iterable[str]:
    """Yield why Pods are not created (from the Deployment's status) or not ready (from their own)."""
    if why := message_of(condition_of(deployment, "ReplicaFailure", "True")):
        yield why
    for pod in pods:
        if why := message_of(condition_of(pod, "PodScheduled", "False")):
            yield f"not scheduled: {why}"
        for container in (pod.get("status") or {}).get("containerStatuses") or ():
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                text = waiting.get("message") or container.get("image") or ""
                yield f"{waiting['reason']}: {text}" if text else str(waiting["reason"])
