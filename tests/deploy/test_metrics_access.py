"""The controller's /metrics on a server that knows tokens and rights: who reads it, with what deploy/ grants."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

import deploy
from tests.deploy.api_server import (
    Server,
    collection_of,
    eventually,
    install,
    running_controller,
    running_server,
)

pytestmark = pytest.mark.real

JSON = dict[str, Any]

NAMESPACE = f"/api/v1/namespaces/{deploy.DEFAULT_NAMESPACE}"
READER = "dlr-metrics-reader"
JOBS = "team-a"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With dlr, and with what deploy/metrics/ makes for Prometheus."""
    access = yaml.safe_load_all((Path(deploy.__file__).parent / "metrics" / "access.yaml").read_text())
    with running_server(tmp_path_factory.mktemp("metrics")) as found:
        found.as_admin("POST", "/api/v1/namespaces", {"metadata": {"name": JOBS}})
        install(found, deploy.documents(jobs_namespace=JOBS))
        for document in access:
            if document["kind"] != "ClusterRoleBinding":
                document["metadata"]["namespace"] = deploy.DEFAULT_NAMESPACE
            found.as_admin("POST", collection_of(document), document)
        yield found


@pytest.fixture(scope="module")
def log(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    # One that loses its Lease ends, and then listens on another port.
    options = [f"--namespace={JOBS}", "--cordon=off", "--no-leader-elect"]
    with running_controller(server, tmp_path_factory.mktemp("controller"), *options) as found:
        yield found


@pytest.fixture(scope="module")
def url(log: Path) -> str:
    found = eventually("it listens", lambda: re.search(r"servers started .*metrics=(\d+)", log.read_text()))
    return f"http://127.0.0.1:{found[1]}/metrics"


def read(url: str, authorization: str | None) -> requests.Response:
    with requests.Session() as session:
        session.trust_env = False
        headers = {} if authorization is None else {"Authorization": authorization}
        answer = session.get(url, headers=headers, timeout=300)
        while answer.status_code == 503:  # the API server took more than 10 s to review the token
            answer = session.get(url, headers=headers, timeout=300)
        return answer


def account(server: Server, name: str) -> str:
    """A token of a new account of `default`."""
    server.as_admin("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": name}})
    return server.token("default", name)


def test_the_account_made_for_prometheus_reads_metrics(server: Server, url: str, log: Path) -> None:
    answer = read(url, f"Bearer {server.token(deploy.DEFAULT_NAMESPACE, READER)}")
    assert answer.status_code == 200, answer.text
    assert "leader_election_master_status" in answer.text
    assert "forbidden" not in log.read_text().lower()


def test_an_account_reads_metrics_once_it_is_bound(server: Server, url: str) -> None:
    before = read(url, f"Bearer {account(server, 'prometheus')}")
    assert (before.status_code, before.text) == (
        403,
        "system:serviceaccount:default:prometheus may not get /metrics: see the ClusterRole dlr-metrics-reader\n",
    )
    group = "rbac.authorization.k8s.io"
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "prometheus-reads-dlr"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": READER},
        "subjects": [{"kind": "ServiceAccount", "name": "prometheus", "namespace": "default"}],
    }
    server.as_admin("POST", collection_of(binding), binding)
    # Another token of the same account: the refusal of the first is remembered for a while.
    assert read(url, f"Bearer {server.token('default', 'prometheus')}").status_code == 200
