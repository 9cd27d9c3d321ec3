"""What `dlr doctor` looks at in the cluster: all its requests. What they mean is in `verdicts.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TypeVar

from controller.errors import ApiError
from controller.resources import LEASES
from dlr.commands.doctor import queues
from dlr.commands.doctor.queues import KueueFacts
from dlr.commands.install import others
from dlr.commands.install.installer import EMBEDDED_LEASE_NAMESPACE, deployments_of, get_or_none
from dlr.commands.install.kinds import CONTROLLER, CONTROLLER_LABEL, kind_of, title_of
from dlr.kube.api import JSON, NODES, PODS, Api, is_embedded

Found = TypeVar("Found")

TOPICS = {
    "CustomResourceDefinition": "crds",
    "ValidatingAdmissionPolicy": "admission",
    "ClusterRole": "rights",
    "Role": "rights",
}
"""By the kinds of an installation whose objects are compared with those of this version."""


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
    objects: Mapping[str, Mapping[str, JSON] | None] = field(default_factory=dict)
    """Objects of the cluster that have the names of these documents, by topic and kubectl's name; None for a
    topic that the API server has refused."""
    operators: Sequence[JSON] | None = ()
    """DLRover's, that run."""
    controllers: Sequence[JSON] | None = ()
    """Deployments of dlr's controller, of all namespaces."""
    pods: Sequence[JSON] | None = ()
    """The controller's."""
    lease: JSON | None = None
    kueue: KueueFacts | None = None
    nodes: Sequence[JSON] | None = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    """The API server's sentence for each fact that it refused, by the fact's name or topic."""

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

    def wanted(self, topic: str) -> dict[str, JSON]:
        """The documents of a topic by kubectl's name; of the roles, those of the controller."""
        of_topic = (each for each in self.documents if TOPICS.get(each["kind"]) == topic)
        return {title_of(each): each for each in of_topic if topic != "rights" or _is_controllers(each)}


def _is_controllers(role: JSON) -> bool:
    return str(role["metadata"]["name"]).startswith(CONTROLLER)


def gather(api: Api, documents: Sequence[JSON]) -> ClusterFacts:
    """Look at everything. Raises ApiError if there is no answer at all."""
    version, now = api.version()
    refused: dict[str, str] = {}
    begun = ClusterFacts(api.connection.server, version, now, api.namespace, documents)

    def seen(name: str, look: Callable[[], Found]) -> Found | None:
        try:
            return look()
        except ApiError as error:
            refused[name] = str(error)
            return None

    def objects(topic: str) -> dict[str, JSON]:
        found = {title: _live(api, each) for title, each in begun.wanted(topic).items()}
        return {title: live for title, live in found.items() if live is not None}

    topics = dict.fromkeys(TOPICS.values())
    return replace(
        begun,
        objects={topic: seen(topic, partial(objects, topic)) for topic in topics},
        operators=seen(
            "operators", lambda: others.dlrover_operators(deployments_of(api, others.DLROVER_LABEL))
        ),
        controllers=seen("controllers", lambda: deployments_of(api, CONTROLLER_LABEL)),
        pods=seen("pods", lambda: api.find(PODS, label_selector=CONTROLLER_LABEL)),
        lease=seen("lease", lambda: _lease(api, version)),
        kueue=seen("kueue", lambda: queues.look(api)),
        nodes=seen("nodes", lambda: api.find(NODES)),
        refused=refused,
    )


def _live(api: Api, document: JSON) -> JSON | None:
    metadata = document["metadata"]
    return get_or_none(api.within(metadata.get("namespace")), kind_of(document), metadata["name"])


def _lease(api: Api, version: JSON) -> JSON | None:
    """The Lease of the controller of the namespace; without one, that of the controller of `dlr up`."""
    own = get_or_none(api, LEASES, CONTROLLER)
    if own is None and is_embedded(version):
        return get_or_none(api.within(EMBEDDED_LEASE_NAMESPACE), LEASES, CONTROLLER)
    return own
