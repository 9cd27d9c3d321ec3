"""The component deploy/namespaced on a server that enforces rights: enough for one namespace, none in others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import deploy
from reconcilers.worker.access import rules_of
from tests.deploy.api_server import (
    GROUP,
    Server,
    a_job,
    eventually,
    install,
    running_controller,
    running_server,
)
from tests.deploy.rights import rights_of_controller

pytestmark = pytest.mark.real

JSON = dict[str, Any]

JOBS = "team-a"
OTHER = "team-b"
DOCUMENTS = deploy.documents(jobs_namespace=JOBS)

JOB = a_job("digits")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("namespaced")) as found:
        for name in (JOBS, OTHER):
            found.as_admin("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        install(found, DOCUMENTS)
        yield found


@pytest.fixture(scope="module")
def log(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The controller with the options that the Deployment gives it for this."""
    (deployment,) = (each for each in DOCUMENTS if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    own = [each for each in container["args"] if each.startswith(("--namespace=", "--cordon="))]
    assert own == [f"--namespace={JOBS}", "--cordon=off"]
    with running_controller(server, tmp_path_factory.mktemp("controller"), *own) as found:
        yield found


def pods(server: Server, namespace: str, prefix: str = "") -> list[str]:
    found = server.as_admin("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
    return sorted(pod["metadata"]["name"] for pod in found if pod["metadata"]["name"].startswith(prefix))


def test_rights_suffice_for_a_job_from_its_start_to_its_removal(server: Server, log: Path) -> None:
    server.as_admin("POST", f"{GROUP}/namespaces/{OTHER}/elasticjobs", JOB)
    server.as_admin("POST", f"{GROUP}/namespaces/{JOBS}/elasticjobs", JOB)

    eventually("the job has two Pods", lambda: len(pods(server, JOBS, "digits-")) == 2)
    server.as_admin("DELETE", f"/api/v1/namespaces/{JOBS}/pods/digits-worker-1-1")
    eventually("the Pod has a successor", lambda: "digits-worker-1-2" in pods(server, JOBS))
    server.as_admin("DELETE", f"{GROUP}/namespaces/{JOBS}/elasticjobs/digits")
    eventually("the job's Pods are gone", lambda: not pods(server, JOBS, "digits-"))

    assert pods(server, OTHER) == []
    assert "forbidden" not in log.read_text().lower()


def test_workers_of_that_namespace_and_of_no_other_are_held_to_their_own_reports(server: Server) -> None:
    """So that the policies of two such installations do not meet."""
    rules = [each for each in DOCUMENTS if each["kind"] == "ValidatingAdmissionPolicy"]
    assert {each["metadata"]["name"] for each in rules} == {
        f"dlr-worker-status-{JOBS}",
        f"dlr-worker-lease-{JOBS}",
    }
    worker = {"apiVersion": JOB["apiVersion"], "kind": "ElasticWorker", "metadata": {"name": "w-worker-0"}}
    worker |= {"spec": {"jobName": "w", "type": "worker", "index": 0, "incarnation": 1}}
    report = {"status": {"phase": "Failed"}}
    leader = {"metadata": {"name": "leader"}, "spec": {"holderIdentity": "somebody-else"}}
    for namespace, status in ((JOBS, 403), (OTHER, 200)):
        server.as_admin("POST", f"{GROUP}/namespaces/{namespace}/elasticworkers", worker)
        account = {"metadata": {"name": "trainer"}}
        server.as_admin("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", account)
        role = {
            "metadata": {"name": "trainer"},
            "rules": rules_of({"kind": "ElasticJob", "metadata": {"name": "w"}, "spec": {}}),
        }
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
        server.as_admin("POST", f"{rbac}/roles", role)
        binding = {
            "metadata": {"name": "trainer"},
            "roleRef": {"kind": "Role", "name": "trainer"},
            "subjects": [{"kind": "ServiceAccount", "name": "trainer", "namespace": namespace}],
        }
        server.as_admin("POST", f"{rbac}/rolebindings", binding)
        token = server.token(namespace, "trainer")
        path = f"{GROUP}/namespaces/{namespace}/elasticworkers/w-worker-0/status"
        assert server.call("PATCH", path, report, token=token).status_code == status
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        server.as_admin("POST", leases, leader)
        taken = {"spec": {"holderIdentity": "trainer"}}
        assert server.call("PATCH", f"{leases}/leader", taken, token=token).status_code == status


def test_rules_are_those_of_the_cluster_role_but_for_nodes() -> None:
    everywhere = {
        (right.verb, right.group, right.resource, right.name)
        for right in rights_of_controller(deploy.documents())
        if not right.namespace
    }
    in_one = {
        (right.verb, right.group, right.resource, right.name)
        for right in rights_of_controller(DOCUMENTS)
        if right.namespace == JOBS
    }
    devices = ("resourceslices", "devicetaintrules")
    in_no_namespace = ("nodes", "nodes/status", "namespaces", *devices)
    assert in_one == {right for right in everywhere if right[2] not in in_no_namespace}
    beyond = {right[:3] for right in rights_of_controller(DOCUMENTS) if not right.namespace}
    assert beyond == {
        *((verb, "", "nodes") for verb in ("get", "list", "watch")),
        *((verb, "resource.k8s.io", kind) for verb in ("list", "watch") for kind in devices),
    }
