"""Condition `Reconciled`: whether the controller could reconcile an object (docs/events.md).

It is absent before the first failure. It is written when the kind of failure changes, not with every failure,
so that the write, which wakes the object's reconciler, cannot make a loop.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from controller.errors import InvalidStatus
from controller.reconciler import (
    ReconcileReporter,
    ReconcileTimeout,
    Request,
    Result,
    TerminalError,
)
from controller.resources import Object, Resource
from crds.model import ConditionStatus, first_fault
from crds.texts import shortened
from reconcilers.runtime.acts import write_status
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.runtime.tools import Tools, WithTools

RECONCILED = "Reconciled"
ERROR_LIMIT = 400
"""Most characters of the error itself in the message."""


class ReconciledCondition(ReconcileReporter):
    """Reporter of one controller; it withdraws no condition of another one on the same objects."""

    def __init__(self, tools: Tools, controller: str, resource: Resource) -> None:
        self._controller = controller
        self._resource = resource
        self._client, self._recorder, self._clock = tools.client, tools.recorder, tools.clock
        self._store = tools.cache.store(resource)

    async def failed(self, request: Request, error: Exception) -> None:
        raw = self._store.get(request.namespace, request.name)
        if raw is None:
            return
        reason, message = type(error).__name__, f"{self._controller}: {sentence(error)}"
        if self._resource == ELASTICWORKERS:
            self._recorder.event(_owner(raw), "Warning", "ReconcileFailed", f"{request.name}: {message}")
        else:
            self._recorder.event(raw, "Warning", "ReconcileFailed", message)
        before = condition_in(raw)
        if (before.get("status"), before.get("reason")) != (ConditionStatus.FALSE, reason):
            await self._write(raw, ConditionStatus.FALSE, reason, message)

    async def succeeded(self, request: Request) -> None:
        raw = self._store.get(request.namespace, request.name)
        before = {} if raw is None else condition_in(raw)
        ours = (before.get("data") or {}).get("controller") == self._controller
        if raw is not None and ours and before["status"] == ConditionStatus.FALSE:
            await self._write(raw, ConditionStatus.TRUE, "Recovered", "")

    async def unreadable(self, obj: Object, reason: str, message: str) -> None:
        """Report why an object is not reconciled; `obj` has only metadata and conditions."""
        # `kubectl get` shows a job's reason. The next reconcile of a readable version replaces it.
        shown = {"reason": reason, "message": message} if self._resource == ELASTICJOBS else {}
        await self._write(obj, ConditionStatus.FALSE, reason, f"{self._controller}: {message}", shown)

    async def _write(
        self,
        raw: Object,
        status: ConditionStatus,
        reason: str,
        message: str,
        shown: Mapping[str, str] | None = None,
    ) -> None:
        metadata, before = raw["metadata"], condition_in(raw)
        condition = {
            "type": RECONCILED,
            "status": status.value,
            "reason": reason,
            "message": message,
            "data": {"controller": self._controller},
            "lastTransitionTime": self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
            "observedGeneration": metadata.get("generation", 0),
        }
        if before.get("status") == status:
            condition["lastTransitionTime"] = before["lastTransitionTime"]
        others = [c for c in (raw.get("status") or {}).get("conditions") or () if c is not before]
        patch = {"conditions": [*others, condition], **(shown or {})}
        await write_status(self._client, self._resource, raw, patch)


def sentence(error: Exception) -> str:
    """Return a sentence about the error of a reconcile, and about the next attempt."""
    text = shortened(" ".join(str(error).split()), ERROR_LIMIT)
    if isinstance(error, InvalidStatus):
        return (
            f"the API server refuses the status that was computed: {text}; "
            "the controller tries again when the object changes"
        )
    if isinstance(error, TerminalError):
        return f"{text}; the controller tries again when the object changes"
    if isinstance(error, ReconcileTimeout):
        return f"the controller's look at it {text}; it tries again"
    if isinstance(error, ValidationError):
        fault = shortened(first_fault(error), ERROR_LIMIT)
        return f"{fault}; the controller tries again, and goes on once that is corrected"
    return f"unexpected {type(error).__name__}: {text}; the controller tries again, and its log says more"


def condition_in(raw: Object) -> Object:
    """Return the condition `Reconciled`; empty without one."""
    conditions: list[Object] = (raw.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == RECONCILED), {})


def _owner(worker: Object) -> Object:
    """Return the job or check of a worker with the fields for an Event; without one, the worker."""
    metadata = worker["metadata"]
    owner = next((o for o in metadata.get("ownerReferences", ()) if o.get("controller")), None)
    if owner is None:
        return worker
    named = {"namespace": metadata.get("namespace"), "name": owner["name"], "uid": owner["uid"]}
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "metadata": named}


REASON = "Unreadable"


class UnreadableReconciler(WithTools):
    """Reports unreadable objects; a request's name begins with the resource.

    Args:
        conditions: writers of the condition, by resource; other resources have none.
    """

    def __init__(self, tools: Tools, conditions: Mapping[Resource, ReconciledCondition]) -> None:
        super().__init__(tools)
        self._conditions = conditions

    async def reconcile(self, request: Request) -> Result:
        resource_name, _, name = request.name.partition("/")
        resource, found = self._cache.unreadable_of(resource_name, (request.namespace, name))
        if resource is None or found is None:
            return Result()
        reporter, obj = self._conditions.get(resource), found.obj
        before, generation = condition_in(obj), obj["metadata"].get("generation", 0)
        if reporter and (before.get("reason"), before.get("observedGeneration")) == (REASON, generation):
            return Result()
        message = (
            f"dlr cannot read this {resource.kind}, and leaves it alone: {found.reason}; correct or delete it"
        )
        subject = resource.manifest(obj["metadata"])
        self._recorder.event(subject, "Warning", REASON, message)
        if reporter is not None:
            await reporter.unreadable(obj, REASON, message)
        return Result()
