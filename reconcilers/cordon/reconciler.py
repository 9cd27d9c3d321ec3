"""The NodeCordon reconciler: takes nodes out of service that were found faulty, and brings them back.

Everything of one decision on a node's metadata and spec goes out in one write, the mark with what it marks;
the condition, a status of its own, follows, and a crash in between is healed by the next look.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from controller.cache import Cache
from controller.client import Client
from controller.events import EventRecorder
from controller.reconciler import Reconciler, Request, Result
from controller.resources import NODES
from controller.slices import Slices
from controller.wording import shortened
from crds import names
from crds.model import ConditionStatus
from reconcilers.cordon.limits import ALL_NODES, Limits, limit_of, pools_of
from reconcilers.cordon.options import CordonMode, CordonOptions
from reconcilers.cordon.policy import (
    MAX_EVIDENCE,
    Admission,
    MarkState,
    NodeState,
    Verdict,
    admit,
    decide_cordon,
    newest_verdict,
    read_mark,
    write_mark,
)
from reconcilers.cordon.records import NodeRecords, created_at
from reconcilers.cordon.statement import HELD, Statement, statement_on
from reconcilers.cordon.verdicts import Verdicts
from reconcilers.nodecheck.own_fault import NodeFault, own_fault
from reconcilers.nodecheck.record import passes_since
from reconcilers.runtime.clock import Clock

BY_CORDON = "cordon"
BY_POOL = "pool"
UNSCHEDULABLE = "spec.unschedulable=true"
NO_SCHEDULE = "NoSchedule"


class NodeCordonReconciler(Reconciler):
    """Must not look at two nodes at once: each cordon takes room from the next."""

    def __init__(
        self, client: Client, cache: Cache, recorder: EventRecorder, clock: Clock, options: CordonOptions
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._options = options
        self._nodes = cache.store(NODES)
        self._verdicts = Verdicts(cache)
        self._records = NodeRecords(self._verdicts)

    async def reconcile(self, request: Request) -> Result:
        raw = self._nodes.get(None, request.name)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            return Result()
        ignored = await self._ignored_on(raw)
        node = self._state(raw, ignored)
        wanted = decide_cordon(node)
        if wanted.cordoned and not node.cordoned:
            wanted = decide_cordon(node, await self._full_pool(node))
        raw = await self._write(raw, node, wanted)
        await self._tell(raw, node, wanted)
        self._tell_of_ignored_verdict(node, ignored)
        return Result()

    def _state(self, raw: dict[str, Any], ignored: Sequence[Verdict]) -> NodeState:
        """What runs on a node in the administrator's name may bear out accusations that else do not count.

        Args:
            raw: the Node.
            ignored: verdicts from namespaces whose word does not count.
        """
        mark, fault = read_mark(raw), own_fault(raw)
        said = [] if mark is None else [mark.verdict]
        counting = self._verdicts.on(raw["metadata"]["name"])
        if fault is not None:
            counting += (verdict for verdict in ignored if not verdict.healthy)
        said += (_with_fault(verdict, fault) for verdict in counting if verdict.time >= created_at(raw))
        newest = newest_verdict(said)
        return NodeState(
            name=raw["metadata"]["name"],
            mark=mark,
            taint=next((t.get("value", "") for t in _taints(raw) if _is_ours(t)), None),
            unschedulable=bool(raw.get("spec", {}).get("unschedulable")),
            verdict=newest,
            suspicion=self._suspicion_on(raw, newest),
            passes=passes_since(self._records.of(raw), mark.verdict.time) if mark is not None else 0,
            pools=pools_of(raw["metadata"].get("labels") or {}, self._options.pools),
        )

    async def _ignored_on(self, raw: dict[str, Any]) -> list[Verdict]:
        """The verdicts on this machine that do not count by themselves.

        An earlier machine of the same name was another one, or has been repaired.
        """
        found = await self._verdicts.ignored_on(raw["metadata"]["name"])
        return [verdict for verdict in found if verdict.time >= created_at(raw)]

    def _suspicion_on(self, raw: dict[str, Any], newest: Verdict | None) -> Verdict | None:
        """The last word on the node, if it is one that decides nothing."""
        after = created_at(raw) if newest is None else max(created_at(raw), newest.time)
        said = self._verdicts.suspicions(raw["metadata"]["name"])
        return newest_verdict(s for s in said if s.time > after)

    async def _full_pool(self, node: NodeState) -> str | None:
        """The pool that has no room for the node, if there is one.

        Also asks the API server itself: a stale cache must not let a limit be exceeded.
        """
        whole = limit_of(len(self._nodes), self._options.limit_percent)
        if len(self._nodes.by_index(BY_CORDON, MarkState.CORDONED)) >= whole:
            return ALL_NODES
        admission = await self._admitted({}, whole)
        if node.name in admission.nodes:
            answer = await self._client.list(NODES, field_selector=UNSCHEDULABLE)
            admission = await self._admitted({raw["metadata"]["name"]: raw for raw in answer["items"]}, whole)
        return None if node.name in admission.nodes else admission.full.get(node.name, ALL_NODES)

    async def _admitted(self, fresh: dict[str, dict[str, Any]], whole: int) -> Admission:
        """Which nodes may be cordoned, by the cache and what is known better."""
        known = {raw["metadata"]["name"]: raw for raw in self._marked()}
        counted = self._verdicts.accused()
        for name in self._verdicts.accused_by_anybody():
            raw = self._nodes.get(None, name)
            if raw is not None and (name in counted or own_fault(raw) is not None):
                known[name] = raw
        fleet, slices = [], Slices()
        for raw in (known | fresh).values():
            ignored = await self._ignored_on(raw) if own_fault(raw) is not None else ()
            fleet.append(self._state(raw, ignored))
            await slices.pause()
        pools = frozenset().union(*(node.pools for node in fleet))
        sizes = {pool: len(self._nodes.by_index(BY_POOL, pool)) for pool in pools}
        limits = {pool: limit_of(size, self._options.limit_percent) for pool, size in sizes.items()}
        return admit(fleet, Limits(whole, limits))

    def _marked(self) -> Iterable[dict[str, Any]]:
        for state in (MarkState.CORDONED, MarkState.HELD):
            yield from self._nodes.by_index(BY_CORDON, state)

    async def _write(self, raw: dict[str, Any], node: NodeState, wanted: NodeState) -> dict[str, Any]:
        """Mark, and what it marks, in one.

        Refused with Conflict if the node changed since it was read; then it is looked at anew.
        """
        annotations, spec = dict[str, str](), dict[str, Any]()
        if self._options.mode is CordonMode.ENFORCE and wanted != node and wanted.mark is not None:
            annotations[names.ANNOTATION_CORDON] = write_mark(wanted.mark)
            if wanted.unschedulable != node.unschedulable:
                spec["unschedulable"] = wanted.unschedulable or None
            if wanted.taint != node.taint:
                spec["taints"] = _with_taint(_taints(raw), wanted.taint) or None
        if not annotations:
            return raw
        metadata = {"resourceVersion": raw["metadata"]["resourceVersion"], "annotations": annotations}
        patch = {"metadata": metadata} | ({"spec": spec} if spec else {})
        return await self._client.patch(NODES, node.name, patch)

    async def _tell(self, raw: dict[str, Any], node: NodeState, wanted: NodeState) -> None:
        """The conditions, and Events when they change: on the node, and on what spoke the verdict."""
        current = {type_: condition_of(raw, type_) for type_ in CONDITIONS}
        accused = any(c.get("status") == ConditionStatus.TRUE for c in current.values())
        statement = statement_on(node, wanted, self._options, accused=accused)
        if statement is None:
            return
        told = [self._condition(type_, current[type_], statement) for type_ in CONDITIONS]
        told = [condition for condition in told if condition is not None]
        if all(condition in current.values() for condition in told):
            return
        others = [c for c in raw.get("status", {}).get("conditions", ()) if c["type"] not in CONDITIONS]
        patch = {
            "metadata": {"resourceVersion": raw["metadata"]["resourceVersion"]},
            "status": {"conditions": [*others, *told]},
        }
        await self._client.patch(NODES, wanted.name, patch, subresource="status")
        self._recorder.event(raw, statement.event_type, statement.event_reason, statement.message)
        spoken = _spoken(wanted)
        speaker = self._verdicts.speaker(spoken) if spoken is not None else None
        if speaker is not None:
            message = f"node {wanted.name}: {statement.message}"
            self._recorder.event(speaker, statement.event_type, statement.event_reason, message)

    def _tell_of_ignored_verdict(self, node: NodeState, ignored_verdicts: Sequence[Verdict]) -> None:
        """Put an Event on the object that would have cordoned the node, if its namespace counted."""
        passed = {v.namespace: v.time for v in sorted(ignored_verdicts, key=lambda v: v.time) if v.healthy}
        ignored = newest_verdict(
            verdict
            for verdict in ignored_verdicts
            if not verdict.healthy and verdict.time >= passed.get(verdict.namespace, verdict.time)
        )
        outdated = ignored and node.verdict and node.verdict.time >= ignored.time
        speaker = None if ignored is None or outdated else self._verdicts.speaker(ignored)
        if speaker is not None:
            namespace = speaker["metadata"]["namespace"]
            message = (
                f"node {node.name}: found faulty, but not cordoned, because the namespace {namespace} "
                f"does not have the label {names.LABEL_MAY_CORDON}=true; ask your administrator for it"
            )
            self._recorder.event(speaker, "Normal", "CordonNotAllowed", message)

    def _condition(self, type_: str, current: dict[str, Any], statement: Statement) -> dict[str, Any] | None:
        """A NodeCondition, which has a heartbeat where others have a generation.

        As it is if it says this already; None if it is not there and would be False.
        """
        status = statement.unhealthy if type_ == names.CONDITION_UNHEALTHY else statement.suspected
        if not current and status is ConditionStatus.FALSE:
            return None
        said = {"status": status.value, "reason": statement.reason, "message": statement.message}
        if said.items() <= current.items():
            return current
        now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        unmoved = current.get("status") == status
        since = current["lastTransitionTime"] if unmoved else now
        return {"type": type_} | said | {"lastHeartbeatTime": now, "lastTransitionTime": since}


CONDITIONS = (names.CONDITION_UNHEALTHY, names.CONDITION_SUSPECTED)


def condition_of(node: dict[str, Any], type_: str) -> dict[str, Any]:
    """That condition of a Node; empty if it has none."""
    conditions: list[dict[str, Any]] = node.get("status", {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == type_), {})


def cordon_states(node: dict[str, Any]) -> Iterable[str]:
    """Index function: what the mark says, and in a dry run, which makes none, the condition."""
    mark = read_mark(node)
    states = set() if mark is None else {mark.state.value}
    suspected = condition_of(node, names.CONDITION_SUSPECTED)
    if (suspected.get("status"), suspected.get("reason")) == (ConditionStatus.TRUE, HELD):
        states.add(MarkState.HELD.value)
    return states


def cordon_view(node: dict[str, Any] | None) -> tuple[object, ...] | None:
    """What of a Node concerns its cordon; heartbeats do not."""
    if node is None:
        return None
    metadata, spec = node["metadata"], node.get("spec", {})
    mark = (metadata.get("annotations") or {}).get(names.ANNOTATION_CORDON)
    said = (condition_of(node, type_) for type_ in CONDITIONS)
    fault = own_fault(node)
    return (
        metadata["uid"],
        mark,
        metadata.get("labels"),
        spec.get("unschedulable"),
        _taints(node),
        fault and (fault.type, fault.status),
        *((condition.get("status"), condition.get("reason")) for condition in said),
    )


def _taints(node: dict[str, Any]) -> list[dict[str, Any]]:
    taints: list[dict[str, Any]] = node.get("spec", {}).get("taints") or []
    return taints


def _is_ours(taint: dict[str, Any]) -> bool:
    return (taint["key"], taint["effect"]) == (names.TAINT_UNHEALTHY, NO_SCHEDULE)


def _with_taint(taints: Iterable[dict[str, Any]], value: str | None) -> list[dict[str, Any]]:
    others = [taint for taint in taints if not _is_ours(taint)]
    if value is None:
        return others
    return [*others, {"key": names.TAINT_UNHEALTHY, "value": value, "effect": NO_SCHEDULE}]


def _with_fault(verdict: Verdict, fault: NodeFault | None) -> Verdict:
    """The accusation with what the node's own conditions add to it."""
    if fault is None or verdict.healthy:
        return verdict
    evidence = shortened("; ".join(filter(None, (str(fault), verdict.evidence))), MAX_EVIDENCE)
    return verdict.model_copy(update={"evidence": evidence, "action": fault.action})


def _spoken(node: NodeState) -> Verdict | None:
    """What the statement on the node rests on."""
    accused = node.mark is not None and node.mark.state is not MarkState.LIFTED
    return node.verdict if accused or node.suspicion is None else node.suspicion
