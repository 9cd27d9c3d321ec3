"""The objects beside a job's Pods: a NetworkPolicy, a PodDisruptionBudget, and a Service if its Pods have
names.

A NetworkPolicy exists as long as its owner, since Pods may take their time to leave. The others exist while
the job runs, follow its minimum, and go when it is suspended, deleted or finished. Leftovers of an earlier
job of the same name are replaced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from controller.builder import ControllerBuilder
from controller.errors import AlreadyExists, ApiError, Conflict, Forbidden, NotFound
from controller.reconciler import Request, Result
from controller.resources import NETWORKPOLICIES, PODDISRUPTIONBUDGETS, SERVICES, Object, Resource
from crds import names
from crds.elasticjob import ElasticJob
from crds.grouping import is_grouped
from reconcilers.observed.builder import companion_metadata, owned_metadata, owned_name, owner_label
from reconcilers.observed.groups import group_of
from reconcilers.observed.minimum import minimum_workers
from reconcilers.observed.ownership import belongs_to, is_leftover, spares_its_own
from reconcilers.observed.slots import slot_count
from reconcilers.observed.status_patch import merge_patch
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.runtime.refused import is_refusal, not_served
from reconcilers.runtime.tools import Tools, WithTools

RECHECK_SECONDS = 60.0
"""Time between two looks at kinds that are not watched, since they are few or may not be served."""
NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""Label with the name of a namespace, which Kubernetes sets."""
CONTROLLER_APP = "dlr-controller"
"""Value of `app.kubernetes.io/name` of the controller's Pods (deploy/controller/deployment.yaml)."""
ServiceOf = Callable[[ElasticJob], Object | None]


def no_service(_: ElasticJob) -> None:
    """The `ServiceOf` for a controller whose jobs' Pods have no names."""


@dataclass(frozen=True)
class EvictionHold:
    """A reason for which, for some time, none of a job's workers may be evicted."""

    held_seconds: Callable[[ElasticJob], Awaitable[float]]
    """Time for which the hold of a job lasts; infinite if no end is in sight, 0.0 without a hold."""
    watch: Callable[[ControllerBuilder], None]
    """Makes a controller of jobs reconcile those whose holds may end."""


class Companions:
    """Keeps objects beside the Pods of an owner in their desired state."""

    def __init__(self, tools: Tools) -> None:
        self._client, self._recorder = tools.client, tools.recorder

    async def keep(
        self, resource: Resource, owner: Object, found: Object | None, wanted: Object | None
    ) -> None:
        """Create, patch, replace or delete the object, if it needs that.

        Raises:
            AlreadyExists: there was one of that name, which is gone by now, or about to go.
            Forbidden: the name is taken by an object of somebody else.
        """
        if wanted is not None and found is None:
            try:
                await self._client.create(resource, wanted)
                return
            except AlreadyExists:  # the cache is late, or does not have it because it lacks our label
                found = await self.get(resource, wanted["metadata"]["name"], wanted["metadata"]["namespace"])
                if found is None:
                    raise  # gone meanwhile, without an event for us: the next try creates it
        if found is None:
            return
        metadata = found["metadata"]
        if not belongs_to(found, owner["metadata"]["uid"]):
            if wanted is not None and is_leftover(found, wanted):
                await self._delete(resource, found)
                await self._client.create(resource, wanted)
            elif wanted is not None:
                of = "job" if owner["kind"] == ELASTICJOBS.kind else "check"
                message = f"there is one called {metadata['name']}, which is not this {of}'s"
                raise Forbidden(403, "Forbidden", message)
        elif wanted is None:
            await self._delete(resource, found)
        elif patch := _difference(found, wanted):
            await self._client.patch(resource, metadata["name"], patch, metadata["namespace"])

    async def _delete(self, resource: Resource, found: Object) -> None:
        metadata = found["metadata"]
        with contextlib.suppress(NotFound, Conflict):
            await self._client.delete(resource, metadata["name"], metadata["namespace"], uid=metadata["uid"])

    async def get(self, resource: Resource, name: str, namespace: str | None) -> Object | None:
        """Read the object from the API server; None if it does not exist.

        Raises:
            NotFound: the API server does not serve the kind.
        """
        try:
            return await self._client.get(resource, name, namespace)
        except NotFound as error:
            if not_served(error):
                raise
            return None

    @contextlib.contextmanager
    def reporting(self, owner: Object, kind: str, failures: list[ApiError]) -> Iterator[None]:
        """Report a refusal in an Event on the owner, and collect it, so that other objects can be kept."""
        try:
            yield
        except ApiError as error:
            if is_refusal(error):
                self._recorder.event(
                    owner, "Warning", f"{kind}Refused", f"its {kind} could not be made: {error}"
                )
            failures.append(error)


class CompanionReconciler(WithTools):
    def __init__(
        self,
        tools: Tools,
        service_of: ServiceOf = no_service,
        holds: Sequence[EvictionHold] = (),
        controller_namespace: str = "",
    ) -> None:
        super().__init__(tools)
        self._controller_namespace = controller_namespace
        self._companions = Companions(tools)
        self._service_of = service_of
        self._holds = holds
        self._budgets = tools.cache.store(PODDISRUPTIONBUDGETS)
        self._policies = tools.cache.store(NETWORKPOLICIES)

    async def reconcile(self, request: Request) -> Result:
        raw = self._jobs.get(request.namespace, request.name)
        if raw is None or spares_its_own(raw) or is_grouped(raw):  # groups have companions of their own
            return Result()
        job, companions = self._parse_job.parse(raw), self._companions
        runs = not (job.stops or job.status.finished)
        failures: list[ApiError] = []
        held_seconds = max([await hold.held_seconds(job) for hold in self._holds], default=0.0)
        with companions.reporting(raw, PODDISRUPTIONBUDGETS.kind, failures):
            found = self._budgets.get(job.metadata.namespace, job.metadata.name)
            budget = budget_of(job, is_held=held_seconds > 0) if runs else None
            await companions.keep(PODDISRUPTIONBUDGETS, raw, found, budget)
        if job.metadata.deletion_timestamp is None:  # a deleted job's policy goes with it
            with companions.reporting(raw, NETWORKPOLICIES.kind, failures):
                found = self._policies.get(job.metadata.namespace, owned_name(job.metadata.uid))
                wanted = network_policy_of(raw, self._controller_namespace)
                is_wanted = job.spec.network_policy.enabled
                await companions.keep(NETWORKPOLICIES, raw, found, wanted if is_wanted else None)
        look_again = held_seconds if 0 < held_seconds < inf else None
        if (service := self._service_of(job)) is not None:
            with companions.reporting(raw, SERVICES.kind, failures):
                found = await companions.get(SERVICES, job.metadata.name, job.metadata.namespace)
                await companions.keep(SERVICES, raw, found, service if runs else None)
                if runs:
                    look_again = min(look_again or RECHECK_SECONDS, RECHECK_SECONDS)
        if failures:
            raise failures[0]
        return Result(look_again)


def network_policy_of(owner: Object, controller_namespace: str = "") -> Object:
    """The NetworkPolicy to create: it admits traffic from Pods of the same job or check, and for a job from
    the controller, which tries whether a silent worker answers (`reach.py`).

    https://kubernetes.io/docs/concepts/services-networking/network-policies/
    """
    pods = {"matchLabels": owner_label(owner)}
    peers = [{"podSelector": pods}]
    if (group := group_of(owner)) is not None:
        peers.append({"podSelector": {"matchLabels": {names.LABEL_GROUPED_JOB: group.name}}})
    if owner["kind"] == ELASTICJOBS.kind and controller_namespace:
        namespace = {"matchLabels": {NAMESPACE_NAME: controller_namespace}}
        controller = {"matchLabels": {names.LABEL_APP: CONTROLLER_APP}}
        peers.append({"namespaceSelector": namespace, "podSelector": controller})
    metadata = owned_metadata(owner, owned_name(owner["metadata"]["uid"]))
    spec = {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": [{"from": peers}]}
    return NETWORKPOLICIES.manifest(metadata, spec=spec)


def budget_of(job: ElasticJob, *, is_held: bool = False) -> Object | None:
    """The PodDisruptionBudget to create: evictions leave the job the workers that it needs to go on training;
    while it is held, all workers and their replacements.

    None if it needs all workers and is not held. A budget would then let no drain end, and save nothing: the
    first eviction stops the training anyway, and one restart for all is better than one for each.

    An integer `minAvailable` is the only form that counts Pods of a custom controller:
    https://kubernetes.io/docs/tasks/run-application/configure-pdb/#arbitrary-controllers-and-selectors
    """
    minimum, worker = minimum_workers(job), job.spec.replica_specs.get(names.WORKER)
    slots = slot_count(worker) if worker is not None else 0
    if not minimum or not (is_held or minimum < slots):
        return None
    spec = {
        "minAvailable": 2 * slots if is_held else minimum,
        "selector": {"matchLabels": {names.LABEL_JOB: job.metadata.name, names.LABEL_TYPE: names.WORKER}},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",  # a broken Pod does not delay a drain
    }
    return PODDISRUPTIONBUDGETS.manifest(companion_metadata(job), spec=spec)


def _difference(found: Object, wanted: Object) -> Object:
    """The patch of the fields that we set; a webhook may have set others."""
    has = found["metadata"].get("labels") or {}
    labels = {key: value for key, value in wanted["metadata"]["labels"].items() if has.get(key) != value}
    fields = wanted["spec"]
    spec = merge_patch({key: value for key, value in found["spec"].items() if key in fields}, fields)
    patch = {"metadata": {"labels": labels} if labels else {}, "spec": spec}
    return {part: change for part, change in patch.items() if change}
