"""Writes of a plan to the API server, with their Events."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from controller.errors import AlreadyExists, ApiError, NotFound
from controller.resources import Object, Resource
from crds.model import ObjectMeta
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.runtime.refused import WRITE_REFUSED, is_refusal

TYPE_CHECKING = False
if TYPE_CHECKING:  # the CLI imports this module, and loads no client
    from controller.client import AsyncClient
    from controller.events import EventRecorder, EventType

PARALLEL_WRITES = 16


async def in_parallel(calls: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Await calls, a bounded number at once. When all have ended, raise a refusal, or else the first error.

    A generator's calls are made as they begin: ten thousand tasks at once would block the event loop.
    """
    waiting, errors = iter(calls), []

    async def work_off() -> None:
        for call in waiting:
            try:
                await call
            except Exception as error:  # the other calls are still made
                errors.append(error)

    await asyncio.gather(*(work_off() for _ in range(PARALLEL_WRITES)))
    if errors:
        refusals = (error for error in errors if isinstance(error, ApiError) and is_refusal(error))
        raise next(refusals, errors[0])


class Event(NamedTuple):
    """An Event on the object of the plan."""

    type: EventType
    reason: str
    message: str


class RequestVerb(Enum):
    CREATE = "create"
    PATCH = "patch"
    DELETE = "delete"


@dataclass(frozen=True)
class Act:
    """One write. It counts as done if it was done before, or its object is gone."""

    verb: RequestVerb
    resource: Resource
    name: str
    namespace: str
    body: Object = field(default_factory=dict)
    """The object to create, or the merge patch."""
    subresource: str | None = None
    uid: str | None = None
    """Uid of the object to delete."""
    events: tuple[Event, ...] = ()
    """Events to record when it is done."""


def create(resource: Resource, body: dict[str, Any], *events: Event) -> Act:
    metadata = body["metadata"]
    return Act(RequestVerb.CREATE, resource, metadata["name"], metadata["namespace"], body, events=events)


async def carry_out(client: AsyncClient, recorder: EventRecorder, about: Object, acts: Sequence[Act]) -> None:
    """Carry out acts, some at a time, in no order; raise the first error when all have ended."""
    if len(acts) == 1:
        await _do(client, recorder, about, acts[0])
    elif acts:
        await in_parallel(_do(client, recorder, about, act) for act in acts)


async def _do(client: AsyncClient, recorder: EventRecorder, about: Object, act: Act) -> None:
    try:
        match act.verb:
            case RequestVerb.CREATE:
                await client.create(act.resource, act.body)
            case RequestVerb.PATCH:
                await client.patch(
                    act.resource, act.name, act.body, act.namespace, subresource=act.subresource
                )
            case RequestVerb.DELETE:
                await client.delete(act.resource, act.name, act.namespace, uid=act.uid)
    except (AlreadyExists, NotFound):
        return  # done before; the cache does not show it yet
    tell(recorder, about, act.events)


async def write_status(client: AsyncClient, resource: Resource, of: Object, patch: Object) -> Object:
    """Merge a patch into the status of an object, and return the object as it is stored now.

    Args:
        of: the object from which the patch was decided.

    Raises:
        Conflict: the object has changed since.
    """
    metadata = of["metadata"]
    body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": patch}
    return await client.patch(
        resource, metadata["name"], body, metadata.get("namespace"), subresource="status"
    )


@contextmanager
def telling_refusals(recorder: EventRecorder, about: Object, what: str = "") -> Iterator[None]:
    """Record an Event of a refusal by the API server, and raise it: nothing else shows the reason.

    Args:
        what: what is refused; empty for all that the object needs.
    """
    try:
        yield
    except ApiError as error:
        if is_refusal(error):
            owner = "job" if about["kind"] == ELASTICJOBS.kind else about["kind"]
            what = what or f"the API server refuses what the {owner} needs"
            recorder.event(about, "Warning", WRITE_REFUSED, f"{what}: {error}")
        raise


def tell(recorder: EventRecorder, about: Object, events: Sequence[Event]) -> None:
    for event in events:
        recorder.event(about, event.type, event.reason, event.message)


def deleted(resource: Resource, metadata: ObjectMeta) -> Act:
    return Act(RequestVerb.DELETE, resource, metadata.name, metadata.namespace, uid=metadata.uid)
