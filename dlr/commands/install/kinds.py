"""Kinds of an installation's objects, and their names in the API and in kubectl."""

from __future__ import annotations

from dlr.kube.api import JSON, Resource

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
POLICIES = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicies",
    "ValidatingAdmissionPolicy",
    namespaced=False,
)

CONTROLLER = "dlr-controller"
"""Name of the controller's Deployment, ServiceAccount and Lease."""
CONTROLLER_LABEL = f"app.kubernetes.io/name={CONTROLLER}"
PART_OF = ("app.kubernetes.io/part-of", "dlr")
"""Label of every object of an installation except the CRDs."""


def kind_of(document: JSON) -> Resource:
    """Return the kind of one of `deploy.documents()`."""
    name = document["kind"]
    group, _, version = document["apiVersion"].rpartition("/")
    return Resource(group, version, _plural(name), name, namespaced="namespace" in document["metadata"])


def _plural(kind: str) -> str:
    """Return the plural of a kind, which the API server uses."""
    name = kind.lower()
    return f"{name[:-1]}ies" if name.endswith("y") else f"{name}es" if name.endswith("s") else f"{name}s"


def title_of(document: JSON) -> str:
    """Return kubectl's name of an object, such as `deployment.apps/dlr-controller`."""
    group = document["apiVersion"].partition("/")[0] if "/" in document["apiVersion"] else ""
    kind = f"{document['kind'].lower()}.{group}" if group else document["kind"].lower()
    return f"{kind}/{document['metadata']['name']}"


def container_of(deployment: JSON) -> JSON:
    """Return the controller's container in a Deployment; the first one if it was renamed."""
    containers: list[JSON] = deployment["spec"]["template"]["spec"]["containers"]
    return next((each for each in containers if each["name"] == "controller"), containers[0])


def is_ours(live: JSON) -> bool:
    """Whether a live object was made by an installation of dlr."""
    metadata = live["metadata"]
    if live.get("kind") == "CustomResourceDefinition":
        return PART_OF[1] in (live["spec"]["names"].get("categories") or ())
    return (metadata.get("labels") or {}).get(PART_OF[0]) == PART_OF[1]
