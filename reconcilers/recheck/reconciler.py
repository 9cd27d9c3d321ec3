"""The reconciler of cordoned Nodes, which creates their checks after repair."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from controller.errors import AlreadyExists
from controller.reconciler import Request, Result
from controller.resources import Object
from controller.slices import computed
from crds import names
from crds.cordon import read_acted
from reconcilers.findings.finished import is_finished
from reconcilers.findings.machine import created_at
from reconcilers.findings.record import read_record, unhealthy_taint
from reconcilers.observed.containers import has_ended
from reconcilers.observed.hardware import fault_view, reports_fault
from reconcilers.observed.trust import CLUSTER, Trust
from reconcilers.recheck.policy import (
    CordonedNode,
    check_of,
    due_at,
    is_left_to_us,
    partners,
    repaired_at,
    taint_keys,
)
from reconcilers.runtime.kinds import NODECHECKS
from reconcilers.runtime.tools import Tools, WithTools

BY_NODE = "recheck"
"""Index of our NodeChecks by the cordoned node; unfinished ones are also under `UNFINISHED`."""
UNFINISHED = ""
MOST_AT_ONCE = 4
"""Limit of such checks under way in the cluster: each takes up to three healthy nodes."""
WAIT_SECONDS = 300.0
"""Time between two looks at a node that waits for partners, or for its turn."""


class RecheckReconciler(WithTools):
    """Creates checks; one worker alone may run it, since two would choose the same partners."""

    def __init__(self, tools: Tools, namespace: str) -> None:
        super().__init__(tools)
        self._namespace = namespace
        self._checks = tools.cache.store(NODECHECKS)
        self._trust = Trust(tools.cache)

    async def reconcile(self, request: Request) -> Result:
        raw = self._nodes.get(None, request.name)
        cordoned = None if raw is None else self._cordoned(raw)
        if raw is None or cordoned is None or not is_left_to_us(raw):
            return Result()
        due = due_at(cordoned)
        if due is None:
            return Result()
        left_seconds = (due - self._clock.now()).total_seconds()
        if left_seconds > 0:
            return Result(left_seconds)
        if len(self._counting(UNFINISHED)) >= MOST_AT_ONCE:
            return Result(WAIT_SECONDS)
        return await self._make(raw, cordoned)

    def _cordoned(self, raw: Object) -> CordonedNode | None:
        """The cordon of a raw Node; None if dlr has not cordoned it, or a check of it is under way."""
        acted, checks = read_acted(raw), self._own_checks(raw)
        if acted is None or acted.healthy or unhealthy_taint(raw) is None:
            return None
        if not all(map(is_finished, checks)):
            return None
        ends = [datetime.fromisoformat(_end(check)) for check in checks]
        return CordonedNode(acted, read_record(raw), ends, repaired_at(raw))

    def _own_checks(self, raw: Object) -> list[Object]:
        """The checks after repair of this machine."""
        found, since = self._counting(raw["metadata"]["name"]), created_at(raw)
        return [c for c in found if datetime.fromisoformat(c["metadata"]["creationTimestamp"]) >= since]

    def _counting(self, key: str) -> list[Object]:
        """Checks under a key of the index, in namespaces that count; in others, anybody may set the label."""
        return self._trust.counting(self._checks.by_index(BY_NODE, key), CLUSTER)

    async def _make(self, raw: Object, cordoned: CordonedNode) -> Result:
        counting = self._trust.administrators()
        namespace = self._namespace if self._namespace in counting else min(counting, default=None)
        if namespace is None:
            return Result(WAIT_SECONDS)  # no check would count
        nodes, workers = self._nodes.list(), self._workers.list()
        turn = f"{raw['metadata']['name']}/{cordoned.last.isoformat()}"
        beside = await computed(len(nodes) + len(workers), _idle_partners, raw, nodes, workers, turn)
        if not beside:
            return Result(WAIT_SECONDS)
        check = check_of(raw, beside, namespace, cordoned)
        try:
            await self._client.create(NODECHECKS, check)
        except AlreadyExists:
            return Result(WAIT_SECONDS)  # an earlier look has created it, and the cache is late
        self._recorder.event(
            raw,
            "Normal",
            "RecheckStarted",
            f"NodeCheck {namespace}/{check['metadata']['name']} tests whether the node may return, with "
            f"{', '.join(beside)}",
        )
        return Result(WAIT_SECONDS)


def _idle_partners(node: Object, nodes: Sequence[Object], workers: Iterable[Object], turn: str) -> list[str]:
    busy = {name for worker in workers if (name := _node_of(worker)) is not None}
    return partners(node, nodes, busy, turn)


def _end(check: Object) -> str:
    end: str = check["status"].get("completionTime") or check["metadata"]["creationTimestamp"]
    return end


def check_keys(check: Object) -> list[str]:
    """Index function of `BY_NODE`."""
    if (check["metadata"].get("labels") or {}).get(names.LABEL_RECHECK) != "true":
        return []
    nodes = check["spec"].get("nodes") or ()
    return [*nodes[:1], *([] if is_finished(check) else [UNFINISHED])]


def _node_of(worker: Object) -> str | None:
    """The node of an ElasticWorker's Pod, unless that has ended."""
    return None if has_ended(worker) else (worker.get("status") or {}).get("nodeName")


def recheck_view(node: Object) -> tuple[Any, ...]:
    """The parts of a Node that concern its next check."""
    if unhealthy_taint(node) is None:
        return (node["metadata"]["uid"],)
    annotations = node["metadata"].get("annotations") or {}
    ours = (names.ANNOTATION_CORDON, names.ANNOTATION_RECORD)
    written = (annotations.get(name) for name in ours)
    taints = tuple(sorted(taint_keys(node)))
    return (
        node["metadata"]["uid"],
        taints,
        repaired_at(node),
        fault_view(node),
        reports_fault(node),
        is_left_to_us(node),
        *written,
    )
