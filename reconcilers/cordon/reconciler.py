"""The NodeCordon reconciler: takes nodes out of service that were found faulty, and brings them back.

Everything of one decision on a node's metadata and spec goes out in one write, the mark with what it marks;
the condition, a status of its own, follows, and a crash in between is healed by the next look.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from controller.cache import Cache
from controller.client import Client
from controller.events import EventRecorder
from controller.reconciler import Reconciler, Request, Result
from controller.resources import NAMESPACES, NODES
from controller.slices import Slices
from crds import names
from crds.model import ConditionStatus
from reconcilers.clock import Clock
from reconcilers.cordon.options import CordonMode, CordonOptions
from reconcilers.cordon.policy import (
    HELD,
    MarkState,
    NodeState,
    Statement,
    Verdict,
    admit,
    cordon_limit,
    decide_cordon,
    newest_verdict,
    read_mark,
    statement_on,
    write_mark,
)
from reconcilers.cordon.verdicts import Verdicts

BY_CORDON = "cordon"
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
        self._namespaces = cache.store(NAMESPACES)
        self._verdicts = Verdicts(cache)

    async def reconcile(self, request: Request) -> Result:
        raw = self._nodes.get(None, request.name)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            return Result()
        node = self._state(raw)
        wanted = decide_cordon(node, admitted=True)
        if wanted.cordoned and not node.cordoned:
            wanted = decide_cordon(node, admitted=await self._has_room(request.name))
        if self._options.mode is CordonMode.ENFORCE:
            raw = await self._write(raw, node, wanted)
        await self._tell(raw, node, wanted)
        self._tell_of_ignored_verdict(raw, node)
        return Result()

    def _state(self, raw: dict[str, Any]) -> NodeState:
        mark = read_mark(raw)
        said = [] if mark is None else [mark.verdict]
        said += filter(self._may_cordon, self._verdicts_on(raw))
        return NodeState(
            name=raw["metadata"]["name"],
            mark=mark,
            taint=next((t.get("value", "") for t in _taints(raw) if _is_ours(t)), None),
            unschedulable=bool(raw.get("spec", {}).get("unschedulable")),
            verdict=newest_verdict(said),
        )

    def _verdicts_on(self, raw: dict[str, Any]) -> list[Verdict]:
        """On this machine: one of the same name that was there before was another, or has been repaired."""
        created = datetime.fromisoformat(raw["metadata"]["creationTimestamp"])
        return [v for v in self._verdicts.on(raw["metadata"]["name"]) if v.time >= created]

    def _may_cordon(self, verdict: Verdict) -> bool:
        """Whoever runs Pods in a namespace can make them say anything, so an administrator decides."""
        return may_cordon(self._namespaces.get(None, verdict.namespace))

    async def _has_room(self, name: str) -> bool:
        """Also asks the API server itself: a stale cache must not let the limit be exceeded."""
        limit = cordon_limit(len(self._nodes), self._options.limit_percent)
        if len(self._nodes.by_index(BY_CORDON, MarkState.CORDONED)) >= limit:
            return False
        if name not in await self._admitted({}, limit):
            return False
        answer = await self._client.list(NODES, field_selector=UNSCHEDULABLE)
        return name in await self._admitted({raw["metadata"]["name"]: raw for raw in answer["items"]}, limit)

    async def _admitted(self, fresh: dict[str, dict[str, Any]], limit: int) -> frozenset[str]:
        """Which nodes may be cordoned, by the cache and what is known better."""
        known = {raw["metadata"]["name"]: raw for raw in self._marked()}
        for name in self._verdicts.accused():
            raw = self._nodes.get(None, name)
            if raw is not None:
                known[name] = raw
        fleet, slices = [], Slices()
        for raw in (known | fresh).values():
            fleet.append(self._state(raw))
            await slices.pause()
        return admit(fleet, limit)

    def _marked(self) -> Iterable[dict[str, Any]]:
        for state in (MarkState.CORDONED, MarkState.HELD):
            yield from self._nodes.by_index(BY_CORDON, state)

    async def _write(self, raw: dict[str, Any], node: NodeState, wanted: NodeState) -> dict[str, Any]:
        """Refused with Conflict if the node changed since it was read; then it is looked at anew."""
        if wanted == node or wanted.mark is None:
            return raw
        spec: dict[str, Any] = {}
        if wanted.unschedulable != node.unschedulable:
            spec["unschedulable"] = wanted.unschedulable or None
        if wanted.taint != node.taint:
            spec["taints"] = _with_taint(_taints(raw), wanted.taint) or None
        metadata = {
            "resourceVersion": raw["metadata"]["resourceVersion"],
            "annotations": {names.ANNOTATION_CORDON: write_mark(wanted.mark)},
        }
        return await self._client.patch(NODES, node.name, {"metadata": metadata, "spec": spec})

    async def _tell(self, raw: dict[str, Any], node: NodeState, wanted: NodeState) -> None:
        """The condition, and Events when it changes: on the node, and on what spoke the verdict."""
        current = condition_of(raw)
        accused = current.get("status") == ConditionStatus.TRUE
        statement = statement_on(node, wanted, self._options, accused=accused)
        if statement is None or _says(current, statement):
            return
        conditions = [c for c in raw.get("status", {}).get("conditions", ()) if c is not current]
        conditions.append(self._condition(current, statement))
        patch = {
            "metadata": {"resourceVersion": raw["metadata"]["resourceVersion"]},
            "status": {"conditions": conditions},
        }
        await self._client.patch(NODES, wanted.name, patch, subresource="status")
        self._recorder.event(raw, statement.event_type, statement.event_reason, statement.message)
        speaker = self._verdicts.speaker(wanted.verdict) if wanted.verdict else None
        if speaker is not None:
            message = f"node {wanted.name}: {statement.message}"
            self._recorder.event(speaker, statement.event_type, statement.event_reason, message)

    def _tell_of_ignored_verdict(self, raw: dict[str, Any], node: NodeState) -> None:
        """On the object that accuses the node in a namespace whose word does not count, if it would have."""
        ignored = newest_verdict(v for v in self._verdicts_on(raw) if not self._may_cordon(v))
        outdated = ignored and node.verdict and node.verdict.time >= ignored.time
        speaker = None if ignored is None or ignored.healthy or outdated else self._verdicts.speaker(ignored)
        if speaker is not None:
            namespace = speaker["metadata"]["namespace"]
            message = (
                f"node {node.name}: found faulty, but not cordoned, because the namespace {namespace} "
                f"does not have the label {names.LABEL_MAY_CORDON}=true; ask your administrator for it"
            )
            self._recorder.event(speaker, "Normal", "CordonNotAllowed", message)

    def _condition(self, current: dict[str, Any], statement: Statement) -> dict[str, Any]:
        """A NodeCondition, which has a heartbeat where others have a generation."""
        now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        unmoved = current.get("status") == statement.status
        return {
            "type": names.CONDITION_UNHEALTHY,
            "status": statement.status.value,
            "reason": statement.reason,
            "message": statement.message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": current["lastTransitionTime"] if unmoved else now,
        }


def condition_of(node: dict[str, Any]) -> dict[str, Any]:
    """Our condition of a Node; empty if it has none."""
    conditions: list[dict[str, Any]] = node.get("status", {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == names.CONDITION_UNHEALTHY), {})


def may_cordon(namespace: dict[str, Any] | None) -> bool:
    """Whether what is said of nodes in a Namespace counts for their cordon."""
    labels = (namespace or {}).get("metadata", {}).get("labels") or {}
    return bool(labels.get(names.LABEL_MAY_CORDON) == "true")


def cordon_states(node: dict[str, Any]) -> Iterable[str]:
    """Index function: what the mark says, and in a dry run, which makes none, the condition."""
    mark = read_mark(node)
    states = set() if mark is None else {mark.state.value}
    if condition_of(node).get("reason") == HELD:
        states.add(MarkState.HELD.value)
    return states


def cordon_view(node: dict[str, Any] | None) -> tuple[object, ...] | None:
    """What of a Node concerns its cordon; heartbeats do not."""
    if node is None:
        return None
    metadata, spec = node["metadata"], node.get("spec", {})
    mark = (metadata.get("annotations") or {}).get(names.ANNOTATION_CORDON)
    said = condition_of(node)
    return (
        metadata["uid"],
        mark,
        spec.get("unschedulable"),
        _taints(node),
        said.get("status"),
        said.get("reason"),
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


def _says(condition: dict[str, Any], statement: Statement) -> bool:
    said = {"status": statement.status, "reason": statement.reason, "message": statement.message}
    return said.items() <= condition.items()
