"""deploy/users on a server that enforces rights: what whoever is bound to view, edit or admin may do with our kinds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
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


def test_everybody_reads_our_kinds_and_nobody_writes_what_the_controller_says(server: Server) -> None:
    for role, kind in product(ROLES, SPECS):
        plural = f"{kind.lower()}s"
        for path in (plural, f"{plural}/there", f"{plural}/there/status"):
            assert status(server, role, "GET", path) == 200, (role, path)
        failed = {"status": {"phase": "Failed"}}
        assert status(server, role, "PATCH", f"{plural}/there/status", failed) == 403, (role, kind)


def test_scale_is_read_by_everybody_and_written_by_editors(server: Server) -> None:
    scale = "elasticjobs/there/scale"
    codes = [status(server, role, "PATCH", scale, {"spec": {"replicas": 4}}) for role in ROLES]
    assert codes == [403, 200, 200]
    assert all(status(server, role, "GET", scale) == 200 for role in ROLES)


def test_editors_make_change_and_delete_what_asks_for_something(server: Server) -> None:
    label = {"metadata": {"labels": {"a": "b"}}}
    for role, kind in product(ROLES, ("ElasticJob", "ScalePlan", "NodeCheck")):
        plural, name = f"{kind.lower()}s", f"of-{role}"
        codes = [
            status(server, role, "POST", plural, made(kind, name)),
            status(server, role, "PATCH", f"{plural}/there", label),
            status(server, role, "DELETE", f"{plural}/{name}"),
        ]
        assert codes == ([403, 403, 403] if role == "view" else [201, 200, 200]), (role, kind)


def test_admins_may_clear_away_workers(server: Server) -> None:
    server.as_admin("POST", f"{KINDS}/elasticworkers", made("ElasticWorker", "left"))
    codes = [status(server, role, "DELETE", "elasticworkers/left") for role in ROLES]
    assert codes == [403, 403, 200]
