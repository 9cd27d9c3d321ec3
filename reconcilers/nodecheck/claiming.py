"""Claims of checks on nodes (`claims.py`): looked up in the caches, and taken one check at a time.

A look-up costs the same however many checks wait, and so does what follows from the end of a check
(`queues.py`). Two checks that begin at once see each other's claims.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from controller.cache import Cache
from controller.reconciler import Request
from controller.resources import NODES, Object
from controller.slices import Slices, computed
from controller.store import Memory
from controller.wording import counted
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.nodecheck import NodeCheck
from reconcilers.nodecheck.claims import (
    HOLD_SECONDS,
    MOST_NODES,
    REST_SECONDS,
    Claim,
    Precedence,
    agent_is_ready,
    claim_of,
    gives_way,
    has_nodes,
    in_the_way,
    precedence_of,
    sentence_on,
    to_yield,
)
from reconcilers.nodecheck.finished import is_finished
from reconcilers.nodecheck.nodes import Out
from reconcilers.nodecheck.queues import ROOM, Queues
from reconcilers.nodecheck.scope import is_idle, wanted_workers
from reconcilers.nodecheck.steps import settled_nodes
from reconcilers.observed.observations import Observations
from reconcilers.observed.ownership import owner_uids
from reconcilers.observed.trust import Trust
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS
from reconcilers.worker.reconciler import BY_NODE

BY_CLAIM = "claim"
"""Index of unfinished NodeChecks: by a node that one has, by a namespace where one has nodes, by a namespace
where one of nodes waits for them."""
MOST_WAITING = 32
"""Checks of a namespace that others wait for while they wait themselves. They are the oldest, half as many
at times, so each has its turn."""


def claim_keys(check: Object) -> Iterable[str]:
    """Index function: where an unfinished check has nodes, or waits for them."""
    namespace = check["metadata"].get("namespace") or ""
    if is_finished(check) or check["metadata"].get("deletionTimestamp"):
        return []
    nodes = check.get("status", {}).get("nodes")
    if nodes:
        return [_fixed(namespace), *(_on(node) for node in nodes)]
    return [] if check["spec"].get("jobName") is not None else [_waiting(namespace)]


def _on(node: str) -> str:
    return f"node {node}"


def _fixed(namespace: str) -> str:
    return f"fixed {namespace}"


def _waiting(namespace: str) -> str:
    return f"waiting {namespace}"


class ClaimView:
    def __init__(self, cache: Cache) -> None:
        self._trust = Trust(cache)
        self._checks = cache.store(NODECHECKS)
        self._jobs = cache.store(ELASTICJOBS)
        self._workers = cache.store(ELASTICWORKERS)
        self._nodes = cache.store(NODES)
        self._by_age: dict[str, deque[tuple[str, str]]] = {}
        """Uid and name of the waiting checks of each namespace where many wait, from the oldest on."""
        self._parse_check = cache.models(NODECHECKS, NodeCheck)
        self._parse_job = cache.models(ELASTICJOBS, ElasticJob)
        self._parse_worker = cache.models(ELASTICWORKERS, ElasticWorker)

    def claim_of(self, check: NodeCheck, wanted: Iterable[str]) -> Claim:
        """The claim of a check on these nodes."""
        return claim_of(check, self._precedence_of(check), wanted=frozenset(wanted))

    async def claims(
        self, mine: Claim, before: Precedence | None = None, waiting_in: Iterable[str] = ()
    ) -> list[Claim]:
        """The claims of other unfinished checks on the nodes that `mine` wants, cut to these.

        Args:
            before: only those of checks with higher precedence than this.
            waiting_in: further namespaces whose checks count while they wait.
        """
        slices, found = Slices(), dict[str, Claim]()
        places: dict[str, tuple[Object, set[str]]] = {}
        for node in mine.wanted:
            for raw in (*self._checks.by_index(BY_CLAIM, _on(node)), *self._checks_of_jobs_on(node)):
                places.setdefault(raw["metadata"]["uid"], (raw, set()))[1].add(node)
            await slices.pause()
        waiting = [(raw, set(mine.wanted)) for raw in self._waiting_before(mine, waiting_in)]
        for raw, nodes in [*places.values(), *waiting]:
            await slices.pause()
            check = self._parse_check.parse_or_none(raw)
            if check is None or check.metadata.uid == mine.uid:
                continue
            precedence = self._precedence_of(check)
            if before is None or precedence < before:
                found[check.metadata.uid] = self._claim(check, precedence, nodes)
        return [claim for claim in found.values() if claim.wanted]

    def nodes_in(self, namespace: str) -> dict[str, int]:
        """How many nodes each check of nodes has there, by its uid."""
        counted = {}
        for raw in self._checks.by_index(BY_CLAIM, _fixed(namespace)):
            if raw["spec"].get("jobName") is None:
                counted[raw["metadata"]["uid"]] = len(raw["status"]["nodes"])
        return counted

    def _precedence_of(self, check: NodeCheck) -> Precedence:
        raw = self._checks.get(check.metadata.namespace, check.metadata.name)
        job = self._jobs.get(check.metadata.namespace, check.spec.job_name or "")
        is_administrators = self._trust.is_administrators(check.metadata.namespace)
        return precedence_of(raw, job, is_administrators)

    def _waiting_before(self, mine: Claim, waiting_in: Iterable[str]) -> Iterator[Object]:
        """The oldest checks of nodes that wait where a check may have to wait for them, and elsewhere."""
        namespaces = {*self._trust.administrators(), *waiting_in}
        if mine.precedence is Precedence.OTHERS and not mine.is_fixed:
            namespaces.add(mine.namespace)
        for namespace in namespaces:
            yield from self._oldest_waiting(namespace)

    def _oldest_waiting(self, namespace: str) -> list[Object]:
        """The oldest checks of nodes that wait. New ones are younger, so all are sorted now and then."""
        by_age = self._by_age.get(namespace, deque())
        oldest = list[Object]()
        while by_age and len(oldest) < MOST_WAITING:
            uid, name = by_age.popleft()
            raw = self._checks.get(namespace, name)
            if raw is not None and _is_waiting(raw, uid):
                oldest.append(raw)
        if len(oldest) < MOST_WAITING // 2:
            waiting = sorted(self._checks.by_index(BY_CLAIM, _waiting(namespace)), key=_age)
            oldest = waiting[:MOST_WAITING]
            by_age = deque(map(_uid_and_name, waiting[MOST_WAITING:]))
            if not by_age:  # so few are sorted in each look
                self._by_age.pop(namespace, None)
                return oldest
        by_age.extendleft(map(_uid_and_name, reversed(oldest)))
        self._by_age[namespace] = by_age
        return oldest

    def _checks_of_jobs_on(self, node: str) -> list[Object]:
        """The checks that are yet to begin of jobs that have a worker on the node."""
        found = dict[str, Object]()
        for worker in self._workers.by_index(BY_NODE, node):
            namespace = worker["metadata"]["namespace"]
            job = self._jobs.get(namespace, worker["spec"].get("jobName") or "")
            name = ((job or {}).get("status") or {}).get("activeCheck")
            check = self._checks.get(namespace, name) if name else None
            if check is not None and not check.get("status", {}).get("nodes") and not is_finished(check):
                found[check["metadata"]["uid"]] = check
        return list(found.values())

    def _claim(self, check: NodeCheck, precedence: Precedence, nodes: set[str]) -> Claim:
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
            return claim_of(check, precedence, wanted=frozenset(nodes.intersection(spec.nodes)))
        selected = (spec.node_selector or {}).items()
        wanted = frozenset(node for node in nodes if selected <= self._labels(node).items())
        return claim_of(check, precedence, wanted=wanted)

    def _labels(self, node: str) -> dict[str, str]:
        raw = self._nodes.get(None, node)
        return ((raw or {}).get("metadata") or {}).get("labels") or {}

    def _has_agent(self, check: NodeCheck, node: str) -> bool:
        """Whether a worker of the check's own on the node has reported."""
        metadata = check.metadata
        return any(
            agent_is_ready(raw)
            for raw in self._workers.by_index(BY_NODE, node)
            if raw["metadata"]["namespace"] == metadata.namespace and metadata.uid in owner_uids(raw)
        )

    def _nodes_of_job(self, check: NodeCheck, nodes: set[str]) -> tuple[frozenset[str], frozenset[str]]:
        """Returns the nodes where a check of a job wants workers, and those where they are idle already."""
        metadata = check.metadata
        raw = self._jobs.get(metadata.namespace, check.spec.job_name or "")
        job = None if raw is None else self._parse_job.parse_or_none(raw)
        if job is None or job.status.active_check != metadata.name:
            return frozenset(), frozenset()  # its turn in the job has not come
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


def _is_waiting(check: Object, uid: str) -> bool:
    metadata = check["metadata"]
    return metadata["uid"] == uid and claim_keys(check) == [_waiting(metadata["namespace"])]


def _uid_and_name(check: Object) -> tuple[str, str]:
    return check["metadata"]["uid"], check["metadata"]["name"]


def _age(check: Object) -> tuple[str, str]:
    return str(check["metadata"].get("creationTimestamp") or ""), check["metadata"]["uid"]


# --- taking ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Permit:
    """Whether a check may take its nodes."""

    contested: Mapping[str, Claim] = field(default_factory=dict)
    """The nodes that it does not get, each with the claim that is in the way."""
    nodes_of_namespace: int = 0
    """Nodes that other checks of its namespace have, if these leave no room for it."""
    rest_seconds: float = 0.0
    """Time until its namespace may have nodes again that it has just left to others."""

    @property
    def is_refused(self) -> bool:
        return bool(self.contested or self.nodes_of_namespace or self.rest_seconds)

    def reason_to_wait(self, check: NodeCheck) -> str:
        """What the check waits for, in words."""
        namespace = check.metadata.namespace
        if self.contested:
            return f"waits: {sentence_on(self.contested, namespace)}"
        if self.rest_seconds:
            return f"waits: checks of the namespace {namespace} have just left nodes to others that wait"
        nodes = counted(self.nodes_of_namespace, "node")
        return (
            f"waits: other checks in the namespace {namespace} have {nodes}; "
            f"together they may have {MOST_NODES} without the label {names.LABEL_MAY_CORDON}=true"
        )

    def left_out(self, check: NodeCheck) -> dict[str, Out]:
        """The nodes that a job's check has waited for in vain, each with the reason."""
        return {
            node: Out(
                f"{claim.named_in(check.metadata.namespace)} had it for all of timeoutSeconds "
                f"({check.spec.timeout_seconds} s), so training goes on without a test of it",
                reason="Taken",
            )
            for node, claim in self.contested.items()
        }


class Claiming:
    """Lets checks take their nodes, and has those look again that may go on.

    Args:
        have_looked_at: has a check looked at.
    """

    def __init__(
        self, cache: Cache, monotonic: Callable[[], float], have_looked_at: Callable[[Request], object]
    ) -> None:
        self._view = ClaimView(cache)
        self._checks = cache.store(NODECHECKS)
        self._parse = cache.models(NODECHECKS, NodeCheck)
        self._have_looked_at = have_looked_at
        self._monotonic = monotonic
        self._left: dict[tuple[str, str], float] = {}
        """When a namespace left a node to others, in that order."""
        self._held = Observations(self._checks, monotonic)
        self._in_phase = Observations(self._checks, monotonic)
        self._one_at_a_time = asyncio.Lock()
        self._beginning: dict[Request, Claim] = {}
        """By check, while it is written that it begins, which no cache shows yet."""
        self._queues = Queues()
        self._made_way: set[Request] = set()
        """Checks that made way, and namespaces where one did, since the claims were last read."""
        self._outranked: Memory[frozenset[Request]] = self._checks.memory()
        """Checks that have nodes which a check wants, and leave them to it after a while."""
        self._called: dict[Request, set[Request]] = {}
        """Those of them that look after the look of a check."""

    async def take(
        self, check: NodeCheck, nodes: Collection[str], *, tests: bool, without_contested: bool = False
    ) -> Permit:
        """Claim nodes for a check whose begin is written next, unless other checks are in the way.

        Args:
            tests: its tests begin; else its agents have yet to come.
            without_contested: it has waited long enough, and begins without the nodes that it does not get.
        """
        me = Request(check.metadata.namespace, check.metadata.name)
        async with self._one_at_a_time:
            while True:
                self._made_way.clear()
                beginning = dict(self._beginning)  # one that is written meanwhile is in the cache, or here
                mine = self._view.claim_of(check, nodes)
                claims = [*await self._view.claims(mine), *beginning.values()]
                size = sum(len(claim.wanted) for claim in claims)
                contested = await computed(size, in_the_way, mine, claims)
                room = 0 if contested else self._nodes_beside(check, mine, beginning)
                permit = Permit(contested, room, self._rest_seconds(mine))
                self._outrank(me, mine, claims)
                if not permit.is_refused or without_contested:
                    wanted = mine.wanted - contested.keys()
                    self._beginning[me] = replace(mine, wanted=wanted, is_fixed=True, tests=tests)
                    return permit
                owners = {node: _name_of(claim) for node, claim in contested.items()}
                if not owners and not permit.nodes_of_namespace:
                    return permit  # only time has to pass
                owners = owners or {ROOM: _room_of(me.namespace)}
                if self._made_way.isdisjoint(owners.values()):
                    self._queues.wait(me, mine.order, owners)
                    return permit

    def looked(self, check: Request) -> None:
        """The look at a check is over: its begin is in the cache, or was not written."""
        begun = self._beginning.pop(check, None)
        called = self._queues.looked(check, () if begun is None else begun.wanted)
        if begun is not None:
            raw = self._checks.get(*check)
            if raw is None or not has_nodes(raw):
                called += self._queues.made_way(check)
        for each in (*called, *self._called.pop(check, ())):
            self._have_looked_at(each)

    def made_way(self, check: Object) -> list[Request]:
        """Return the checks that look again after a change of another that makes way."""
        metadata = check["metadata"]
        me = Request(metadata.get("namespace"), metadata["name"])
        current = self._checks.get(*me)
        self._made_way.add(me)
        if current is None or current["metadata"]["uid"] != metadata["uid"] or is_finished(current):
            room = _room_of(me.namespace)
            self._made_way.add(room)
            return [*self._queues.made_way(me), *self._queues.made_way(room)]
        model = self._parse.parse_or_none(current)
        kept = set(model.status.nodes) - settled_nodes(model.status) if model is not None else ()
        return self._queues.made_way(me, kept)

    def _outrank(self, me: Request, mine: Claim, claims: Iterable[Claim]) -> None:
        """Note those that leave nodes to this check after a while. They look once, after it."""
        found = frozenset(_name_of(claim) for claim in claims if claim.is_fixed and gives_way(claim, mine))
        before = self._outranked.get(mine.uid) or frozenset()
        self._outranked.put(mine.uid, found)
        self._called.setdefault(me, set()).update(found - before)

    async def to_yield(self, check: NodeCheck) -> tuple[frozenset[str], float | None]:
        """The nodes that a check leaves to others that wait for them.

        Returns:
            the nodes, and otherwise the seconds until it may have to leave some.
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

    def _leave(self, mine: Claim, nodes: frozenset[str]) -> frozenset[str]:
        now = self._monotonic()
        while self._left and next(iter(self._left.values())) <= now - REST_SECONDS:
            del self._left[next(iter(self._left))]
        for node in nodes:
            self._left.pop((mine.namespace, node), None)
            self._left[(mine.namespace, node)] = now
        return nodes

    def _rest_seconds(self, mine: Claim) -> float:
        """Time until the namespace may have all the nodes that a check wants: others are to look before."""
        if mine.precedence is Precedence.ADMINISTRATORS or mine.is_fixed:
            return 0.0
        left_at = (self._left[key] for node in mine.wanted if (key := (mine.namespace, node)) in self._left)
        return max(max(left_at, default=-REST_SECONDS) + REST_SECONDS - self._monotonic(), 0.0)

    def _nodes_beside(self, check: NodeCheck, mine: Claim, beginning: Mapping[Request, Claim]) -> int:
        """The nodes that other checks of the namespace have; 0 if there is room for the check beside them.

        A check that is alone in its namespace may be as large as any.
        """
        if mine.precedence is not Precedence.OTHERS or mine.is_fixed or check.spec.job_name is not None:
            return 0
        begins = {
            claim.uid: len(claim.wanted)
            for claim in beginning.values()
            if claim.namespace == mine.namespace and not claim.tests
        }
        others = {**begins, **self._view.nodes_in(mine.namespace), mine.uid: 0}
        count = sum(others.values())
        return count if count + len(mine.wanted) > MOST_NODES else 0


def _name_of(claim: Claim) -> Request:
    return Request(claim.namespace, claim.name)


def _room_of(namespace: str | None) -> Request:
    """Stands for all checks of a namespace that have nodes."""
    return Request(namespace, ROOM)
