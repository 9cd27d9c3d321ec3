"""The ServiceAccount, Role, RoleBinding and key of the Pods of one job or check.

RBAC limits what the agent in a Pod reads to its ElasticWorld or its check and the NodeChecks of its
namespace; the admission policies in deploy/ limit what it writes. The key is a Secret, which the controller
may create and not read. It is replaced only while no Pod runs with it, since Pods with different keys could
not talk to each other.
"""

from __future__ import annotations

import base64
import contextlib
import secrets
from collections.abc import Callable, Iterator
from functools import partial

from controller.cache import Cache
from controller.client import AsyncClient
from controller.errors import AlreadyExists
from controller.resources import LEASES, PODS, ROLEBINDINGS, ROLES, SECRETS, SERVICEACCOUNTS, Object, Resource
from controller.shape import Shape
from controller.store import ObjectMemory
from controller.tasks import SharedCalls
from crds import names
from crds.job_spec import DistributionStrategy
from crds.shard_set import names_of_sets
from reconcilers.observed.builder import owned_metadata, owned_name
from reconcilers.observed.containers import PULL_SECRETS
from reconcilers.observed.groups import group_of, key_uid
from reconcilers.observed.ownership import BY_OWNER
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, ELASTICWORLDS, NODECHECKS, SHARDSETS

MOST_FOUND = 1_000
"""Objects without our label that are remembered as existing."""
KEY_BYTES = 32
_DEFAULT_ACCOUNT = Shape({PULL_SECRETS: 500})
MISSED_RECHECK_SECONDS = 5.0
"""Time between two attempts to create a Secret for which Pods wait, however many wait for it."""


class WorkerAccess:
    """Creates the ServiceAccounts, Roles and RoleBindings that are missing."""

    def __init__(self, client: AsyncClient, cache: Cache) -> None:
        self._client = client
        kinds = (SERVICEACCOUNTS, ROLES, ROLEBINDINGS)
        self._cached = {resource: cache.store(resource) for resource in kinds}
        self._found = set[tuple[str, str, str]]()
        """Kind, namespace and name of objects that exist without our label, so that no cache has them."""
        self._making = SharedCalls[None]()
        """Creations under way, by object, shared by workers that start at the same time."""

    async def ensure(self, owner: Object, account: str, *, missed: bool = False) -> None:
        """Create what is missing.

        Args:
            missed: whether a Pod was refused, so that the cache may be wrong.
        """
        for resource, wanted in access_of(owner, account):
            namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
            key = (resource.kind, namespace, name)
            is_there = key in self._found or self._cached[resource].get(namespace, name) is not None
            if missed or not is_there:
                await self._making.ask(key, partial(self._make, resource, wanted, key))

    async def _make(self, resource: Resource, wanted: Object, key: tuple[str, str, str]) -> None:
        more = await self._pull_secrets(key[1]) if resource is SERVICEACCOUNTS else {}
        try:
            await self._client.create(resource, wanted | more)
        except AlreadyExists:
            if len(self._found) >= MOST_FOUND:
                self._found.clear()
            self._found.add(key)

    async def _pull_secrets(self, namespace: str) -> Object:
        """The pull secrets of the namespace's default account, under which Pods would run without dlr."""
        by_name = "metadata.name=default"
        page = await self._client.list_page(
            SERVICEACCOUNTS, namespace, field_selector=by_name, shape=_DEFAULT_ACCOUNT, page_size=1
        )
        account: Object = next(iter(page["items"]), {})
        return {PULL_SECRETS: account.get(PULL_SECRETS) or []}


class OwnerKeys:
    """Creates the Secret before its owner's first Pod."""

    def __init__(self, client: AsyncClient, cache: Cache, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._monotonic = monotonic
        self._jobs = cache.store(ELASTICJOBS)
        self._pods = cache.store(PODS)
        self._workers = cache.store(ELASTICWORKERS)
        self._made: dict[str, ObjectMemory[float]] = {
            resource.kind: cache.store(resource).memory() for resource in (ELASTICJOBS, NODECHECKS)
        }
        """Time when an owner's Secret was last found or created, by kind and uid."""
        self._making = SharedCalls[None]()
        """Creations under way, by uid of the owner, shared by its workers."""

    async def ensure(self, owner: Object, *, missed: bool = False) -> None:
        """Create the Secret, unless it exists or a Pod runs with its key.

        Args:
            missed: whether a Pod waits for it, so that it does not exist any more.
        """
        uid = owner["metadata"]["uid"]
        if self._is_there(owner, missed=missed):
            return
        await self._making.ask(uid, lambda: self._make(owner))

    async def _make(self, owner: Object) -> None:
        if not self._is_in_use(owner):
            with contextlib.suppress(AlreadyExists):
                await self._client.create(SECRETS, secret_of(owner))
        self._made[owner["kind"]].put(owner["metadata"]["uid"], self._monotonic())

    def forget(self, owner: Object) -> None:
        """Check again before the next Pod: the owner has none any more, so it may get a new key."""
        self._made[owner["kind"]].forget(owner["metadata"]["uid"])

    def _is_there(self, owner: Object, *, missed: bool) -> bool:
        """Whether the Secret counts as existing for now."""
        made_at = self._made[owner["kind"]].get(owner["metadata"]["uid"])
        return made_at is not None and (not missed or self._monotonic() - made_at < MISSED_RECHECK_SECONDS)

    def _is_in_use(self, owner: Object) -> bool:
        """Whether a Pod runs with the key; those in other namespaces cannot, even if they name the owner."""
        namespace = owner["metadata"]["namespace"]
        jobs = self._jobs.by_index(BY_OWNER, key_uid(owner))
        owners = {owner["metadata"]["uid"], *(job["metadata"]["uid"] for job in jobs)}
        return any(
            pod["metadata"]["namespace"] == namespace
            and pod.get("status", {}).get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
            for uid in owners
            for worker in self._workers.by_index(BY_OWNER, uid)
            for pod in self._pods.by_index(BY_OWNER, worker["metadata"]["uid"])
        )


def access_of(owner: Object, account: str) -> Iterator[tuple[Resource, Object]]:
    """The objects to create, in order: the API server compares a binding with the Role that it names.

    An account that the template names belongs to the user, and gets a binding to the same Role.
    """
    name = owned_name(owner["metadata"]["uid"])
    ours = account == name
    if ours:
        yield SERVICEACCOUNTS, SERVICEACCOUNTS.manifest(owned_metadata(owner, name))
    yield ROLES, ROLES.manifest(owned_metadata(owner, name), rules=rules_of(owner))
    role = {"apiGroup": ROLES.group, "kind": ROLES.kind, "name": name}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": owner["metadata"]["namespace"]}
    metadata = owned_metadata(owner, name if ours else f"{name}-{account}")
    yield ROLEBINDINGS, ROLEBINDINGS.manifest(metadata, roleRef=role, subjects=[subject])


def rules_of(owner: Object) -> list[Object]:
    """The rights of an agent. The controller has them all, since RBAC lets it grant only its own."""
    followed = ELASTICWORLDS if owner["kind"] == ELASTICJOBS.kind else NODECHECKS
    group = group_of(owner)
    mine = {"resourceNames": [owner["metadata"]["name"], *([group.name] if group is not None else ())]}
    rules = [
        _rule(followed, ["list", "watch"]) | mine,  # with a field selector of that name
        _rule(ELASTICWORKERS, ["patch"], "/status"),  # the answer to an empty patch is the worker
        _rule(LEASES, ["patch"]),
    ]
    if followed is ELASTICWORLDS:
        sets = names_of_sets(owner["metadata"]["name"] if group is None else group.name)
        rules.append(_rule(SHARDSETS, ["list", "watch"]) | {"resourceNames": sets})
        rules.append(_rule(NODECHECKS, ["list", "watch"]))
        if owner["spec"].get("distributionStrategy") == DistributionStrategy.CUSTOM:
            rules.append(_rule(ELASTICWORKERS, ["list"]))  # `dlr hosts`; RBAC cannot limit it to a label
    return rules


def _rule(resource: Resource, verbs: list[str], subresource: str = "") -> Object:
    return {"apiGroups": [resource.group], "resources": [f"{resource.plural}{subresource}"], "verbs": verbs}


def _keyholder(owner: Object) -> Object:
    """The owner of the key; for a replica group, the job that it belongs to."""
    group = group_of(owner)
    if group is None:
        return owner
    metadata = {"name": group.name, "namespace": owner["metadata"]["namespace"], "uid": group.uid}
    return owner | {"metadata": metadata}


def secret_of(owner: Object) -> Object:
    """The Secret to create, with a new key."""
    key = secrets.token_hex(KEY_BYTES)
    metadata = owned_metadata(_keyholder(owner), names.key_secret(key_uid(owner)))
    data = {names.KEY_FIELD: base64.b64encode(key.encode()).decode()}
    return SECRETS.manifest(metadata, type="Opaque", immutable=True, data=data)
