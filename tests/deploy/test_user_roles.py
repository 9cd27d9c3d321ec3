"""deploy/users on a server that enforces rights: what whoever is bound to view, edit or admin may do with our kinds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import deploy
from tests.deploy.api_server import GROUP, Server, install, running_server

pytestmark = pytest.mark.real

JSON = dict[str, Any]

NAMESPACE = "team-a"
KINDS = f"{GROUP}/namespaces/{NAMESPACE}"
POD = {"spec": {"containers": [{"name": "main", "image": "x", "command": ["true"]}]}}
SPECS: dict[str, JSON] = {
    "ElasticJob": {"replicaSpecs": {"worker": {"replicas": 2, "template": POD}}},
    "ScalePlan": {"ownerJob": "there", "replicaResourceSpecs": {"worker": {"replicas": 3}}},
    "NodeCheck": {"nodes": ["node-0"]},
    "ElasticWorker": {"jobName": "there", "type": "worker", "index": 0, "incarnation": 1},
}
ROLES = ("view", "edit", "admin")


def made(kind: str, name: str) -> JSON:
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": SPECS[kind],
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With one object of each kind, called `there`, and accounts called as the role that they are bound to."""
    with running_server(tmp_path_factory.mktemp("users")) as found:
        install(found, deploy.documents())
        found.as_admin("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        for kind in SPECS:
            found.as_admin("POST", f"{KINDS}/{kind.lower()}s", made(kind, "there"))
        for role in ROLES:
            account = {"metadata": {"name": role}}
            found.as_admin("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", account)
            binding = {
                "metadata": {"name": role},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "ServiceAccount", "name": role, "namespace": NAMESPACE}],
            }
            path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings"
            found.as_admin("POST", path, binding)
        yield found


def status(server: Server, role: str, method: str, path: str, body: JSON | None = None) -> int:
    token = server.token(NAMESPACE, role)
    return server.call(method, f"{KINDS}/{path}", body, token=token).status_code


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kind", SPECS)
def test_everybody_reads_our_kinds(server: Server, role: str, kind: str) -> None:
    plural = f"{kind.lower()}s"
    for path in (plural, f"{plural}/there", f"{plural}/there/status"):
        assert status(server, role, "GET", path) == 200


def test_scale_is_read_by_everybody_and_written_by_editors(server: Server) -> None:
    scale = "elasticjobs/there/scale"
    codes = [status(server, role, "PATCH", scale, {"spec": {"replicas": 4}}) for role in ROLES]
    assert codes == [403, 200, 200]
    assert all(status(server, role, "GET", scale) == 200 for role in ROLES)


@pytest.mark.parametrize("kind", ["ElasticJob", "ScalePlan", "NodeCheck"])
@pytest.mark.parametrize(("role", "allowed"), [("view", False), ("edit", True), ("admin", True)])
def test_editors_make_change_and_delete_what_asks_for_something(
    server: Server, kind: str, role: str, allowed: bool
) -> None:
    plural, name = f"{kind.lower()}s", f"of-{role}"
    label = {"metadata": {"labels": {"a": "b"}}}
    codes = [
        status(server, role, "POST", plural, made(kind, name)),
        status(server, role, "PATCH", f"{plural}/there", label),
        status(server, role, "DELETE", f"{plural}/{name}"),
    ]
    assert codes == ([201, 200, 200] if allowed else [403, 403, 403])


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kind", SPECS)
def test_nobody_writes_what_the_controller_says(server: Server, role: str, kind: str) -> None:
    path = f"{kind.lower()}s/there/status"
    assert status(server, role, "PATCH", path, {"status": {"phase": "Failed"}}) == 403


@pytest.mark.parametrize("role", ROLES)
def test_nobody_makes_workers(server: Server, role: str) -> None:
    assert status(server, role, "POST", "elasticworkers", made("ElasticWorker", f"of-{role}")) == 403
    assert status(server, role, "PATCH", "elasticworkers/there", {"spec": {"incarnation": 2}}) == 403


def test_admins_may_clear_away_workers(server: Server) -> None:
    server.as_admin("POST", f"{KINDS}/elasticworkers", made("ElasticWorker", "left"))
    codes = [status(server, role, "DELETE", "elasticworkers/left") for role in ROLES]
    assert codes == [403, 403, 200]


def test_elsewhere_they_may_do_nothing(server: Server) -> None:
    token = server.token(NAMESPACE, "admin")
    answer = server.call("GET", f"{GROUP}/namespaces/default/elasticjobs", token=token)
    assert answer.status_code == 403
