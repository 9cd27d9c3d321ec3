"""`dlr install`, `dlr uninstall` and `dlr doctor` on an API server, and kubectl before and after them."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

import crds
import deploy
from dlr.kube import api
from tests.cli.conftest import Result
from tests.cli.scripted import JSON
from tests.deploy.api_server import GROUP, Server, collection_of, eventually, running_server

pytestmark = pytest.mark.real

Dlr = Callable[..., Result]

KUBECTL = Path(sys.executable).with_name("kubectl")
WRITTEN_OUT = (
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "PodDisruptionBudget"),
    *("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
)
"""Kinds to which the API server adds nothing, since the manifests say all of it."""
DEPLOYMENT = "/apis/apps/v1/namespaces/dlr-system/deployments/dlr-controller"
JOB = {
    "apiVersion": "elastic.iml.github.io/v1alpha1",
    "kind": "ElasticJob",
    "metadata": {"name": "digits"},
    "spec": {
        "replicaSpecs": {"worker": {"template": {"spec": {"containers": [{"name": "main", "image": "x"}]}}}}
    },
}
JOBS = f"{GROUP}/namespaces/default/elasticjobs"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("install")) as found:
        yield found


@pytest.fixture
def server(cluster: Server, dlr: Dlr, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    """The API server, without anything of dlr."""
    config = tmp_path / "kubeconfig"
    config.write_text(yaml.safe_dump(cluster.config))
    monkeypatch.setenv("KUBECONFIG", str(config))
    yield cluster
    for document in reversed(deploy.documents(priority_class=True)):
        path = f"{collection_of(document)}/{document['metadata']['name']}"
        cluster.call("DELETE", path, token=cluster.admin)
    for manifest in crds.manifests():
        path = f"{collection_of(manifest)}/{manifest['metadata']['name']}"
        eventually("no CRD is left", lambda path=path: not cluster.call("GET", path, token=cluster.admin).ok)
    path = "/api/v1/namespaces/dlr-system"
    eventually("no namespace is left", lambda: not cluster.call("GET", path, token=cluster.admin).ok)


def kubectl(*words: str, text: str | None = None) -> list[str]:
    done = subprocess.run(
        [str(KUBECTL), *words], input=text, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def outcomes(done: Result) -> set[str]:
    """What became of the objects, without repetitions."""
    assert done.exit_code == 0, done.err
    return {line.partition(" ")[2] for line in done.out.splitlines() if "/" in line.partition(" ")[0]}


def live(server: Server) -> list[JSON]:
    found = []
    for document in deploy.documents():
        path = f"{collection_of(document)}/{document['metadata']['name']}"
        obj = server.as_admin("GET", path)
        found.append({**obj, "metadata": {k: v for k, v in obj["metadata"].items() if k != "managedFields"}})
    return found


def test_install_again_and_again_and_with_kubectl_in_between_and_a_dry_run_before_each(
    server: Server, dlr: Dlr
) -> None:
    dry = dlr("install", "--dry-run")
    assert dry.exit_code == 0, dry.err
    crd = "customresourcedefinition.apiextensions.k8s.io/elasticjobs.elastic.iml.github.io"
    assert f"{crd} created (dry run)" in dry.out
    assert "deployment.apps/dlr-controller created, untried" in dry.out
    assert not server.call("GET", "/api/v1/namespaces/dlr-system", token=server.admin).ok
    assert not server.call("GET", GROUP, token=server.admin).ok
    assert outcomes(dlr("install", "--no-wait")) == {"created"}
    first = live(server)
    for document, found in zip(deploy.documents(), first, strict=True):
        if document["kind"] in WRITTEN_OUT:
            content = ("spec", "rules", "roleRef", "subjects")
            assert {k: found[k] for k in content if k in found} == {
                k: document[k] for k in content if k in document
            }
    assert outcomes(dlr("install", "--no-wait")) == {"unchanged"}
    dry = dlr("install", "--dry-run", "--image", "x:2")
    assert "deployment.apps/dlr-controller configured (dry run)" in dry.out
    assert live(server) == first

    how = ("--server-side", "--force-conflicts", "--field-manager=dlr")
    by_kubectl = kubectl("apply", *how, "-f", "-", text=dlr("manifests").out)
    assert all(line.endswith(" serverside-applied") for line in by_kubectl)
    assert outcomes(dlr("install", "--no-wait")) == {"unchanged"}
    assert live(server) == first


def test_an_upgrade_changes_what_changed_and_keeps_what_others_set(server: Server, dlr: Dlr) -> None:
    dlr("install", "--no-wait", "--priority-class")
    note = {"metadata": {"annotations": {"team": "a"}}, "spec": {"template": {"spec": {"nodeName": ""}}}}
    server.as_admin("PATCH", DEPLOYMENT, {**note, "spec": {"revisionHistoryLimit": 3}})
    before = server.as_admin("GET", DEPLOYMENT)["spec"]["template"]["spec"]["containers"]
    before[0]["env"].insert(0, {"name": "HTTPS_PROXY", "value": "http://proxy"})
    sidecar = {"name": "sidecar", "image": "s"}
    containers = {"template": {"spec": {"containers": [*before, sidecar]}}}
    server.as_admin("PATCH", DEPLOYMENT, {"spec": containers})

    done = dlr("install", "--no-wait", "--image", "registry.example/dlr-controller:0.2.0")
    changed = [line for line in done.out.splitlines() if not line.endswith(" unchanged")]
    assert changed == ["deployment.apps/dlr-controller configured"]
    found = server.as_admin("GET", DEPLOYMENT)
    pod = found["spec"]["template"]["spec"]
    assert pod["containers"][0] == before[0] | {"image": "registry.example/dlr-controller:0.2.0"}
    assert pod["containers"][1]["name"] == "sidecar"
    assert "priorityClassName" not in pod  # this time it was not asked for
    assert found["metadata"]["annotations"]["team"] == "a"
    assert found["spec"]["revisionHistoryLimit"] == 3


def roll_out(server: Server) -> None:
    """Write, step by step, what the Deployment's controller and the elected Pod would."""
    generation = server.as_admin("GET", DEPLOYMENT)["metadata"]["generation"]
    for ready in (1, 2):
        status = {"observedGeneration": generation, "replicas": 2, "updatedReplicas": 2}
        status |= {"availableReplicas": ready, "readyReplicas": ready}
        server.as_admin("PATCH", f"{DEPLOYMENT}/status", {"status": status})
        time.sleep(0.2)  # only so that the state in between is likely to be seen
    renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": "dlr-controller-x_uid", "renewTime": renewed, "leaseDurationSeconds": 3600}
    path = "/apis/coordination.k8s.io/v1/namespaces/dlr-system/leases"
    server.as_admin("POST", path, {"metadata": {"name": "dlr-controller"}, "spec": spec})


def test_install_waits_until_the_controller_leads(
    server: Server, dlr: Dlr, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "EMBEDDED_VERSION", "+another")
    assert dlr("install", "--no-wait").exit_code == 0
    other = threading.Thread(target=roll_out, args=(server,))
    other.start()
    done = dlr("install")
    other.join()
    assert done.exit_code == 0, done.err
    assert done.out.splitlines()[-1] == "The controller is ready; dlr-controller-x leads."


def test_uninstall_leaves_nothing_but_crds_and_those_only_on_demand(server: Server, dlr: Dlr) -> None:
    dlr("install", "--no-wait", "--priority-class")
    server.as_admin("POST", JOBS, JOB)
    server.as_admin("PATCH", f"{JOBS}/digits/status", {"status": {"phase": "Succeeded"}})

    done = dlr("uninstall")
    assert done.exit_code == 0, done.err
    assert done.out.splitlines()[0] == "deployment.apps/dlr-controller deleted"
    assert done.out.splitlines()[-1].startswith("The CRDs are left, with all jobs")
    for document in deploy.documents(priority_class=True):
        path = f"{collection_of(document)}/{document['metadata']['name']}"
        is_there = server.call("GET", path, token=server.admin).ok
        assert is_there == (document["kind"] == "CustomResourceDefinition"), path
    assert server.as_admin("GET", f"{JOBS}/digits")

    assert "elasticjobs.elastic.iml.github.io deleted" in dlr("uninstall", "--delete-crds").out
    assert dlr("uninstall").out == "There is nothing of dlr in namespace dlr-system.\n"


def test_uninstall_is_refused_while_jobs_run(server: Server, dlr: Dlr) -> None:
    dlr("install", "--no-wait")
    server.as_admin("POST", JOBS, JOB)
    before = live(server)
    done = dlr("uninstall")
    assert done.exit_code == 1
    assert done.err == (
        "dlr: These jobs have not ended: default/digits; wait for them, or take their Pods away with "
        "`dlr job suspend`.\n"
    )
    server.as_admin("PATCH", f"{JOBS}/digits", {"spec": {"suspend": True}})
    done = dlr("uninstall", "--delete-crds")
    assert "default/digits; wait for them, or delete them with `dlr job delete`" in done.err
    assert live(server) == before
    assert dlr("uninstall").exit_code == 0


def test_a_namespace_that_was_there_before_keeps_its_labels_and_stays(server: Server, dlr: Dlr) -> None:
    """Ours says which Pods may run in it, which is nothing to tell to another's namespace."""
    server.as_admin("POST", "/api/v1/namespaces", {"metadata": {"name": "dlr-system"}})
    assert "namespace/dlr-system left as it is: it was there before dlr\n" in dlr("install", "--no-wait").out
    found = server.as_admin("GET", "/api/v1/namespaces/dlr-system")
    assert set(found["metadata"]["labels"]) == {"kubernetes.io/metadata.name"}
    assert dlr("uninstall").exit_code == 0
    assert server.as_admin("GET", "/api/v1/namespaces/dlr-system")["status"]["phase"] == "Active"


def test_two_controllers_for_the_same_jobs_are_refused_and_what_two_for_others_share_goes_with_the_last(
    server: Server, dlr: Dlr
) -> None:
    dlr("install", "--no-wait")
    done = dlr("install", "--namespace", "elsewhere")
    assert done.exit_code == 1
    assert "A controller of dlr in dlr-system already looks after all namespaces" in done.err
    done = dlr("install", "--jobs-namespace", "default")
    assert "take it away first with `dlr uninstall --namespace dlr-system`" in done.err
    done = dlr("install", "--jobs-namespace", "nowhere")
    assert done.err == "dlr: There is no namespace nowhere; make it first: kubectl create namespace nowhere\n"
    assert dlr("uninstall").exit_code == 0
    server.as_admin("POST", "/api/v1/namespaces", {"metadata": {"name": "team-b"}})
    first = ("--jobs-namespace", "default")
    second = ("--jobs-namespace", "team-b", "--namespace", "dlr-team-b")
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    shared = [f"{roles}/dlr-{name}" for name in ("view", "edit", "admin", "metrics-reader")]
    assert dlr("install", "--no-wait", *first).exit_code == 0
    assert dlr("install", "--no-wait", *second).exit_code == 0
    done = dlr("uninstall", *first, "--delete-crds")
    assert "Another controller of dlr needs the CRDs (dlr-team-b/dlr-controller)" in done.err
    assert dlr("uninstall", *first).exit_code == 0
    assert all(server.as_admin("GET", role) for role in shared)
    assert outcomes(dlr("install", "--no-wait", *second)) == {"unchanged"}
    assert dlr("uninstall", *second).exit_code == 0
    assert not any(server.call("GET", role, token=server.admin).ok for role in shared)


def dlrover_crd(plural: str, kind: str) -> JSON:
    """As small as DLRover's would be without its fields; names, version and what it lacks are DLRover's."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True, "subresources": {"status": {}}}
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.elastic.iml.github.io",
            "annotations": {"controller-gen.kubebuilder.io/version": "v0.9.2"},
        },
        "spec": {
            "group": "elastic.iml.github.io",
            "names": names,
            "scope": "Namespaced",
            "versions": [version | {"schema": {"openAPIV3Schema": schema}}],
        },
    }


DLROVER_CRDS = [dlrover_crd("elasticjobs", "ElasticJob"), dlrover_crd("scaleplans", "ScalePlan")]
DLROVER_OPERATOR = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {
        "name": "dlrover-controller-manager",
        "namespace": "default",
        "labels": {"control-plane": "controller-manager"},
    },
    "spec": {
        "selector": {"matchLabels": {"control-plane": "controller-manager"}},
        "template": {
            "metadata": {"labels": {"control-plane": "controller-manager"}},
            "spec": {"containers": [{"name": "manager", "image": "easydl/elasticjob-controller:master"}]},
        },
    },
}


def topics(done: Result, level: str) -> list[str]:
    return [line["topic"] for line in done.json if line["level"] == level]


def test_moving_over_from_dlrover_and_back(server: Server, dlr: Dlr) -> None:
    # DLRover's own are too large for `kubectl apply`.
    kubectl("create", "-f", "-", text=yaml.safe_dump_all(DLROVER_CRDS))
    eventually("DLRover's CRDs are served", lambda: server.call("GET", JOBS, token=server.admin).ok)
    operators = "/apis/apps/v1/namespaces/default/deployments"
    operator = f"{operators}/dlrover-controller-manager"
    server.as_admin("POST", operators, DLROVER_OPERATOR)
    server.as_admin("POST", JOBS, JOB)
    server.as_admin("PATCH", f"{JOBS}/digits/status", {"status": {"phase": "Running"}})

    told = dlr("doctor", "-o", "json")
    assert (told.exit_code, topics(told, "problem")) == (1, ["crds", "dlrover"])
    done = dlr("install", "--no-wait", "--replace-crds")
    assert done.exit_code == 1
    assert "kubectl scale deployment dlrover-controller-manager -n default --replicas=0" in done.err

    server.as_admin("PATCH", operator, {"spec": {"replicas": 0}})
    assert topics(dlr("doctor", "-o", "json"), "problem") == ["crds"]
    done = dlr("install", "--no-wait")
    assert "has defined elasticjobs.elastic.iml.github.io, scaleplans.elastic.iml.github.io" in done.err
    assert "run it again with --replace-crds" in done.err
    done = dlr("install", "--no-wait", "--replace-crds")
    assert "Another operator's jobs have not ended: default/digits." in done.err

    server.as_admin("PATCH", f"{JOBS}/digits/status", {"status": {"phase": "Succeeded"}})
    done = dlr("install", "--no-wait", "--replace-crds")
    assert "elasticjobs.elastic.iml.github.io configured" in done.out
    assert outcomes(dlr("install", "--no-wait")) == {"unchanged"}
    assert server.as_admin("GET", f"{JOBS}/digits")["status"]["phase"] == "Succeeded"
    assert "crds" in topics(dlr("doctor", "-o", "json"), "ok")

    # And back: dlr goes, its two other CRDs too, and DLRover's are applied as they were.
    assert dlr("uninstall").exit_code == 0
    back = kubectl("replace", "-f", "-", text=yaml.safe_dump_all(DLROVER_CRDS))
    assert all(line.endswith(" replaced") for line in back)
    names = server.as_admin("GET", f"{collection_of(DLROVER_CRDS[0])}/elasticjobs.elastic.iml.github.io")
    assert "categories" not in names["spec"]["names"]
    server.as_admin("DELETE", operator)
    server.as_admin("PATCH", f"{JOBS}/digits/status", {"status": {"phase": "Running"}})
    done = dlr("uninstall", "--delete-crds")
    assert "elasticjobs.elastic.iml.github.io left: it is not dlr's" in done.out
    assert "elasticworkers.elastic.iml.github.io deleted" in done.out
    assert server.as_admin("GET", f"{JOBS}/digits")["status"]["phase"] == "Running"


def test_doctor_finds_what_is_missing(server: Server, dlr: Dlr, tmp_path: Path) -> None:
    dlr("install", "--no-wait")
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/dlr-controller"
    rules = server.as_admin("GET", path)["rules"]
    server.as_admin("PATCH", path, {"rules": [rule for rule in rules if "pods" not in rule["resources"]]})
    jobs = f"{collection_of(crds.manifests()[0])}/elasticjobs.elastic.iml.github.io"
    changed = copy.deepcopy(server.as_admin("GET", jobs)["spec"]["versions"])
    changed[0]["additionalPrinterColumns"].pop()
    server.as_admin("PATCH", jobs, {"spec": {"versions": changed}})
    texts = {line["topic"]: line["text"] for line in dlr("doctor", "-o", "json").json}
    assert texts["rights"].startswith("dlr-controller of another version than this dlr")
    assert texts["crds"].startswith("elasticjobs.elastic.iml.github.io of another version than this dlr")
    assert texts["admission"].startswith("All ")

    # Somebody who may do nothing gets an answer all the same.
    token = server.token("dlr-system", "dlr-controller")
    nobody = server.kubeconfig_of(token, tmp_path / "nobody")
    lines = dlr("doctor", "-o", "json", "--kubeconfig", str(nobody)).json
    assert any(line["text"].startswith("Could not be checked: ") for line in lines)
