"""Objects that the controller cannot read: each gets an Event and the condition `Reconciled=False`.

The cache leaves them out, so their reconcilers do not see them. Of such an object nothing is read but its
metadata and its conditions. When it is corrected it comes back by itself, and its reconciler withdraws the
condition.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller import salvage
from controller.cache import Cache
from controller.client import Client
from controller.errors import NotFound
from controller.events import EventRecorder
from controller.reconciler import Reconciler, Request, Result
from controller.resources import Object, Resource
from reconcilers.runtime.reconciled import ReconciledCondition, condition_in

REASON = "Unreadable"


class UnreadableReconciler(Reconciler):
    """Reports one object; a request has its resource in front of its name.

    Args:
        conditions: by resource, who writes the condition; others have none.
    """

    def __init__(
        self,
        client: Client,
        cache: Cache,
        recorder: EventRecorder,
        conditions: Mapping[Resource, ReconciledCondition],
    ) -> None:
        self._client = client
        self._cache = cache
        self._recorder = recorder
        self._conditions = conditions

    async def reconcile(self, request: Request) -> Result:
        resource_name, _, name = request.name.partition("/")
        resource, found = self._cache.unreadable_of(resource_name, (request.namespace, name))
        if resource is None or found is None:
            return Result()
        reporter = self._conditions.get(resource)
        if reporter is None:
            self._tell(resource, found.obj, found.reason)
            return Result()
        try:
            text = await self._client.get_text(resource, name, request.namespace)
        except NotFound:
            return Result()
        obj = await salvage.in_thread(salvage.conditions_of, text)
        if not obj or obj["metadata"].get("uid") != found.obj["metadata"].get("uid"):
            return Result()  # another by now, which the watch brings
        condition, generation = condition_in(obj), obj["metadata"].get("generation", 0)
        if (condition.get("reason"), condition.get("observedGeneration")) == (REASON, generation):
            return Result()
        self._tell(resource, obj, found.reason)
        await reporter.unreadable(obj, REASON, _sentence(resource, found.reason))
        return Result()

    def _tell(self, resource: Resource, obj: Object, reason: str) -> None:
        subject = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": obj["metadata"]}
        self._recorder.event(subject, "Warning", REASON, _sentence(resource, reason))


def _sentence(resource: Resource, reason: str) -> str:
    return f"dlr cannot read this {resource.kind}, and leaves it alone: {reason}; correct or delete it"
