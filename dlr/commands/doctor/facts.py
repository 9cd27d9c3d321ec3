"""What `dlr doctor` looks at in the cluster: all its requests. What they mean is in `verdicts.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from controller.errors import ApiError, NotFound
from controller.resources import LEASES, SELF_ACCESS_REVIEWS, Resource
from dlr.commands.doctor import queues
from dlr.commands.doctor.queues import KueueFacts
from dlr.commands.doctor.rights import (
    Right,
    escalation,
    rights_given,
    rights_of_controller,
    rights_to_install,
    rights_to_look,
    roles,
)
from dlr.commands.install import others
from dlr.commands.install.installer import (
    EMBEDDED_LEASE_NAMESPACE,
    get_or_none,
    live_crds,
)
from dlr.commands.install.kinds import CONTROLLER, CONTROLLER_LABEL, DEPLOYMENTS, POLICIES
from dlr.kube.api import JSON, NODES, PODS, Api, is_embedded
from reconcilers.runtime.kinds import DEVICETAINTRULES, RESOURCESLICES

Found = TypeVar("Found")


@dataclass(frozen=True)
class ClusterFacts:
    """What there is. What could not be looked at is None, and `refused` says why."""

    server: str
    version: JSON
    now: datetime
    """The API server's time."""
    namespace: str
    """The controller's namespace, present or future."""
    documents: Sequence[JSON]
    """What an installation of this dlr there is made of."""
    missing_to_install: Sequence[Right] | None = ()
    missing_of_controller: Sequence[Right] | None = ()
    policies: Sequence[str] | None = None
    """Names of the ValidatingAdmissionPolicies; None: the API server does not serve them."""
    crds: Sequence[JSON] | None = ()
    """The CRDs with names of dlr's, by any author."""
    operators: Sequence[JSON] | None = ()
    """DLRover's, that run."""
    controllers: Sequence[JSON] | None = ()
    """Deployments of dlr's controller, of all namespaces."""
    pods: Sequence[JSON] | None = ()
    """The controller's."""
    lease: JSON | None = None
    kueue: KueueFacts | None = None
    devices: Sequence[str] | None = ()
    """Kinds with taints of devices that the API server serves, in plural."""
    nodes: Sequence[JSON] | None = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    """The API server's sentence for each fact that it refused, by the fact's name."""

    @property
    def embedded(self) -> bool:
        return is_embedded(self.version)

    @property
    def deployment(self) -> JSON | None:
        """The controller's, where it is to be."""
        for each in self.controllers or ():
            if each["metadata"]["namespace"] == self.namespace:
                return each
        return None


def gather(api: Api, documents: Sequence[JSON]) -> ClusterFacts:
    """Look at everything. Raises ApiError if there is no answer at all."""
    version, now = api.version()
    refused: dict[str, str] = {}

    def seen(name: str, look: Callable[[], Found]) -> Found | None:
        try:
            return look()
        except ApiError as error:
            refused[name] = str(error)
            return None

    def deployments(label: str) -> list[JSON]:
        return api.find(DEPLOYMENTS, all_namespaces=True, label_selector=label)

    return ClusterFacts(
        server=api.connection.server,
        version=version,
        now=now,
        namespace=api.namespace,
        documents=documents,
        missing_to_install=seen("missing_to_install", lambda: _missing_to_install(api, documents)),
        missing_of_controller=seen("missing_of_controller", lambda: _missing_of_controller(api, documents)),
        policies=seen("policies", lambda: _policies(api)),
        crds=seen("crds", lambda: live_crds(api)),
        operators=seen("operators", lambda: others.dlrover_operators(deployments(others.DLROVER_LABEL))),
        controllers=seen("controllers", lambda: deployments(CONTROLLER_LABEL)),
        pods=seen("pods", lambda: api.find(PODS, label_selector=CONTROLLER_LABEL)),
        lease=seen("lease", lambda: _lease(api, version)),
        kueue=seen("kueue", lambda: queues.look(api)),
        devices=seen("devices", lambda: _devices(api)),
        nodes=seen("nodes", lambda: api.find(NODES)),
        refused=refused,
    )


def _lease(api: Api, version: JSON) -> JSON | None:
    """The Lease of the controller of the namespace; without one, that of the controller of `dlr up`."""
    own = get_or_none(api, LEASES, CONTROLLER)
    if own is None and is_embedded(version):
        return get_or_none(api.within(EMBEDDED_LEASE_NAMESPACE), LEASES, CONTROLLER)
    return own


def _missing_to_install(api: Api, documents: Sequence[JSON]) -> list[Right]:
    (deployment,) = (each for each in documents if each["kind"] == "Deployment")
    foreign_jobs = others.defines_jobs(others.foreign_crds(_readable_crds(api)))
    wanted = rights_to_install(documents)
    wanted += rights_to_look(api.namespace, others.scope_of(deployment), foreign_jobs=foreign_jobs)
    given = roles(documents)
    not_at_will = _missing(api, dict.fromkeys(map(escalation, given)))
    wanted += rights_given(role for role in given if escalation(role) in not_at_will)
    return _missing(api, dict.fromkeys(wanted))


def _readable_crds(api: Api) -> list[JSON]:
    """None where one may not read them: that right is asked for by itself."""
    try:
        return live_crds(api)
    except ApiError:
        return []


def _missing_of_controller(api: Api, documents: Sequence[JSON]) -> list[Right]:
    account = f"system:serviceaccount:{api.namespace}:{CONTROLLER}"
    return _missing(api, rights_of_controller(documents), as_user=account)


def _missing(api: Api, rights: Iterable[Right], as_user: str | None = None) -> list[Right]:
    def is_allowed(right: Right) -> bool:
        answer, _ = api.create(SELF_ACCESS_REVIEWS, right.review(), as_user=as_user)
        return bool(answer["status"]["allowed"])

    return [right for right in rights if not is_allowed(right)]


def _devices(api: Api) -> list[str]:
    return [kind.plural for kind in (RESOURCESLICES, DEVICETAINTRULES) if _is_served(api, kind)]


def _is_served(api: Api, kind: Resource) -> bool:
    try:
        api.get(kind, CONTROLLER)
    except NotFound as error:
        return error.names_object
    return True


def _policies(api: Api) -> list[str] | None:
    try:
        return [policy["metadata"]["name"] for policy in api.find(POLICIES)]
    except NotFound:
        return None
