"""Whether an agent is still heard: its Lease, judged by our own clock and our own contact."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from controller.client import Client
from controller.contact import Contact
from controller.errors import NotFound
from controller.resources import LEASES
from controller.store import Change, Memory, Store
from crds.elasticworker import ElasticWorker
from reconcilers.observed.builder import labels_of, owner_reference
from reconcilers.observed.containers import containers_of, training_container
from reconcilers.observed.observations import Observations
from reconcilers.runtime.clock import Clock


def lease_of(
    worker: ElasticWorker, pod: dict[str, Any] | None, timeout_seconds: float, now: datetime
) -> dict[str, Any]:
    """The Lease to create for a worker; its agent renews it under the Pod's name.

    One that is made again, since somebody deleted it, counts as renewed just now if the Pod's agent has
    reported: so an agent that never renews it is silent from now on.
    https://kubernetes.io/docs/concepts/architecture/leases/
    """
    spec: dict[str, Any] = {"leaseDurationSeconds": int(timeout_seconds)}
    if pod is not None and _has_reported(worker, pod):
        renewed = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec |= {"holderIdentity": pod["metadata"]["name"], "renewTime": renewed}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": worker.metadata.name,
            "namespace": worker.metadata.namespace,
            "labels": labels_of(worker),
            "ownerReferences": [owner_reference("ElasticWorker", worker.metadata.name, worker.metadata.uid)],
        },
        "spec": spec,
    }


class Heartbeats:
    """Ages of the workers' Leases."""

    def __init__(self, client: Client, leases: Store, contact: Contact, clock: Clock) -> None:
        self._client = client
        self._contact = contact
        self._clock = clock
        self._pods = Observations(leases, clock.monotonic)
        """By Lease, the Pod whose renewals count, and the run of its training container."""
        self._renewals = Observations(leases, clock.monotonic)
        self._renewed: Memory[bool] = leases.memory()

    def note(self, change: Change) -> None:
        """A handler of the cache: when we have seen a renewal. It wakes nobody (`more_than_a_renewal`)."""
        uid, renewed = change.current["metadata"]["uid"], change.current.get("spec", {}).get("renewTime")
        self._renewals.age_seconds(uid, renewed)
        if change.old is not None and change.old.get("spec", {}).get("renewTime") != renewed:
            self._renewed.put(uid, True)

    def age_seconds(
        self, lease: dict[str, Any] | None, pod: dict[str, Any], worker: ElasticWorker
    ) -> float | None:
        """How long this Pod's agent has been silent; None if it was never heard.

        Never longer than our own unbroken contact with the API server: its outage is nobody's silence.
        """
        renewed = _renewal(lease, pod)
        if lease is None or renewed is None or not _has_reported(worker, pod):
            return None
        uid = lease["metadata"]["uid"]
        return min(
            self._renewals.age_seconds(uid, renewed),
            self._pods.age_seconds(uid, (pod["metadata"]["uid"], _run_of(pod))),
            self._clock.monotonic() - self._contact.since,
        )

    def was_renewed(self, lease: dict[str, Any]) -> bool:
        """Whether this process has seen a renewal come, and did not only find one when it began."""
        return self._renewed.get(lease["metadata"]["uid"]) is True

    def seconds_since_renewal(self, lease: dict[str, Any]) -> float | None:
        """How long the Lease has not been renewed, by any Pod; None if it never was."""
        renewed = lease.get("spec", {}).get("renewTime")
        if not renewed:
            return None
        unchanged = self._renewals.age_seconds(lease["metadata"]["uid"], renewed)
        return min(unchanged, self._clock.monotonic() - self._contact.since)

    async def confirmed_age_seconds(
        self, lease: dict[str, Any], pod: dict[str, Any], worker: ElasticWorker
    ) -> float:
        """The same after asking the API server itself, so that a stalled watch of ours condemns nobody."""
        metadata = lease["metadata"]
        try:
            fresh = await self._client.get(LEASES, metadata["name"], metadata["namespace"])
        except NotFound:
            return self.age_seconds(lease, pod, worker) or 0.0
        return self.age_seconds(fresh, pod, worker) or 0.0


def _renewal(lease: dict[str, Any] | None, pod: dict[str, Any]) -> str | None:
    spec = (lease or {}).get("spec", {})
    if spec.get("holderIdentity") != pod["metadata"]["name"]:
        return None
    renewed = spec.get("renewTime")
    return str(renewed) if renewed else None


def _run_of(pod: dict[str, Any]) -> tuple[bool, int]:
    """A value that changes whenever the training container ends or is started again, and so its agent."""
    training = training_container(containers_of(pod))
    return training.is_running, training.restarted_ends


def _has_reported(worker: ElasticWorker, pod: dict[str, Any]) -> bool:
    """What the Lease says may be a Pod's of the same name, from before the job was suspended."""
    report = worker.status.agent
    return report is not None and report.pod_uid == pod["metadata"]["uid"]
