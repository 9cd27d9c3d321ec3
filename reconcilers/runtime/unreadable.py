"""Objects that the controller cannot read: each gets an Event and the condition `Reconciled=False`.

The cache leaves them out, so their reconcilers do not see them; it keeps what names them, and their
conditions. An object that is corrected comes back by itself, and its reconciler withdraws the condition.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller.cache import Cache
from controller.events import EventRecorder
from controller.reconciler import Reconciler, Request, Result
from controller.resources import Resource
from reconcilers.runtime.reconciled import ReconciledCondition, condition_in

REASON = "Unreadable"


class UnreadableReconciler(Reconciler):
    """Reports one object; a request has its resource in front of its name.

    Args:
        conditions: by resource, who writes the condition; others have none.
    """

    def __init__(
        self,
        cache: Cache,
        recorder: EventRecorder,
        conditions: Mapping[Resource, ReconciledCondition],
    ) -> None:
        self._cache = cache
        self._recorder = recorder
        self._conditions = conditions

    async def reconcile(self, request: Request) -> Result:
        resource_name, _, name = request.name.partition("/")
        resource, found = self._cache.unreadable_of(resource_name, (request.namespace, name))
        if resource is None or found is None:
            return Result()
        reporter, obj = self._conditions.get(resource), found.obj
        known, generation = condition_in(obj), obj["metadata"].get("generation", 0)
        if reporter and (known.get("reason"), known.get("observedGeneration")) == (REASON, generation):
            return Result()
        message = (
            f"dlr cannot read this {resource.kind}, and leaves it alone: {found.reason}; correct or delete it"
        )
        subject = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": obj["metadata"]}
        self._recorder.event(subject, "Warning", REASON, message)
        if reporter is not None:
            await reporter.unreadable(obj, REASON, message)
        return Result()
