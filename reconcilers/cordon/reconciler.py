"""The reconciler of Nodes, which cordons faulty ones and lifts cordons.

Taint and finding of a decision are one write; the condition follows as a write of the status, and the next
look repairs a crash between the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from controller.reconciler import Request, Result
from controller.resources import NODES
from controller.wording import shortened
from crds import names
from crds.cordon import read_acted, write_acted
from crds.findings import Finding
from crds.model import ConditionStatus
from reconcilers.cordon.accusations import BY_DOMAIN, Accusations
from reconcilers.cordon.domains import Switch, has_room, is_switch, switch_of
from reconcilers.cordon.findings import NodeFindings
from reconcilers.cordon.policy import NodeCordon, decide_cordon, newest
from reconcilers.cordon.statement import REPORTED, Statement, statement_on
from reconcilers.findings.faulty import MAX_KEPT_EVIDENCE
from reconcilers.findings.finished import FinishedChecks
from reconcilers.findings.record import passes_since, unhealthy_taint
from reconcilers.observed.domains import AUTO, domain_of
from reconcilers.observed.hardware import NodeFault, own_fault
from reconcilers.observed.options import CordonMode, CordonOptions, limit_of
from reconcilers.runtime.acts import write_status
from reconcilers.runtime.tools import Tools, WithTools

BY_CORDON = "cordon"
"""Index of the Nodes that count towards the limit."""
ALONE, IN_DOMAIN = "alone", "in a domain"
"""Keys of `BY_CORDON`: whether the Node is in an NVLink domain."""
HELD_SECONDS = 60.0
"""Time between two looks at a node whose cordon would exceed the limit."""
OURS = (names.TAINT_UNHEALTHY, "NoSchedule")
"""Key and effect of our taint."""


class NodeCordonReconciler(WithTools):
    """Cordons nodes; one worker alone may run it, since each cordon counts towards the limit of the next."""

    def __init__(self, tools: Tools, options: CordonOptions) -> None:
        super().__init__(tools)
        self._options = options
        self._accusations = tools.cache.shared(Accusations)
        self._findings = tools.cache.shared(NodeFindings)
        self._checks = tools.cache.shared(FinishedChecks)

    async def reconcile(self, request: Request) -> Result:
        raw = self._nodes.get(None, request.name)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            return Result()
        ignored = await self._findings.ignored(raw)
        node = self._state(raw, ignored)
        wanted = decide_cordon(node, lambda: self._has_room(raw, node.switch))
        written = await self._write(raw, node, wanted)
        await self._report(written, node, wanted)
        self._report_ignored(node, ignored)
        is_held = wanted.is_accused and not (wanted.cordoned or wanted.is_overruled)
        return Result(HELD_SECONDS if is_held else None)

    def _state(self, raw: dict[str, Any], ignored: Sequence[Finding]) -> NodeCordon:
        """The present state of the node. If its own conditions have a fault, `ignored` accusations count."""
        acted, fault = read_acted(raw), own_fault(raw)
        counting = self._findings.deciding(raw, acted)
        if fault is not None:
            counting += (finding for finding in ignored if not finding.healthy)
        found = [_with_fault(finding, fault) for finding in counting]
        decides = newest(found if acted is None else [acted, *found])
        return NodeCordon(
            name=raw["metadata"]["name"],
            acted=acted,
            taint=unhealthy_taint(raw),
            finding=decides,
            suspicion=self._suspicion_on(raw, decides),
            switch=self._switch_behind(raw, decides),
            passes=passes_since(self._checks.record_of(raw), acted.time) if acted is not None else 0,
        )

    def _suspicion_on(self, raw: dict[str, Any], decides: Finding | None) -> Finding | None:
        """The newest suspicion that is newer than the deciding finding."""
        found = self._findings.suspicions(raw)
        return newest(each for each in found if decides is None or each.time > decides.time)

    def _switch_behind(self, raw: dict[str, Any], decides: Finding | None) -> Switch | None:
        """The switch of the node's domain, if most of the domain's nodes are accused."""
        domain = domain_of(raw, AUTO)
        nodes = self._nodes.count(BY_DOMAIN, domain) if domain else 0
        if decides is None or decides.healthy or not is_switch(nodes, nodes):
            return None
        others = self._accusations.together(domain, decides.time, but=raw["metadata"]["name"])
        return switch_of(domain, 1 + others, nodes)

    def _has_room(self, raw: dict[str, Any], switch: Switch | None) -> bool:
        """Whether the limit leaves room for the cordon.

        The store counts our own writes at once; a leader with a stale cache writes nothing.
        """
        limit = limit_of(len(self._nodes), self._options.limit_percent)
        alone = self._nodes.count(BY_CORDON, ALONE) - (ALONE in cordon_keys(raw))
        some = self._nodes.count(BY_CORDON, IN_DOMAIN)
        cordoned = self._nodes.by_index(BY_CORDON, IN_DOMAIN) if some else []
        own = raw["metadata"]["name"]
        domains = [domain_of(node, AUTO) for node in cordoned if node["metadata"]["name"] != own]
        return has_room(limit, switch, alone, domains, lambda domain: self._nodes.count(BY_DOMAIN, domain))

    async def _write(self, raw: dict[str, Any], node: NodeCordon, wanted: NodeCordon) -> dict[str, Any]:
        """Write taint and finding.

        Raises:
            Conflict: the node has changed since it was read.
        """
        is_same = (wanted.acted, wanted.taint) == (node.acted, node.taint)
        if self._options.mode is not CordonMode.ENFORCE or is_same or wanted.acted is None:
            return raw
        annotations = {names.ANNOTATION_CORDON: write_acted(wanted.acted)}
        metadata = {"resourceVersion": raw["metadata"]["resourceVersion"], "annotations": annotations}
        patch: dict[str, Any] = {"metadata": metadata}
        if wanted.taint != node.taint:
            patch["spec"] = {"taints": _with_taint(_taints(raw), wanted.taint) or None}
        return await self._client.patch(NODES, node.name, patch)

    async def _report(self, raw: dict[str, Any], node: NodeCordon, wanted: NodeCordon) -> None:
        """Write the conditions, and if they change, Events on the node and on the source of the finding."""
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
        await write_status(self._client, NODES, raw, {"conditions": [*others, *conditions]})
        self._recorder.event(raw, statement.event_type, statement.event_reason, statement.message)
        finding = wanted.stated
        source = self._findings.source(finding) if finding is not None else None
        if source is not None:
            message = f"node {wanted.name}: {statement.message}"
            self._recorder.event(source, statement.event_type, statement.event_reason, message)

    def _report_ignored(self, node: NodeCordon, found: Sequence[Finding]) -> None:
        """Record an Event on the object that would have cordoned the node if its namespace counted."""
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
        """The NodeCondition; the present one if nothing changes, None if it is missing and would be False."""
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


CONDITIONS = (names.CONDITION_UNHEALTHY, names.CONDITION_SUSPECTED)


def condition_of(node: dict[str, Any], type_: str) -> dict[str, Any]:
    """The condition of a type on a raw Node; empty if it has none."""
    conditions: list[dict[str, Any]] = node.get("status", {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == type_), {})


def takes_room(node: dict[str, Any]) -> bool:
    """Whether the node counts towards the limit: it has our taint, or in a dry run, its condition."""
    suspected = condition_of(node, names.CONDITION_SUSPECTED)
    is_reported = (suspected.get("status"), suspected.get("reason")) == (ConditionStatus.TRUE, REPORTED)
    return is_reported or unhealthy_taint(node) is not None


def domain_keys(node: dict[str, Any]) -> list[str]:
    """Index function of `BY_DOMAIN`."""
    domain = domain_of(node, AUTO)
    return [domain] if domain else []


def cordon_keys(node: dict[str, Any]) -> list[str]:
    """Index function of `BY_CORDON`."""
    if not takes_room(node):
        return []
    return [IN_DOMAIN if domain_of(node, AUTO) else ALONE]


def cordon_view(node: dict[str, Any]) -> tuple[object, ...]:
    """The parts of a Node that concern its cordon."""
    metadata = node["metadata"]
    conditions = (condition_of(node, type_) for type_ in CONDITIONS)
    fault = own_fault(node)
    return (
        metadata["uid"],
        domain_of(node, AUTO),
        (metadata.get("annotations") or {}).get(names.ANNOTATION_CORDON),
        _taints(node),
        fault and (fault.type, fault.status),
        *((condition.get("status"), condition.get("reason")) for condition in conditions),
    )


def _taints(node: dict[str, Any]) -> list[dict[str, Any]]:
    taints: list[dict[str, Any]] = node.get("spec", {}).get("taints") or []
    return taints


def _with_taint(taints: Iterable[dict[str, Any]], value: str | None) -> list[dict[str, Any]]:
    others = [taint for taint in taints if (taint["key"], taint["effect"]) != OURS]
    if value is None:
        return others
    return [*others, {"key": OURS[0], "value": value, "effect": OURS[1]}]


def _with_fault(finding: Finding, fault: NodeFault | None) -> Finding:
    """The accusation with the fault of the node's own conditions."""
    if fault is None or finding.healthy:
        return finding
    evidence = shortened("; ".join(filter(None, (str(fault), finding.message))), MAX_KEPT_EVIDENCE)
    return finding.model_copy(update={"message": evidence, "action": fault.action})
