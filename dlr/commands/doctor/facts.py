"""All requests of `dlr doctor` to the cluster; `verdicts.py` judges the answers."""

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
"""Topics by kind, for the kinds whose objects are compared with this version's."""


@dataclass(frozen=True)
class ClusterFacts:
    """Facts about the cluster. A fact that could not be read is None, with the reason in `refused`."""

    server: str
    version: JSON
    now: datetime
    """Time of the API server."""
    namespace: str
    """Namespace of the controller, present or future."""
    documents: Sequence[JSON]
    """Manifests of an installation of this version."""
    objects: Mapping[str, Mapping[str, JSON] | None] = field(default_factory=dict)
    """Live objects with the names of these documents, by topic and kubectl's name; None for a topic that the
    API server has refused."""
    operators: Sequence[JSON] | None = ()
    """Running Deployments of DLRover's operator."""
    controllers: Sequence[JSON] | None = ()
    """Deployments of dlr's controller, in all namespaces."""
    pods: Sequence[JSON] | None = ()
    """Pods of the controller."""
    lease: JSON | None = None
    kueue: KueueFacts | None = None
    nodes: Sequence[JSON] | None = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    """The API server's error for each refused fact, by the fact's name or topic."""

    @property
    def embedded(self) -> bool:
        return is_embedded(self.version)

    @property
    def deployment(self) -> JSON | None:
        """The controller's Deployment in the expected namespace."""
        for each in self.controllers or ():
            if each["metadata"]["namespace"] == self.namespace:
                return each
        return None

    def wanted(self, topic: str) -> dict[str, JSON]:
        """Return the documents of a topic by kubectl's name; of the roles, only the controller's."""
        of_topic = (each for each in self.documents if TOPICS.get(each["kind"]) == topic)
        return {title_of(each): each for each in of_topic if topic != "rights" or _is_controllers(each)}


def _is_controllers(role: JSON) -> bool:
    return str(role["metadata"]["name"]).startswith(CONTROLLER)


def gather(api: Api, documents: Sequence[JSON]) -> ClusterFacts:
    """Read all facts; raise ApiError if the API server does not answer at all."""
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
    """Return the Lease of the namespace's controller, or else of the controller of `dlr up`."""
    own = get_or_none(api, LEASES, CONTROLLER)
    if own is None and is_embedded(version):
        return get_or_none(api.within(EMBEDDED_LEASE_NAMESPACE), LEASES, CONTROLLER)
    return own
