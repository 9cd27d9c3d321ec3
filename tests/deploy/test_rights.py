"""The rights in deploy/ on a server that enforces them: enough for the controller and for workers, and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import deploy
import localcluster
from tests.deploy.api_server import (
    GROUP,
    Server,
    a_job,
    eventually,
    install,
    running_controller,
    running_server,
)

pytestmark = pytest.mark.real

JSON = dict[str, Any]

DEFAULT = "namespaces/default"
PODS_OF_JOB = f"/api/v1/{DEFAULT}/pods?labelSelector=elastic.iml.github.io/job-name=rights"
LEASES = f"/apis/coordination.k8s.io/v1/{DEFAULT}/leases"

JOB = a_job("rights")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("rights")) as found:
        install(found, deploy.documents())
        yield found


@pytest.fixture(scope="module")
def controller_log(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The controller with the rights of its service account, and a job that it has set up."""
    with running_controller(server, tmp_path_factory.mktemp("controller")) as log:
        server.as_admin("POST", f"{GROUP}/{DEFAULT}/elasticjobs", JOB)
        yield log


@pytest.fixture(scope="module")
def pods(server: Server, controller_log: Path) -> list[JSON]:
    def both() -> list[JSON]:
        found = server.as_admin("GET", PODS_OF_JOB)["items"]
        return found if len(found) == 2 else []

    try:
        found: list[JSON] = eventually("the job has two Pods", both)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{controller_log.read_text()}") from error
    return found


@pytest.fixture
def worker_token(server: Server, pods: list[JSON]) -> str:
    """What the agent of rank 0 has in its hands."""
    pod = next(pod for pod in pods if pod["metadata"]["name"] == "rights-worker-0-1")
    return server.token("default", pod["spec"]["serviceAccountName"], pod)


def report(state: str) -> JSON:
    agent = {"incarnation": 1, "podUid": "u", "address": "127.0.0.9", "storePort": 4000, "localWorldSize": 1}
    return {"status": {"agent": agent | {"state": state, "since": "2026-01-01T00:00:00Z"}}}


def named(resource: str, name: str) -> str:
    """How an agent follows one object."""
    return f"{GROUP}/{DEFAULT}/{resource}?fieldSelector=metadata.name={name}"


def test_worker_reads_what_it_converges_to(server: Server, worker_token: str) -> None:
    followed = (("elasticworlds", "rights"), ("shardsets", "rights-shards-0"), ("nodechecks", "any"))
    for resource, name in followed:
        for watch in ("", "&watch=true&timeoutSeconds=1"):
            assert server.call("GET", named(resource, name) + watch, token=worker_token).ok
    own = f"{GROUP}/{DEFAULT}/elasticworkers/rights-worker-0"
    before = server.as_admin("GET", own)
    answer = server.call("PATCH", f"{own}/status", {}, token=worker_token)
    assert answer.json()["metadata"]["uid"] == before["metadata"]["uid"]


HIDDEN = (
    named("elasticworlds", "own"),
    f"{GROUP}/{DEFAULT}/elasticworlds/own",
    f"{GROUP}/{DEFAULT}/elasticworlds",
    named("shardsets", "own-shards-0"),
    f"{GROUP}/{DEFAULT}/shardsets",
    named("elasticjobs", "rights"),
    f"{GROUP}/{DEFAULT}/elasticjobs/own",
    f"{GROUP}/{DEFAULT}/elasticjobs",
    f"{GROUP}/{DEFAULT}/elasticjobs?watch=true&timeoutSeconds=1",
    f"{GROUP}/{DEFAULT}/elasticworkers",
    named("elasticworkers", "own-worker-0"),
    f"{GROUP}/{DEFAULT}/elasticworkers/own-worker-0",
    f"{GROUP}/{DEFAULT}/elasticworkers/rights-worker-1",
    f"{GROUP}/{DEFAULT}/scaleplans",
)
"""Of other jobs in the worker's namespace, and of the job itself what no agent needs."""
FORBIDDEN = (
    ("GET", f"/api/v1/{DEFAULT}/secrets"),
    ("GET", f"/api/v1/{DEFAULT}/pods"),
    ("PATCH", f"{GROUP}/{DEFAULT}/elasticjobs/rights"),
    ("PATCH", f"{GROUP}/{DEFAULT}/elasticjobs/rights/status"),
    ("PATCH", f"{GROUP}/{DEFAULT}/elasticworkers/rights-worker-0"),
    ("DELETE", f"{GROUP}/{DEFAULT}/elasticworkers/rights-worker-0"),
    ("DELETE", f"{LEASES}/rights-worker-0"),
    ("GET", f"{GROUP}/namespaces/kube-system/elasticjobs"),
)


def test_worker_may_do_nothing_else(server: Server, worker_token: str, trainer_token: str) -> None:
    for method, path in (*(("GET", path) for path in HIDDEN), *FORBIDDEN):
        answer = server.call(method, path, {} if method == "PATCH" else None, token=worker_token)
        assert answer.status_code == 403, (method, path)


def test_workers_of_a_custom_strategy_list_the_workers_for_dlr_hosts(
    server: Server, controller_log: Path
) -> None:
    spec = JOB["spec"] | {"distributionStrategy": "CustomStrategy"}
    job = server.as_admin(
        "POST", f"{GROUP}/{DEFAULT}/elasticjobs", JOB | {"metadata": {"name": "horovod"}, "spec": spec}
    )
    account = f"dlr-{job['metadata']['uid']}"
    pod = f"/api/v1/{DEFAULT}/pods/horovod-worker-0-1"
    eventually("its Pod is there", lambda: server.call("GET", pod, token=server.admin).ok)
    token = server.token("default", account)
    workers = f"{GROUP}/{DEFAULT}/elasticworkers?labelSelector=elastic.iml.github.io/job-name=horovod"
    assert server.call("GET", workers, token=token).ok


def test_worker_reports_and_renews_its_lease(server: Server, worker_token: str) -> None:
    own = f"{GROUP}/{DEFAULT}/elasticworkers/rights-worker-0/status"
    assert server.call("PATCH", own, report("Ready"), token=worker_token).ok
    renewal = {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z", "holderIdentity": "rights-worker-0-1"}}
    answer = server.call("PATCH", f"{LEASES}/rights-worker-0", renewal, token=worker_token)
    assert answer.ok, answer.text


@pytest.fixture(scope="module")
def trainer_token(server: Server, controller_log: Path) -> str:
    """What the agent of a job has in its hands whose template names an account of the user's."""
    server.as_admin("POST", f"/api/v1/{DEFAULT}/serviceaccounts", {"metadata": {"name": "trainer"}})
    (container,) = JOB["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"]
    template = {"spec": {"containers": [container], "serviceAccountName": "trainer"}}
    spec = {"replicaSpecs": {"worker": {"replicas": 2, "template": template}}}
    job = JOB | {"metadata": {"name": "own"}, "spec": spec}
    server.as_admin("POST", f"{GROUP}/{DEFAULT}/elasticjobs", job)
    pod = f"/api/v1/{DEFAULT}/pods/own-worker-0-1"
    for name in (pod, f"/api/v1/{DEFAULT}/pods/own-worker-1-1"):
        eventually("its Pods are there", lambda name=name: server.call("GET", name, token=server.admin).ok)
    return server.token("default", "trainer", server.as_admin("GET", pod))


def test_a_template_s_own_account_keeps_off_its_neighbours(server: Server, trainer_token: str) -> None:
    for neighbour in ("own-worker-1", "rights-worker-0"):
        status = f"{GROUP}/{DEFAULT}/elasticworkers/{neighbour}/status"
        assert server.call("PATCH", status, report("Failed"), token=trainer_token).status_code == 403
        renewal = {"spec": {"holderIdentity": "own-worker-0-1"}}
        answer = server.call("PATCH", f"{LEASES}/{neighbour}", renewal, token=trainer_token)
        assert answer.status_code == 403, answer.text


def test_rights_suffice_to_cordon_a_node(server: Server, controller_log: Path) -> None:
    labels = {"metadata": {"labels": {"elastic.iml.github.io/may-cordon": "true"}}}
    server.as_admin("PATCH", f"/api/v1/{DEFAULT}", labels)
    server.as_admin("POST", "/api/v1/nodes", {"metadata": {"name": "broken"}})
    check = {"apiVersion": JOB["apiVersion"], "kind": "NodeCheck", "metadata": {"name": "broken"}}
    server.as_admin("POST", f"{GROUP}/{DEFAULT}/nodechecks", check | {"spec": {"nodes": ["broken"]}})
    found = {"nodes": ["broken"], "nodeSets": {"Faulty": "0"}}
    ended = {"phase": "Succeeded", "completionTime": "2100-01-01T00:00:00Z"} | found
    server.as_admin("PATCH", f"{GROUP}/{DEFAULT}/nodechecks/broken/status", {"status": ended})

    def told() -> bool:
        node = server.as_admin("GET", "/api/v1/nodes/broken")
        conditions = node.get("status", {}).get("conditions", ())
        return bool(node.get("spec", {}).get("taints")) and any(
            condition["type"] == "ElasticUnhealthy" for condition in conditions
        )

    eventually("the node is cordoned, and a condition says why", told)
    assert "forbidden" not in controller_log.read_text().lower()


def test_rights_suffice_to_keep_a_gang_s_podgroup_and_disruption_budget(
    server: Server, controller_log: Path
) -> None:
    definition = Path(localcluster.__file__).parent / "scheduler" / "pod_groups.yaml"
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    server.as_admin("POST", crds, yaml.safe_load(definition.read_text()))
    budget = f"/apis/policy/v1/{DEFAULT}/poddisruptionbudgets/gang"
    group = f"/apis/scheduling.x-k8s.io/v1alpha1/{DEFAULT}/podgroups/gang"

    def minimum(count: int | None) -> Callable[[], bool]:
        def both() -> bool:
            answers = [server.call("GET", path, token=server.admin) for path in (budget, group)]
            if count is None:
                return all(answer.status_code == 404 for answer in answers)
            specs = [answer.json().get("spec", {}) for answer in answers]
            return [specs[0].get("minAvailable"), specs[1].get("minMember")] == [count, count]

        return both

    eventually(
        "PodGroups are served", lambda: server.call("GET", group, token=server.admin).json().get("details")
    )
    worker = JOB["spec"]["replicaSpecs"]["worker"] | {"replicas": 3, "minReplicas": 2}
    spec = {"replicaSpecs": {"worker": worker}, "schedulingPolicy": {"gang": "coscheduling"}}
    server.as_admin(
        "POST", f"{GROUP}/{DEFAULT}/elasticjobs", JOB | {"metadata": {"name": "gang"}, "spec": spec}
    )
    eventually("both are made", minimum(2))
    job = f"{GROUP}/{DEFAULT}/elasticjobs/gang"
    server.as_admin("PATCH", job, {"spec": {"replicaSpecs": {"worker": {"minReplicas": 1}}}})
    eventually("both follow the minimum", minimum(1))
    server.as_admin("PATCH", job, {"spec": {"suspend": True}})
    eventually("both are gone", minimum(None))
    server.as_admin("DELETE", job)
    pods = f"/api/v1/{DEFAULT}/pods?labelSelector=elastic.iml.github.io/job-name=gang"
    eventually("its Pods are gone", lambda: not server.as_admin("GET", pods)["items"])
    assert "forbidden" not in controller_log.read_text().lower()


def test_rights_suffice_to_carry_out_a_scale_plan(server: Server, controller_log: Path) -> None:
    job = f"{GROUP}/{DEFAULT}/elasticjobs/scaled"
    server.as_admin("POST", f"{GROUP}/{DEFAULT}/elasticjobs", JOB | {"metadata": {"name": "scaled"}})
    plan = {"apiVersion": JOB["apiVersion"], "kind": "ScalePlan", "metadata": {"name": "more"}}
    spec = {"ownerJob": "scaled", "replicaResourceSpecs": {"worker": {"replicas": 3}}}
    server.as_admin("POST", f"{GROUP}/{DEFAULT}/scaleplans", plan | {"spec": spec})

    def taken_over() -> bool:
        status = server.as_admin("GET", job).get("status", {})
        found = server.as_admin("GET", f"{GROUP}/{DEFAULT}/scaleplans/more").get("status", {})
        by = status.get("scaling", {}).get("by")
        return (by, found.get("phase")) == ("ScalePlan more", "Applied") and "scaleRequest" in status

    eventually("the plan's count is the job's", taken_over)
    server.as_admin("DELETE", job)
    pods = f"/api/v1/{DEFAULT}/pods?labelSelector=elastic.iml.github.io/job-name=scaled"
    eventually("its Pods are gone", lambda: not server.as_admin("GET", pods)["items"])
    assert "forbidden" not in controller_log.read_text().lower()


def test_rights_suffice_for_a_job_from_its_start_to_its_removal(
    server: Server, pods: list[JSON], controller_log: Path
) -> None:
    """Last: it removes the job. A right that is missing shows in the log, whatever came of it."""
    relaunch = f"/api/v1/{DEFAULT}/pods/{pods[1]['metadata']['name']}"
    server.as_admin("DELETE", relaunch)

    def names() -> list[str]:
        return [pod["metadata"]["name"] for pod in server.as_admin("GET", PODS_OF_JOB)["items"]]

    eventually("the deleted Pod has a successor", lambda: any(name.endswith("-2") for name in names()))
    server.as_admin("DELETE", f"{GROUP}/{DEFAULT}/elasticjobs/rights")
    eventually("the job's Pods are gone", lambda: not names())
    assert "forbidden" not in controller_log.read_text().lower()
