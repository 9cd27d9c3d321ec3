"""Collects evidence about a worker that its peers cannot reach (judged by `reconcilers/observed/reach.py`).

The address to connect to is the Pod's, from its kubelet, and not one from a report.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from controller.errors import NotFound
from controller.reconciler import Request
from controller.resources import PODS, Object
from controller.store import ObjectMemory
from crds import names
from reconcilers.observed.ownership import owner_uids
from reconcilers.observed.reach import (
    SETTLING_SECONDS,
    Address,
    Peer,
    ReachEvidence,
    ReachVerdict,
    address_of,
    judge,
    peers_without,
    silent_peers,
)
from reconcilers.observed.workers import worker_name
from reconcilers.runtime.kinds import ELASTICWORKERS
from reconcilers.runtime.tools import Tools
from reconcilers.worker.dialling import Dials

BY_SILENT_PEER = "silent-peer"
"""Index of ElasticWorkers, by `silent_peer_keys`."""
CONTACT_SECONDS = 3.0
"""Contact with the API server before a verdict: after an outage, the reports of both sides of a broken link
have to arrive first."""
LOOK_SECONDS = 2.0
"""Time between two looks at a worker that lives though peers cannot reach it."""
DIALLED_PEERS = 2
"""Peers to which the controller connects, to see whether it reaches any."""


def silent_peer_keys(worker: Object) -> Iterable[str]:
    """Index function: the workers that the agent of this one reports as silent."""
    named = silent_peers(worker)
    return [_key(uid, *place) for uid in owner_uids(worker) for place in named] if named else ()


def silent_peers_of(worker: Object) -> Iterable[Request]:
    """Return the workers that the agent of this one reports as silent."""
    job = worker["spec"].get("jobName")
    if job is None:
        return []
    namespace = worker["metadata"]["namespace"]
    return [Request(namespace, worker_name(job, names.WORKER, index)) for index, _ in silent_peers(worker)]


def _key(owner_uid: str, index: int, incarnation: int) -> str:
    return f"{owner_uid}/{index}/{incarnation}"


class Reach:
    """Judges workers that peers cannot reach."""

    def __init__(self, tools: Tools, dials: Dials) -> None:
        self._client, self._contact = tools.client, tools.contact
        self._workers, self._pods = tools.cache.store(ELASTICWORKERS), tools.cache.store(PODS)
        self._monotonic = tools.clock.monotonic
        self._dials = dials
        self._since: ObjectMemory[tuple[int, float]] = self._workers.memory()
        """Incarnation, and time when peers were first seen to report it as silent."""

    async def judge(
        self, namespace: str, name: str, unheard_seconds: float, renewal_seconds: float
    ) -> tuple[str, float | None]:
        """Judge a worker.

        Args:
            unheard_seconds: time since its Lease was renewed.
            renewal_seconds: period of the renewals.

        Returns:
            Why it is lost, as a clause, empty if it is not; and seconds until the next look at it.
        """
        worker = self._workers.get(namespace, name)
        peers = self._peers_without(worker) if worker is not None else []
        if worker is None or not peers:
            if worker is not None:
                self._since.forget(worker["metadata"]["uid"])
            return "", None
        seen = self._evidence(worker, peers, unheard_seconds, renewal_seconds)
        verdict = judge(seen)
        if verdict is ReachVerdict.LOST:
            fresh = await self._read(namespace, name)  # it may have reported the same of its peers by now
            seen = replace(seen, peers=self._peers_without(fresh) if fresh is not None else ())
            verdict = judge(seen)
        if verdict is ReachVerdict.LOST:
            return " and ".join(seen.witnesses), None
        return "", LOOK_SECONDS if verdict is ReachVerdict.LIVES else SETTLING_SECONDS / 2

    def _evidence(
        self, worker: Object, peers: list[Peer], unheard_seconds: float, renewal_seconds: float
    ) -> ReachEvidence:
        now, uid, incarnation = self._monotonic(), worker["metadata"]["uid"], worker["spec"]["incarnation"]
        since = self._since.get(uid)
        if since is None or since[0] != incarnation:
            since = self._since.put(uid, (incarnation, now))
        in_contact_seconds = now - self._contact.since
        is_dialled, answers = self._dialled(worker, peers)
        return ReachEvidence(
            peers,
            min(now - since[1], in_contact_seconds),
            unheard_seconds,
            renewal_seconds,
            is_dialled=is_dialled and in_contact_seconds >= CONTACT_SECONDS,
            answers=answers,
        )

    def _dialled(self, worker: Object, peers: list[Peer]) -> tuple[bool, bool | None]:
        """Return `is_dialled` and `answers` of the evidence."""
        namespace = worker["metadata"]["namespace"]
        beside = [self._workers.get(namespace, each.name) for each in peers[:DIALLED_PEERS]]
        address, others = self._address(worker), [self._address(each) for each in beside if each is not None]
        if address is None:
            return True, None
        answers = self._dials.answers(namespace, *address)
        reached = [self._dials.answers(namespace, *other) for other in others if other is not None]
        is_dialled = answers is not None and (True in reached or None not in reached)
        return is_dialled, answers if answers or True in reached else None

    def _peers_without(self, worker: Object) -> list[Peer]:
        spec, uids = worker["spec"], owner_uids(worker)
        if spec.get("type") != names.WORKER:
            return []
        keys = [_key(uid, spec["index"], spec["incarnation"]) for uid in uids]
        others = (other for key in keys for other in self._workers.by_index(BY_SILENT_PEER, key))
        return peers_without(worker, others)

    def _address(self, worker: Object) -> Address | None:
        namespace, status = worker["metadata"]["namespace"], worker.get("status") or {}
        pod = self._pods.get(namespace, status.get("podName") or "")
        return None if pod is None else address_of(worker, pod)

    async def _read(self, namespace: str, name: str) -> Object | None:
        try:
            return await self._client.get(ELASTICWORKERS, name, namespace)
        except NotFound:
            return None
