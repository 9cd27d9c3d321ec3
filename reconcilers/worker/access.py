"""What the Pods of a job or check may do: an account, Role and RoleBinding of their own, which go with it.

The agent in a Pod follows its job's ElasticWorld, or its check, patches its report and keeps its Lease. RBAC
limits what it reads to that one object, and the admission policies in deploy/ what it writes. So a Pod learns
nothing of other jobs in its namespace. It may read all NodeChecks there, since any of them may be one of its
job.

Each object is watched by our label, so that a look costs no request while it is there. One whose label was
removed is not seen; that it is there is known by the refusal to make it, and asked again now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from controller.cache import Cache
from controller.client import Client
from controller.errors import AlreadyExists
from controller.resources import (
    LEASES,
    ROLEBINDINGS,
    ROLES,
    SERVICEACCOUNTS,
    Object,
    Resource,
)
from controller.shared_calls import SharedCalls
from controller.store import Change
from crds.job_spec import DistributionStrategy
from reconcilers.observed.builder import owned_metadata, owned_name
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, ELASTICWORLDS, NODECHECKS

Key = tuple[str, str, str]
"""Kind, namespace and name."""

RECHECK_SECONDS = 300.0
"""For so long one without our label is taken to be there."""
MISSED_RECHECK_SECONDS = 5.0
"""The same when a Pod was refused, perhaps because it is gone: of many such Pods not each is to ask."""


class WorkerAccess:
    """Makes what is missing."""

    def __init__(self, client: Client, cache: Cache, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._monotonic = monotonic
        kinds = (SERVICEACCOUNTS, ROLES, ROLEBINDINGS)
        self._cached = {resource: cache.store(resource) for resource in kinds}
        self._found: dict[Key, float] = {}
        """When the API server said of one that it is there."""
        self._making = SharedCalls[None]()
        """By key of the object, which many workers that begin at once may want."""
        for resource in self._cached:
            cache.add_handler(resource, self._forget)

    async def ensure(self, owner: Object, account: str, *, missed: bool = False) -> None:
        """Make what is not there.

        Args:
            owner: the ElasticJob or NodeCheck.
            account: of a Pod of it.
            missed: a Pod was refused, so that the cache may be wrong.
        """
        for resource, wanted in access_of(owner, account):
            metadata = wanted["metadata"]
            key = (resource.kind, metadata["namespace"], metadata["name"])
            if not self._is_there(resource, key, missed=missed):
                await self._making.ask(key, partial(self._make, resource, wanted, key))

    async def _make(self, resource: Resource, wanted: Object, key: Key) -> None:
        try:
            await self._client.create(resource, wanted)
        except AlreadyExists:
            self._note(key)

    def _is_there(self, resource: Resource, key: Key, *, missed: bool) -> bool:
        """Whether it is there, as far as we know without a request."""
        if not missed and self._cached[resource].get(*key[1:]) is not None:
            return True
        return self._is_known(key, MISSED_RECHECK_SECONDS if missed else RECHECK_SECONDS)

    def _forget(self, change: Change) -> None:
        if change.new is None:
            obj = change.current
            self._found.pop((obj["kind"], obj["metadata"]["namespace"], obj["metadata"]["name"]), None)

    def _is_known(self, key: Key, seconds: float) -> bool:
        found_at = self._found.get(key)
        return found_at is not None and self._monotonic() - found_at < seconds

    def _note(self, key: Key) -> None:
        """What is too old to be believed goes, so that this grows no further than there are jobs."""
        self._found = {k: at for k, at in self._found.items() if self._is_known(k, RECHECK_SECONDS)}
        self._found[key] = self._monotonic()


def access_of(owner: Object, account: str) -> Iterator[tuple[Resource, Object]]:
    """The objects to create, in order: the API server compares a binding with the Role that it names.

    An account that a template names is the user's to make, and gets a binding to the same Role.

    Args:
        owner: the ElasticJob or NodeCheck.
        account: of a Pod of it.
    """
    name = owned_name(owner["metadata"]["uid"])
    ours = account == name
    if ours:
        yield SERVICEACCOUNTS, _object(SERVICEACCOUNTS, owner, name)
    yield ROLES, _object(ROLES, owner, name) | {"rules": rules_of(owner)}
    role = {"apiGroup": ROLES.group, "kind": ROLES.kind, "name": name}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": owner["metadata"]["namespace"]}
    binding = _object(ROLEBINDINGS, owner, name if ours else f"{name}-{account}")
    yield ROLEBINDINGS, binding | {"roleRef": role, "subjects": [subject]}


def rules_of(owner: Object) -> list[Object]:
    """What an agent needs. The controller holds all of it: nobody gives away rights that he does not have."""
    followed = ELASTICWORLDS if owner["kind"] == ELASTICJOBS.kind else NODECHECKS
    mine = {"resourceNames": [owner["metadata"]["name"]]}
    rules = [
        _rule(followed, ["list", "watch"]) | mine,  # with a field selector of that name
        _rule(ELASTICWORKERS, ["patch"], "/status"),  # the answer to an empty patch is the worker
        _rule(LEASES, ["patch"]),
    ]
    if followed is ELASTICWORLDS:
        rules.append(_rule(NODECHECKS, ["list", "watch"]))
        if owner["spec"].get("distributionStrategy") == DistributionStrategy.CUSTOM:
            rules.append(_rule(ELASTICWORKERS, ["list"]))  # `dlr hosts`; RBAC cannot limit it to a label
    return rules


def _rule(resource: Resource, verbs: list[str], subresource: str = "") -> Object:
    return {"apiGroups": [resource.group], "resources": [f"{resource.plural}{subresource}"], "verbs": verbs}


def _object(resource: Resource, owner: Object, name: str) -> Object:
    metadata = owned_metadata(owner, name)
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
