"""Whose requests the API server serves first, by the FlowSchemas of deploy/."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import deploy
from reconcilers.worker.access import rules_of

JSON = dict[str, Any]

SERVICE_ACCOUNTS_PRECEDENCE = 9_000
"""Of Kubernetes' own schema for all service accounts, which every request here would match in the end."""
ANY = "*"


@dataclass(frozen=True)
class Request:
    user: str
    verb: str
    group: str
    resource: str
    namespace: str = ""


def schemas(**options: Any) -> list[JSON]:
    found = [each for each in deploy.documents(**options) if each["kind"] == "FlowSchema"]
    return sorted(found, key=lambda each: each["spec"]["matchingPrecedence"])


def level_of(request: Request, **options: Any) -> str:
    """As https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/flow-schema-v1/ has it."""
    for schema in schemas(**options):
        for rule in schema["spec"]["rules"]:
            of_user = any(is_subject(subject, request.user) for subject in rule["subjects"])
            if of_user and any(matches(each, request) for each in rule["resourceRules"]):
                return str(schema["spec"]["priorityLevelConfiguration"]["name"])
    return "Kubernetes' own"


def is_subject(subject: JSON, user: str) -> bool:
    if subject["kind"] == "Group":
        assert subject["group"]["name"] == "system:serviceaccounts"
        return user.startswith("system:serviceaccount:")
    account = subject["serviceAccount"]
    return user == f"system:serviceaccount:{account['namespace']}:{account['name']}"


def matches(rule: JSON, request: Request) -> bool:
    if not request.namespace and not rule.get("clusterScope"):
        return False
    if request.namespace and not {ANY, request.namespace} & set(rule.get("namespaces") or ()):
        return False
    asked = {"verbs": request.verb, "apiGroups": request.group, "resources": request.resource}
    return all({ANY, value} & set(rule[key]) for key, value in asked.items())


LEASES = "coordination.k8s.io"
OURS = "elastic.iml.github.io"


def controller(namespace: str = deploy.DEFAULT_NAMESPACE) -> str:
    return f"system:serviceaccount:{namespace}:dlr-controller"


@pytest.mark.parametrize("verb", ["get", "create", "update"])
def test_the_leaders_lease_comes_first(verb: str) -> None:
    for namespace in (deploy.DEFAULT_NAMESPACE, "elsewhere"):
        for jobs in (None, "team-a"):
            request = Request(controller(namespace), verb, LEASES, "leases", namespace)
            assert level_of(request, namespace=namespace, jobs_namespace=jobs) == "leader-election"


@pytest.mark.parametrize(
    "request_",
    [
        Request(controller(), "create", "", "pods", "team-a"),
        Request(controller(), "create", LEASES, "leases", "team-a"),
        Request(controller(), "list", OURS, "elasticjobs"),
        Request(controller(), "patch", "", "nodes"),
        Request(controller(), "patch", OURS, "elasticworkers/status", "team-a"),
    ],
)
def test_the_rest_of_the_controllers_requests_comes_next(request_: Request) -> None:
    assert level_of(request_) == "workload-high"


@pytest.mark.parametrize("strategy", ["AllReduceStrategy", "CustomStrategy"])
@pytest.mark.parametrize("kind", ["ElasticJob", "NodeCheck"])
@pytest.mark.parametrize("jobs", [None, "team-a"])
def test_all_that_workers_may_do_comes_behind(kind: str, strategy: str, jobs: str | None) -> None:
    owner = {"kind": kind, "metadata": {"name": "x"}, "spec": {"distributionStrategy": strategy}}
    for rule in rules_of(owner):
        for verb in rule["verbs"]:
            for resource in rule["resources"]:
                user = "system:serviceaccount:team-a:dlr-0b5f"
                request = Request(user, verb, rule["apiGroups"][0], resource, "team-a")
                assert level_of(request, jobs_namespace=jobs) == "workload-low", request


def test_others_leader_elections_and_requests_stay_where_kubernetes_puts_them() -> None:
    other = "system:serviceaccount:team-a:somebody"
    assert level_of(Request(other, "update", LEASES, "leases", "team-a")) == "Kubernetes' own"
    assert level_of(Request(other, "create", "", "pods", "team-a")) == "Kubernetes' own"
    assert level_of(Request("kubelet", "patch", LEASES, "leases", "kube-node-lease")) == "Kubernetes' own"


def test_they_come_before_kubernetes_own_schema_and_take_turns_within() -> None:
    precedences = [each["spec"]["matchingPrecedence"] for each in schemas()]
    assert precedences == sorted(set(precedences)) and precedences[-1] < SERVICE_ACCOUNTS_PRECEDENCE
    assert all(each["spec"]["distinguisherMethod"]["type"] for each in schemas())
