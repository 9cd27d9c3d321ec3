"""What an installer and the controller have to be allowed, out of the manifests. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from controller.resources import LEASES
from dlr.commands.install.kinds import CONTROLLER, DEPLOYMENTS, kind_of
from dlr.kube.api import ELASTICJOBS, JSON, PODS, Resource

_APPLYING = ("get", "create", "patch")
_ROLES = ("ClusterRole", "Role")


@dataclass(frozen=True)
class Right:
    """One request that RBAC allows or refuses."""

    verb: str
    group: str
    resource: str
    """Plural, with its subresource: `elasticjobs/status`; or a path of the API server, such as `/metrics`."""
    namespace: str = ""
    """Empty: in all namespaces, or of a kind that is in none."""
    name: str = ""

    def __str__(self) -> str:
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        name = f" {self.name}" if self.name else ""
        return f"{self.verb} {resource}{name}" + (f" in {self.namespace}" if self.namespace else "")

    def review(self) -> JSON:
        """The SelfSubjectAccessReview that asks for it."""
        if self.resource.startswith("/"):
            return _review(nonResourceAttributes={"verb": self.verb, "path": self.resource})
        resource, _, subresource = self.resource.partition("/")
        asked = {
            "verb": self.verb,
            "group": self.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": self.namespace,
            "name": self.name,
        }
        return _review(resourceAttributes={key: value for key, value in asked.items() if value})


def escalation(role: JSON) -> Right:
    """Return the right to grant by a Role or ClusterRole more than one's own rights.

    https://kubernetes.io/docs/reference/access-authn-authz/rbac/#privilege-escalation-prevention-and-bootstrapping
    """
    return _right("escalate", kind_of(role), role["metadata"].get("namespace", ""))


def roles(documents: Iterable[JSON]) -> list[JSON]:
    return [document for document in documents if document["kind"] in _ROLES]


def rights_to_look(namespace: str, jobs_namespace: str | None, *, foreign_jobs: bool) -> list[Right]:
    """Return the rights to find other installations, and to wait for the controller in `namespace`.

    jobs_namespace: the one that the controller is to look after; Deployments elsewhere are then left out
    foreign_jobs: another operator has defined the ElasticJobs, so that those which run are looked for
    """
    everywhere = [DEPLOYMENTS] if jobs_namespace is None else []
    return [
        *(_right("list", kind) for kind in [*everywhere, *([ELASTICJOBS] if foreign_jobs else [])]),
        _right("list", DEPLOYMENTS, namespace),
        _right("list", PODS, namespace),
        _right("get", LEASES, namespace),
    ]


def rights_to_install(documents: Iterable[JSON]) -> list[Right]:
    """Return the rights to apply each of the documents, without what its Roles grant."""
    found: dict[Right, None] = {}
    for document in documents:
        kind = kind_of(document)
        namespace = document["metadata"].get("namespace", "")
        for verb in _APPLYING:
            found[_right(verb, kind, namespace)] = None
    return list(found)


def rights_of_controller(documents: Iterable[JSON]) -> list[Right]:
    """Return the rights that the Roles for the controller's account grant."""
    return rights_given(each for each in roles(documents) if each["metadata"]["name"].startswith(CONTROLLER))


def rights_given(roles: Iterable[JSON]) -> list[Right]:
    """Return the rights that Roles and ClusterRoles grant to their subjects."""
    found: dict[Right, None] = {}
    for role in roles:
        for rule in role["rules"]:
            found |= dict.fromkeys(_rights_of(rule, role["metadata"].get("namespace", "")))
    return list(found)


def _review(**asked: JSON) -> JSON:
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": asked}


def _rights_of(rule: JSON, namespace: str) -> Iterator[Right]:
    for path in rule.get("nonResourceURLs") or ():
        yield from (Right(verb, "", path) for verb in rule["verbs"])
    for group in rule.get("apiGroups") or ():
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                for name in rule.get("resourceNames") or ("",):
                    yield Right(verb, group, resource, namespace, name)


def _right(verb: str, kind: Resource, namespace: str = "") -> Right:
    return Right(verb, kind.group, kind.plural, namespace)
