"""The reconcilers of Nodes: NodeCordon takes faulty ones out of service and back, NodeRecord keeps records.

Everything of one decision on a node's metadata and spec goes out in one write, the mark with what it marks;
the condition, a status of its own, follows, and a crash in between is healed by the next look.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from controller.cache import Cache
from controller.client import Client
from controller.events import EventRecorder
from controller.reconciler import Reconciler, Request, Result
from controller.resources import NODES
from controller.wording import shortened
from crds import names
from crds.findings import Finding
from crds.model import ConditionStatus
from reconcilers.cordon.findings import NodeFindings
from reconcilers.cordon.options import ALL_NODES, CordonMode, CordonOptions, limit_of, pools_of
from reconcilers.cordon.policy import (
    MAX_EVIDENCE,
    Mark,
    MarkState,
    NodeState,
    decide_cordon,
    full_pool,
    newest,
    read_mark,
    write_mark,
)
from reconcilers.cordon.statement import REPORTED, Statement, statement_on
from reconcilers.nodecheck.evidence import NodeFault, own_fault
from reconcilers.nodecheck.record import passes_since, read_record, write_record
from reconcilers.nodecheck.reference import read_reference, write_reference
from reconcilers.runtime.clock import Clock

BY_POOL, BY_CORDON = "pool", "cordon"
"""Indexes of Nodes by their pools: all of them; those that take room under the limit, and `HELD` ones."""
HELD = "held"
HELD_SECONDS, HELD_LOOKS_PER_SECOND = 10.0, 50
"""Time after which a node that the limit holds back is looked at again; of many nodes, later."""
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
        self._findings = cache.shared(NodeFindings)

    async def reconcile(self, request: Request) -> Result:
        raw = self._nodes.get(None, request.name)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            return Result()
        ignored = await self._findings.ignored(raw)
        node = self._state(raw, ignored)
        wanted = decide_cordon(node)
        if wanted.cordoned and not node.cordoned:
            wanted = decide_cordon(node, self._full_pool(raw, node))
        raw = await self._write(raw, node, wanted)
        await self._report(raw, node, wanted)
        self._report_ignored(node, ignored)
        return Result(self._held_seconds() if _is_held(wanted) else None)

    def _state(self, raw: dict[str, Any], ignored: Sequence[Finding]) -> NodeState:
        """The node as it is. If its own conditions have a fault, `ignored` accusations count too."""
        mark, fault = read_mark(raw), own_fault(raw)
        known = None if mark is None else mark.finding
        counting = self._findings.deciding(raw, known)
        if fault is not None:
            counting += (finding for finding in ignored if not finding.healthy)
        found = [_with_fault(finding, fault) for finding in counting]
        decides = newest(found if mark is None else [mark.finding, *found])
        return NodeState(
            name=raw["metadata"]["name"],
            mark=mark,
            taint=next((t.get("value", "") for t in _taints(raw) if _is_ours(t)), None),
            unschedulable=bool(raw.get("spec", {}).get("unschedulable")),
            finding=decides,
            suspicion=self._suspicion_on(raw, decides),
            passes=passes_since(self._findings.record_of(raw), mark.finding.time) if mark is not None else 0,
            pools=pools_of(raw["metadata"].get("labels") or {}, self._options.pools),
        )

    def _suspicion_on(self, raw: dict[str, Any], decides: Finding | None) -> Finding | None:
        """The newest finding on the node, if it does not decide."""
        found = self._findings.suspicions(raw)
        return newest(each for each in found if decides is None or each.time > decides.time)

    def _full_pool(self, raw: dict[str, Any], node: NodeState) -> str | None:
        """The pool that has no room for the node. The store counts what we have written at once; a leader
        that is behind writes nothing."""
        own = takes_room(raw, node.mark)

        def limit(pool: str) -> int:
            return limit_of(self._nodes.count(BY_POOL, pool), self._options.limit_percent)

        return full_pool(node, lambda pool: self._nodes.count(BY_CORDON, pool) - own, limit)

    def _held_seconds(self) -> float:
        return max(HELD_SECONDS, self._nodes.count(BY_CORDON, HELD) / HELD_LOOKS_PER_SECOND)

    async def _write(self, raw: dict[str, Any], node: NodeState, wanted: NodeState) -> dict[str, Any]:
        """Write the mark and what it marks in one; a Conflict is retried with the changed node."""
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

    async def _report(self, raw: dict[str, Any], node: NodeState, wanted: NodeState) -> None:
        """The conditions, and Events when they change: on the node, and on the source of the finding."""
        current = {type_: condition_of(raw, type_) for type_ in CONDITIONS}
        accused = any(c.get("status") == ConditionStatus.TRUE for c in current.values())
        statement = statement_on(node, wanted, self._options, accused=accused)
        if statement is None:
            return
        conditions = [self._condition(type_, current[type_], statement) for type_ in CONDITIONS]
        conditions = [condition for condition in conditions if condition is not None]
        if all(condition in current.values() for condition in conditions):
            return
        others = [c for c in raw.get("status", {}).get("conditions", ()) if c["type"] not in CONDITIONS]
        patch = {
            "metadata": {"resourceVersion": raw["metadata"]["resourceVersion"]},
            "status": {"conditions": [*others, *conditions]},
        }
        await self._client.patch(NODES, wanted.name, patch, subresource="status")
        self._recorder.event(raw, statement.event_type, statement.event_reason, statement.message)
        finding = _stated(wanted)
        source = self._findings.source(finding) if finding is not None else None
        if source is not None:
            message = f"node {wanted.name}: {statement.message}"
            self._recorder.event(source, statement.event_type, statement.event_reason, message)

    def _report_ignored(self, node: NodeState, found: Sequence[Finding]) -> None:
        """Put an Event on the object that would have cordoned the node in a namespace that counts."""
        passed = {f.namespace: f.time for f in sorted(found, key=lambda f: f.time) if f.healthy}
        ignored = newest(f for f in found if not f.healthy and f.time >= passed.get(f.namespace, f.time))
        outdated = ignored and node.finding and node.finding.time >= ignored.time
        source = None if ignored is None or outdated else self._findings.source(ignored)
        if source is not None:
            namespace = source["metadata"]["namespace"]
            message = (
                f"node {node.name}: found faulty, but not cordoned, because the namespace {namespace} "
                f"does not have the label {names.LABEL_MAY_CORDON}=true; ask your administrator for it"
            )
            self._recorder.event(source, "Normal", "CordonNotAllowed", message)

    def _condition(self, type_: str, current: dict[str, Any], statement: Statement) -> dict[str, Any] | None:
        """A NodeCondition; as it is if it states this already, None if it is missing and would be False."""
        status = statement.unhealthy if type_ == names.CONDITION_UNHEALTHY else statement.suspected
        if not current and status is ConditionStatus.FALSE:
            return None
        stated = {"status": status.value, "reason": statement.reason, "message": statement.message}
        if stated.items() <= current.items():
            return current
        now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        unmoved = current.get("status") == status
        since = current["lastTransitionTime"] if unmoved else now
        return {"type": type_} | stated | {"lastHeartbeatTime": now, "lastTransitionTime": since}


class NodeRecordReconciler(Reconciler):
    """Keeps on each Node its record, and how fast its class of hardware was at first.

    Apart from the cordon, which looks at one node at a time: a check of 10,000 nodes writes to each of them.
    """

    def __init__(self, client: Client, cache: Cache) -> None:
        self._client = client
        self._nodes = cache.store(NODES)
        self._findings = cache.shared(NodeFindings)

    async def reconcile(self, request: Request) -> Result:
        raw = self._nodes.get(None, request.name)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            return Result()
        annotations = {}
        record, reference = self._findings.record_of(raw), self._findings.reference_of(raw)
        if record != read_record(raw):
            annotations[names.ANNOTATION_RECORD] = write_record(record)
        if reference is not None and reference != read_reference(raw):
            annotations[names.ANNOTATION_REFERENCE] = write_reference(reference)
        if annotations:
            # Nobody else writes these, so all that may not have changed meanwhile is whose name it is.
            patch = {"metadata": {"uid": raw["metadata"]["uid"], "annotations": annotations}}
            await self._client.patch(NODES, request.name, patch)
        return Result()


CONDITIONS = (names.CONDITION_UNHEALTHY, names.CONDITION_SUSPECTED)


def condition_of(node: dict[str, Any], type_: str) -> dict[str, Any]:
    """That condition of a Node; empty if it has none."""
    conditions: list[dict[str, Any]] = node.get("status", {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == type_), {})


def takes_room(node: dict[str, Any], mark: Mark | None) -> bool:
    """Whether it is cordoned by us; in a dry run, which makes no mark, whether its condition is so."""
    suspected = condition_of(node, names.CONDITION_SUSPECTED)
    is_reported = (suspected.get("status"), suspected.get("reason")) == (ConditionStatus.TRUE, REPORTED)
    return is_reported or (mark is not None and mark.state is MarkState.CORDONED)


def pool_keys(node: dict[str, Any], options: CordonOptions) -> list[str]:
    """Index function of `BY_POOL`."""
    return [ALL_NODES, *pools_of(node["metadata"].get("labels") or {}, options.pools)]


def cordon_keys(node: dict[str, Any], options: CordonOptions) -> list[str]:
    """Index function of `BY_CORDON`."""
    mark = read_mark(node)
    if takes_room(node, mark):
        return pool_keys(node, options)
    return [HELD] if mark is not None and mark.state is MarkState.HELD else []


def add_cordon_indexes(cache: Cache, options: CordonOptions) -> None:
    cache.add_index(NODES, BY_POOL, partial(pool_keys, options=options))
    cache.add_index(NODES, BY_CORDON, partial(cordon_keys, options=options))


def cordon_view(node: dict[str, Any]) -> tuple[object, ...]:
    """The parts of a Node that concern its cordon."""
    metadata, spec = node["metadata"], node.get("spec", {})
    mark = (metadata.get("annotations") or {}).get(names.ANNOTATION_CORDON)
    conditions = (condition_of(node, type_) for type_ in CONDITIONS)
    fault = own_fault(node)
    return (
        metadata["uid"],
        mark,
        metadata.get("labels"),
        spec.get("unschedulable"),
        _taints(node),
        fault and (fault.type, fault.status),
        *((condition.get("status"), condition.get("reason")) for condition in conditions),
    )


def _is_held(node: NodeState) -> bool:
    return node.mark is not None and node.mark.state is MarkState.HELD


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


def _with_fault(finding: Finding, fault: NodeFault | None) -> Finding:
    """The accusation with the fault of the node's own conditions."""
    if fault is None or finding.healthy:
        return finding
    evidence = shortened("; ".join(filter(None, (str(fault), finding.message))), MAX_EVIDENCE)
    return finding.model_copy(update={"message": evidence, "action": fault.action})


def _stated(node: NodeState) -> Finding | None:
    """The finding that the statement on the node rests on."""
    accused = node.mark is not None and node.mark.state is not MarkState.LIFTED
    return node.finding if accused or node.suspicion is None else node.suspicion
