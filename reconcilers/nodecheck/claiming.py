"""Looks up the claims of checks on nodes (`claims.py`), and lets one check at a time take nodes.

The cost of a look-up, and of the end of a check (`queues.py`), does not depend on the number of waiting
checks. Checks begin one after the other, so each sees the claims of the one before.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from controller.cache import Cache
from controller.reconciler import Request
from controller.resources import NODES, Object
from controller.slices import Slices, computed
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.nodecheck import NodeCheck
from reconcilers.findings.finished import is_finished
from reconcilers.nodecheck.claims import (
    HOLD_SECONDS,
    REST_SECONDS,
    NodeClaim,
    Precedence,
    agent_is_ready,
    claim_of,
    gives_way,
    in_the_way,
    precedence_of,
    sentence_on,
    to_yield,
)
from reconcilers.nodecheck.nodes import Out
from reconcilers.nodecheck.queues import Queues
from reconcilers.nodecheck.scope import is_idle, wanted_workers
from reconcilers.nodecheck.steps import settled_nodes
from reconcilers.observed.observations import Observations
from reconcilers.observed.ownership import owner_uids
from reconcilers.observed.trust import Trust
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS
from reconcilers.worker.reconciler import BY_NODE

BY_CLAIM = "claim"
"""Index of unfinished NodeChecks: by the nodes that they have, or by the namespace in which they wait."""
MOST_WAITING = 32
"""Limit of waiting checks in a namespace, the oldest first, that others let go first."""


def claim_keys(check: Object) -> Iterable[str]:
    """Index function: the nodes of an unfinished check, or the namespace in which it waits for them."""
    namespace = check["metadata"].get("namespace") or ""
    if is_finished(check) or check["metadata"].get("deletionTimestamp"):
        return []
    nodes = check.get("status", {}).get("nodes")
    if nodes:
        return [_on(node) for node in nodes]
    return [] if check["spec"].get("jobName") is not None else [_waiting(namespace)]


def _on(node: str) -> str:
    return f"node {node}"


def _waiting(namespace: str) -> str:
    return f"waiting {namespace}"


class ClaimView:
    def __init__(self, cache: Cache) -> None:
        self._trust = Trust(cache)
        self._checks = cache.store(NODECHECKS)
        self._jobs = cache.store(ELASTICJOBS)
        self._workers = cache.store(ELASTICWORKERS)
        self._nodes = cache.store(NODES)
        self._parse_check = cache.models(NODECHECKS, NodeCheck)
        self._parse_job = cache.models(ELASTICJOBS, ElasticJob)
        self._parse_worker = cache.models(ELASTICWORKERS, ElasticWorker)

    def claim_of(self, check: NodeCheck, wanted: Iterable[str]) -> NodeClaim:
        """The claim of a check on these nodes."""
        return claim_of(check, self._precedence_of(check), wanted=frozenset(wanted))

    async def claims(
        self, mine: NodeClaim, before: Precedence | None = None, waiting_in: Iterable[str] = ()
    ) -> list[NodeClaim]:
        """The claims of other unfinished checks on the nodes that `mine` wants, limited to these nodes.

        Args:
            before: limit to checks of higher precedence than this one.
            waiting_in: further namespaces whose waiting checks count.
        """
        slices, found = Slices(), dict[str, tuple[Object, set[str]]]()
        for node in mine.wanted:
            for raw in (*self._checks.by_index(BY_CLAIM, _on(node)), *self._checks_of_jobs_on(node)):
                found.setdefault(raw["metadata"]["uid"], (raw, set()))[1].add(node)
            await slices.pause()
        waiting = [(raw, mine.wanted) for raw in await self._waiting_in(waiting_in)]
        claims = list[NodeClaim]()
        for raw, nodes in [*found.values(), *waiting]:
            await slices.pause()
            check = self._parse_check.parse_or_none(raw)
            if check is None or check.metadata.uid == mine.uid:
                continue
            precedence = self._precedence_of(check)
            if before is None or precedence < before:
                claims.append(self._claim(check, precedence, nodes))
        return [claim for claim in claims if claim.wanted]

    def _precedence_of(self, check: NodeCheck) -> Precedence:
        raw = self._checks.get(check.metadata.namespace, check.metadata.name)
        job = self._jobs.get(check.metadata.namespace, check.spec.job_name or "")
        is_administrators = self._trust.is_administrators(check.metadata.namespace)
        return precedence_of(raw, job, is_administrators)

    async def _waiting_in(self, namespaces: Iterable[str]) -> list[Object]:
        """The oldest waiting checks of nodes in these namespaces, and in those of administrators."""
        oldest = list[Object]()
        for namespace in {*self._trust.administrators(), *namespaces}:
            waiting = self._checks.by_index(BY_CLAIM, _waiting(namespace))
            oldest += await computed(len(waiting), heapq.nsmallest, MOST_WAITING, waiting, _age)
        return oldest

    def _checks_of_jobs_on(self, node: str) -> list[Object]:
        """The current checks of jobs with a worker on the node, unless they have begun."""
        found = dict[str, Object]()
        for worker in self._workers.by_index(BY_NODE, node):
            namespace = worker["metadata"]["namespace"]
            job = self._jobs.get(namespace, worker["spec"].get("jobName") or "")
            name = ((job or {}).get("status") or {}).get("activeCheck")
            check = self._checks.get(namespace, name) if name else None
            if check is not None and not check.get("status", {}).get("nodes") and not is_finished(check):
                found[check["metadata"]["uid"]] = check
        return list(found.values())

    def _claim(self, check: NodeCheck, precedence: Precedence, nodes: AbstractSet[str]) -> NodeClaim:
        """The claim of a check on these nodes."""
        status, spec = check.status, check.spec
        if status.nodes:
            wanted = frozenset(nodes - settled_nodes(status))
            present = frozenset(node for node in wanted if self._has_agent(check, node))
            return claim_of(check, precedence, wanted=wanted, present=present)
        if spec.job_name is not None:
            wanted, present = self._nodes_of_job(check, nodes)
            return claim_of(check, precedence, wanted=wanted, present=present)
        if spec.nodes is not None:
            return claim_of(check, precedence, wanted=nodes & frozenset(spec.nodes))
        selected = (spec.node_selector or {}).items()
        wanted = frozenset(node for node in nodes if selected <= self._labels(node).items())
        return claim_of(check, precedence, wanted=wanted)

    def _labels(self, node: str) -> dict[str, str]:
        raw = self._nodes.get(None, node)
        return ((raw or {}).get("metadata") or {}).get("labels") or {}

    def _has_agent(self, check: NodeCheck, node: str) -> bool:
        """Whether the agent of the check's own worker on the node is ready."""
        metadata = check.metadata
        return any(
            agent_is_ready(raw)
            for raw in self._workers.by_index(BY_NODE, node)
            if raw["metadata"]["namespace"] == metadata.namespace and metadata.uid in owner_uids(raw)
        )

    def _nodes_of_job(
        self, check: NodeCheck, nodes: AbstractSet[str]
    ) -> tuple[frozenset[str], frozenset[str]]:
        """The nodes of the job's workers that the check wants, and those where these are already idle."""
        metadata = check.metadata
        raw = self._jobs.get(metadata.namespace, check.spec.job_name or "")
        job = None if raw is None else self._parse_job.parse_or_none(raw)
        if job is None or job.status.active_check != metadata.name:
            return frozenset(), frozenset()  # it is not the job's current check yet
        theirs = self._parse_worker.readable(
            raw
            for node in nodes
            for raw in self._workers.by_index(BY_NODE, node)
            if raw["metadata"]["namespace"] == metadata.namespace and job.metadata.uid in owner_uids(raw)
        )
        workers = wanted_workers(check.spec, theirs)
        world = job.status.world
        idle = (worker for worker in workers if is_idle(worker, world))
        wanted, present = ({worker.status.node_name or "" for worker in found} for found in (workers, idle))
        return frozenset(wanted - {""}), frozenset(present - {""})


def _age(check: Object) -> tuple[str, str]:
    return str(check["metadata"].get("creationTimestamp") or ""), check["metadata"]["uid"]


# --- taking ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Permit:
    """The answer to a check that wants to take its nodes."""

    contested: Mapping[str, NodeClaim] = field(default_factory=dict)
    """The nodes that it does not get, each with the claim in the way."""
    rest_seconds: float = 0.0
    """Time until its namespace may take back nodes that it has just left to others."""

    @property
    def is_refused(self) -> bool:
        return bool(self.contested or self.rest_seconds)

    def reason_to_wait(self, check: NodeCheck) -> str:
        """The reason why the check waits, as a message."""
        namespace = check.metadata.namespace
        if self.contested:
            return f"waits: {sentence_on(self.contested, namespace)}"
        return f"waits: checks of the namespace {namespace} have just left nodes to others that wait"

    def left_out(self, check: NodeCheck) -> dict[str, Out]:
        """The nodes for which a job's check has waited in vain, each with the reason."""
        return {
            node: Out(
                f"{claim.named_in(check.metadata.namespace)} had it for all of timeoutSeconds "
                f"({check.spec.timeout_seconds} s), so training goes on without a test of it",
                reason="Taken",
            )
            for node, claim in self.contested.items()
        }


class Claiming:
    """Lets checks take their nodes, and wakes those that may go on.

    Args:
        wake: makes the controller look at a check.
    """

    def __init__(
        self, cache: Cache, monotonic: Callable[[], float], wake: Callable[[Request], object]
    ) -> None:
        self._view = ClaimView(cache)
        self._checks = cache.store(NODECHECKS)
        self._parse = cache.models(NODECHECKS, NodeCheck)
        self._wake = wake
        self._monotonic = monotonic
        self._left: dict[tuple[str, str], float] = {}
        """Times when a namespace left a node to others, oldest first."""
        self._held = Observations(self._checks, monotonic)
        self._in_phase = Observations(self._checks, monotonic)
        self._taking = asyncio.Lock()
        self._taker: Request | None = None
        """The check that takes nodes, until its look is over and the cache shows its begin."""
        self._taken = frozenset[str]()
        self._queues = Queues()
        self._made_way: set[Request] = set()
        """Checks that have made way since the claims were last read."""

    async def take(
        self, check: NodeCheck, nodes: Collection[str], *, without_contested: bool = False
    ) -> Permit:
        """Claim nodes for a check that is about to begin, unless other checks are in the way.

        Args:
            without_contested: whether it has waited long enough, and begins without contested nodes.
        """
        me = Request(check.metadata.namespace, check.metadata.name)
        await self._taking.acquire()
        self._taker = me
        while True:
            self._made_way.clear()
            mine = self._view.claim_of(check, nodes)
            claims = await self._view.claims(mine)
            size = sum(len(claim.wanted) for claim in claims)
            contested = await computed(size, in_the_way, mine, claims)
            permit = Permit(contested, self._rest_seconds(mine))
            for claim in claims:
                if claim.is_fixed and gives_way(claim, mine):
                    self._wake(_name_of(claim))
            if not permit.is_refused or without_contested:
                self._taken = mine.wanted - contested.keys()
                return permit
            if not contested:
                return permit  # it is only too early
            owners = {node: _name_of(claim) for node, claim in contested.items()}
            if self._made_way.isdisjoint(owners.values()):
                self._queues.wait(me, mine.order, owners)
                return permit

    def end_look(self, check: Request) -> None:
        """End the look at a check; its begin is in the cache, or was not written."""
        taken = frozenset[str]()
        if self._taker == check:
            raw = self._checks.get(*check)
            if raw is not None and raw.get("status", {}).get("nodes"):
                taken = self._taken
            self._taker, self._taken = None, frozenset()
            self._taking.release()
        for each in self._queues.end_look(check, taken):
            self._wake(each)

    def made_way(self, check: Object) -> list[Request]:
        """Return the checks that look again after a check has made way."""
        metadata = check["metadata"]
        me = Request(metadata.get("namespace"), metadata["name"])
        current = self._checks.get(*me)
        self._made_way.add(me)
        if current is None or current["metadata"]["uid"] != metadata["uid"] or is_finished(current):
            return self._queues.made_way(me)
        model = self._parse.parse_or_none(current)
        kept = set(model.status.nodes) - settled_nodes(model.status) if model is not None else ()
        return self._queues.made_way(me, kept)

    async def to_yield(self, check: NodeCheck) -> tuple[frozenset[str], float | None]:
        """The nodes that a check leaves to others that wait for them.

        Returns:
            the nodes; and if there are none, the seconds until it may have to leave some.
        """
        mine = self._view.claim_of(check, set(check.status.nodes) - settled_nodes(check.status))
        if mine.precedence is Precedence.ADMINISTRATORS:
            return frozenset(), None
        held_seconds = self._held.age_seconds(mine.uid, "held")
        tested_seconds = self._in_phase.age_seconds(mine.uid, check.status.phase) if mine.tests else 0.0
        if tested_seconds >= HOLD_SECONDS:
            waiting_in = self._queues.namespaces_behind(Request(mine.namespace, mine.name))
            claims = await self._view.claims(mine, None, waiting_in)
            return self._leave(mine, to_yield(mine, claims, to_anybody=True)), None
        nodes = to_yield(mine, await self._view.claims(mine, before=mine.precedence))
        if nodes and held_seconds >= HOLD_SECONDS:
            return self._leave(mine, nodes), None
        if nodes:
            return frozenset(), HOLD_SECONDS - held_seconds
        return frozenset(), HOLD_SECONDS - tested_seconds if mine.tests else None

    def _leave(self, mine: NodeClaim, nodes: frozenset[str]) -> frozenset[str]:
        now = self._monotonic()
        while self._left and next(iter(self._left.values())) <= now - REST_SECONDS:
            del self._left[next(iter(self._left))]
        for node in nodes:
            self._left.pop((mine.namespace, node), None)
            self._left[(mine.namespace, node)] = now
        return nodes

    def _rest_seconds(self, mine: NodeClaim) -> float:
        """Time until the namespace may take back all nodes that a check wants, so that others look first."""
        if mine.precedence is Precedence.ADMINISTRATORS or mine.is_fixed:
            return 0.0
        left_at = (self._left[key] for node in mine.wanted if (key := (mine.namespace, node)) in self._left)
        return max(max(left_at, default=-REST_SECONDS) + REST_SECONDS - self._monotonic(), 0.0)


def _name_of(claim: NodeClaim) -> Request:
    return Request(claim.namespace, claim.name)
