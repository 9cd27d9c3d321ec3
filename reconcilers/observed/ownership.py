"""Creation and ownership of objects that an owner has once, under a name that follows from its own.

An owner that is deleted and made again has the same name, and another uid. Until garbage collection removes
the objects of the earlier owner, they occupy the names.
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
    """An object of an earlier owner, which garbage collection will remove, has the name: retry soon.

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
    """Return the number in a label; None if there is none. Users may write any text there."""
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
    """Whether `obj`, which has the name of `wanted`, is somebody else's and will stay."""
    (mine,) = wanted["metadata"]["ownerReferences"]
    goes = bool(obj["metadata"].get("deletionTimestamp")) or is_leftover(obj, wanted)
    return not (goes or belongs_to(obj, mine["uid"]))


class NameTaken(Forbidden):
    """An object that is somebody else's has the name of one to make."""


def name_taken(wanted: Object) -> NameTaken:
    """Return the error for an object whose name somebody else's object has."""
    metadata = wanted["metadata"]
    (owner,) = metadata["ownerReferences"]
    named = f"the {wanted['kind']} {metadata['name']}"
    message = (
        f"{named} does not belong to this {owner['kind']} {owner['name']}: delete it, or use another name"
    )
    return NameTaken(403, "Forbidden", message)


async def ensure(client: AsyncClient, resource: Resource, wanted: Object, *, strict: bool = False) -> Object:
    """Create the object, or return the one that its owner has already.

    Args:
        strict: whether unknown fields are Invalid.

    Raises:
        Leftover: an earlier owner of the same name has one.
        Forbidden: somebody else has one, or the API server refuses.
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
        raise Leftover(f"{named} of an earlier {owner['kind']} {owner['name']} is not gone yet", found)
    raise name_taken(wanted)


def workers_owned_by(workers: Store, namespace: str, owner_uid: str) -> list[Object]:
    """Return the workers of a job or check. An object of another namespace with its uid is not its worker;
    garbage collection will remove that."""
    return in_namespace(workers.by_index(BY_OWNER, owner_uid), namespace)


def spares_its_own(obj: Object) -> bool:
    """Whether an object is being deleted without its dependents (`--cascade=orphan`)."""
    metadata = obj["metadata"]
    return bool(metadata.get("deletionTimestamp")) and "orphan" in (metadata.get("finalizers") or ())


def staying(found: Iterable[Object]) -> Iterator[Object]:
    """Yield the objects that are not being deleted."""
    return (raw for raw in found if not raw["metadata"].get("deletionTimestamp"))


def in_namespace(found: Iterable[Object], namespace: str) -> list[Object]:
    return [raw for raw in found if raw["metadata"]["namespace"] == namespace]
