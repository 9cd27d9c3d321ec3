"""Objects of which an owner has one, under a name that follows from its own: how it is made, and whose it is.

An owner that is deleted and made again has the same name, and another uid. Until garbage collection has taken
what the earlier one left, the name is held by an object that will go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from controller.client import AsyncClient
from controller.errors import AlreadyExists, Forbidden, NotFound
from controller.resources import Object, Resource
from controller.store import Store

BY_JOB = "job"
"""Index of ElasticWorkers, Pods and NodeChecks, by namespace and name of their job."""
BY_OWNER = "owner"
"""Index of Pods and ElasticWorkers, by `owner_uids`."""


class Leftover(Exception):
    """The name is held by an object of an earlier owner, which garbage collection takes. Look again soon.

    Args:
        found: that object; None if it has just gone.
    """

    def __init__(self, message: str, found: Object | None = None) -> None:
        super().__init__(message)
        self.found = found


def owner_uids(obj: Object) -> Iterable[str]:
    """Index function: the uid of the controlling owner."""
    return [o["uid"] for o in obj["metadata"].get("ownerReferences", ()) if o.get("controller")]


def belongs_to(obj: Object, owner_uid: str) -> bool:
    return any(owner["uid"] == owner_uid for owner in obj["metadata"].get("ownerReferences", ()))


def number_label(obj: Object, label: str) -> int | None:
    """The number in a label; None if there is none. Whoever may make Pods may write any text there."""
    text = (obj["metadata"].get("labels") or {}).get(label, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def is_leftover(obj: Object, wanted: Object) -> bool:
    """Whether `obj` belongs to an earlier owner of the same kind and name as the owner of `wanted`."""
    (mine,) = wanted["metadata"]["ownerReferences"]
    return not belongs_to(obj, mine["uid"]) and any(
        (owner["kind"], owner["name"]) == (mine["kind"], mine["name"])
        for owner in obj["metadata"].get("ownerReferences", ())
    )


def is_strangers(obj: Object, wanted: Object) -> bool:
    """Whether `obj`, which has the name of `wanted`, stays there without being its owner's."""
    (mine,) = wanted["metadata"]["ownerReferences"]
    goes = bool(obj["metadata"].get("deletionTimestamp")) or is_leftover(obj, wanted)
    return not (goes or belongs_to(obj, mine["uid"]))


class NameTaken(Forbidden):
    """The name of an object to make is a stranger's."""


def name_taken(wanted: Object) -> NameTaken:
    """The error of an object whose name a stranger's has."""
    metadata = wanted["metadata"]
    (owner,) = metadata["ownerReferences"]
    named = f"the {wanted['kind']} {metadata['name']}"
    message = f"{named} is not of this {owner['kind']} {owner['name']}: delete it, or use another name"
    return NameTaken(403, "Forbidden", message)


async def ensure(client: AsyncClient, resource: Resource, wanted: Object, *, strict: bool = False) -> Object:
    """Make the object; or, if its owner has it already, find it.

    Args:
        strict: fields that the server does not know are Invalid.

    Raises:
        Leftover: there is one of an earlier owner of the same name.
        Forbidden: there is one that is somebody else's, or the API server refuses.
    """
    metadata = wanted["metadata"]
    (owner,) = metadata["ownerReferences"]
    named = f"the {resource.kind} {metadata['name']}"
    try:
        return await client.create(resource, wanted, strict=strict)
    except AlreadyExists:
        try:
            found = await client.get(resource, metadata["name"], metadata["namespace"])
        except NotFound:
            raise Leftover(f"{named} of an earlier {owner['kind']} {owner['name']} has just gone") from None
    if belongs_to(found, owner["uid"]):
        return found
    if is_leftover(found, wanted):
        raise Leftover(f"{named} of an earlier {owner['kind']} {owner['name']} is yet to go", found)
    raise name_taken(wanted)


def workers_owned_by(workers: Store, namespace: str, owner_uid: str) -> list[Object]:
    """Returns the workers of a job or check. An object of another namespace that names its uid is not its
    worker, and goes with the next garbage collection."""
    return in_namespace(workers.by_index(BY_OWNER, owner_uid), namespace)


def spares_its_own(obj: Object) -> bool:
    """Whether an object is being deleted without what it owns (`--cascade=orphan`)."""
    metadata = obj["metadata"]
    return bool(metadata.get("deletionTimestamp")) and "orphan" in (metadata.get("finalizers") or ())


def staying(found: Iterable[Object]) -> Iterator[Object]:
    """Yield those that are not on their way out."""
    return (raw for raw in found if not raw["metadata"].get("deletionTimestamp"))


def in_namespace(found: Iterable[Object], namespace: str) -> list[Object]:
    return [raw for raw in found if raw["metadata"]["namespace"] == namespace]
