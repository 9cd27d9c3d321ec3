"""What `dlr manifests` prints is what kustomize renders, and it is as careful as it says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import deploy
from crds import names, release
from dlr.commands import controller as controller_command
from localcluster.apiserver.rbac import rule_covers, single_rules
from reconcilers.observed import options as pod_options
from tests.deploy.rights import rights_of_controller

REPOSITORY = Path(deploy.__file__).parent.parent
KUBECTL = Path(sys.executable).with_name("kubectl")

JSON = dict[str, Any]


COMPONENTS = {
    "namespaced": "jobs_namespace",
    "network": "network_policy",
    "priority": "priority_class",
    "kueue": "kueue",
}
"""Folder of a component, and the option that stands for it."""
QUEUES_OF_ONE = ("namespaced", "kueue", "kueue-namespaced")

ATOMIC = {
    "fieldRef": {"apiVersion": "v1"},
    "resourceFieldRef": {"divisor": "0"},
    "matchConstraints": {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}},
    "matchResources": {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}},
    "resourceRules": {"scope": "*"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io"},
}
"""Fields of which server-side apply owns all or nothing (x-kubernetes-map-type: atomic, or in an atomic list),
and what the API server adds to them: https://kubernetes.io/docs/reference/kubernetes-api/"""


def of_kind(kind: str) -> list[JSON]:
    return [document for document in deploy.documents() if document["kind"] == kind]


def identity(document: JSON) -> tuple[str, str, str]:
    metadata = document["metadata"]
    return document["kind"], metadata.get("namespace", ""), metadata["name"]


@pytest.mark.real
@pytest.mark.skipif(not KUBECTL.exists(), reason="no kubectl beside this Python")
@pytest.mark.parametrize("chosen", [(), ("kueue",), ("network", "priority", *QUEUES_OF_ONE)])
def test_documents_are_what_kustomize_makes_of_components(chosen: tuple[str, ...], tmp_path: Path) -> None:
    base = Path(*[".."] * (len(tmp_path.parts) - 1)) / REPOSITORY.relative_to("/") / "deploy"
    overlay = {"resources": [str(base)], "components": [str(base / name) for name in chosen]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    command = [str(KUBECTL), "kustomize", str(tmp_path)]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    options: JSON = {COMPONENTS[name]: True for name in chosen if name in COMPONENTS}
    if "jobs_namespace" in options:
        options["jobs_namespace"] = deploy.DEFAULT_JOBS_NAMESPACE
    expected = sorted(deploy.documents(**options), key=identity)
    assert sorted(yaml.safe_load_all(rendered), key=identity) == expected


@pytest.mark.parametrize("options", [{}, {"jobs_namespace": "team-a", "network_policy": True}])
def test_no_default_of_the_api_server_is_left_out_where_a_field_is_owned_as_a_whole(options: JSON) -> None:
    """Else a server-side apply conflicts with what a client-side one has left there."""
    found: list[str] = []

    def look(value: Any) -> None:
        if isinstance(value, list):
            for each in value:
                look(each)
        elif isinstance(value, dict):
            for key, inner in value.items():
                for each in inner if isinstance(inner, list) else [inner]:
                    if key in ATOMIC and isinstance(each, dict):
                        found.append(key)
                        assert set(ATOMIC[key]) <= set(each), (key, each)
                look(inner)

    documents = deploy.documents(**options)
    others = ("CustomResourceDefinition", "FlowSchema")  # to whose rules, of the same name, nothing is added
    look([each for each in documents if each["kind"] not in others])
    for policy in (each["spec"] for each in documents if each["kind"] == "NetworkPolicy"):
        rules = [*policy["ingress"], *policy["egress"]]
        assert all("protocol" in port for rule in rules for port in rule["ports"]) and policy["policyTypes"]
    assert set(found) == {"fieldRef", "matchConstraints", "resourceRules", "roleRef"}


def test_network_policies_have_fields_that_kubernetes_knows() -> None:
    """The embedded cluster has no network to try them on."""
    from kubernetes import client

    policies = [each for each in deploy.documents(network_policy=True) if each["kind"] == "NetworkPolicy"]
    policies.append(yaml.safe_load((REPOSITORY / "deploy/network/workers-egress.yaml").read_text()))
    assert len(policies) == 2
    api = client.ApiClient()
    for policy in policies:
        read = api.deserialize(json.dumps(policy), "V1NetworkPolicy", "application/json")
        assert api.sanitize_for_serialization(read) == policy


def test_network_policies_select_pods_by_labels_that_these_have() -> None:
    from reconcilers.observed.builder import labels

    (deployment,) = of_kind("Deployment")
    (policy,) = (each for each in deploy.documents(network_policy=True) if each["kind"] == "NetworkPolicy")
    pod = deployment["spec"]["template"]
    selected = policy["spec"]["podSelector"]["matchLabels"]
    assert selected.items() <= pod["metadata"]["labels"].items()
    allowed = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    assert allowed == {port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    worker = labels("digits", names.WORKER, 0)
    egress = yaml.safe_load((REPOSITORY / "deploy/network/workers-egress.yaml").read_text())
    to_workers = egress["spec"]["egress"][0]["to"][0]["podSelector"]
    for selector in (egress["spec"]["podSelector"], to_workers):
        assert [each["operator"] for each in selector["matchExpressions"]] == ["Exists"]
        assert {each["key"] for each in selector["matchExpressions"]} <= worker.keys()


def test_another_namespace_and_images_are_used_throughout() -> None:
    text = yaml.safe_dump_all(
        deploy.documents(
            "elsewhere", "registry.example/dlr:9", "registry.example/check:9", "registry.example/agent:9"
        )
    )
    assert deploy.DEFAULT_NAMESPACE not in text
    assert deploy.DEFAULT_IMAGE not in text and deploy.DEFAULT_CHECK_IMAGE not in text
    assert "--check-image=registry.example/check:9" in text
    assert "--agent-image=registry.example/agent:9" in text
    assert "system:serviceaccount:elsewhere:dlr-controller" in text


def test_the_agent_s_image_has_it_where_the_controller_says() -> None:
    dockerfile = (REPOSITORY / "kind" / "agent.Dockerfile").read_text()
    assert f"COPY --from=build /agent {pod_options.DEFAULT_AGENT_PATH}\n" in dockerfile


def test_images_hold_every_package_of_ours() -> None:
    packages = {path.parent.name for path in REPOSITORY.glob("*/__init__.py")}
    needed = packages - {"e2e", "release", "tests"}
    for image in ("controller", "agent"):
        text = (REPOSITORY / "kind" / f"{image}.Dockerfile").read_text()
        copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ")]
        assert {name for names in copied for name in names} >= needed | {"pyproject.toml", "setup.py"}, image


def test_controller_runs_without_any_privilege() -> None:
    (deployment,) = of_kind("Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert deployment["spec"]["replicas"] == 2
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container)
    assert container["resources"]["limits"]["memory"]


def test_controller_is_started_with_options_that_it_has() -> None:
    import inspect

    documents = deploy.documents(jobs_namespace="team-a")
    (deployment,) = (each for each in documents if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    options = {argument.split("=")[0].removeprefix("--").replace("-", "_") for argument in container["args"]}
    assert options <= set(inspect.signature(controller_command.controller).parameters)


def test_no_rule_has_a_wildcard_or_reads_secrets() -> None:
    documents = [*deploy.documents(kueue=True), *deploy.documents(jobs_namespace="team-a", kueue=True)]
    rules = [rule for role in documents if role["kind"] in ("ClusterRole", "Role") for rule in role["rules"]]
    for rule in rules:
        named = (rule.get(field, ()) for field in ("verbs", "resources", "apiGroups", "nonResourceURLs"))
        assert not any("*" in name for names in named for name in names)
        resources = rule.get("resources", ())
        assert not {"configmaps", "pods/exec", "pods/log"} & set(resources)
        assert "secrets" not in resources or rule["verbs"] == ["create"]


def test_queues_in_one_namespace_give_the_same_rights_there_and_write_nothing_elsewhere() -> None:
    everywhere, beside_queues, in_one, beside_queues_in_one = (
        rights_of_controller(deploy.documents(jobs_namespace=jobs, kueue=kueue))
        for jobs in (None, "team-a")
        for kueue in (True, False)
    )
    wanted, found = everywhere - beside_queues, in_one - beside_queues_in_one
    assert wanted and {each._replace(namespace="") for each in found} == wanted
    cluster_wide = {each for each in found if not each.namespace}
    assert {each.resource for each in cluster_wide} == {
        "clusterqueues",
        "resourceflavors",
        "workloadpriorityclasses",
        "priorityclasses",
    }
    assert {each.verb for each in cluster_wide} == {"get"}
    assert {each.namespace for each in found - cluster_wide} == {"team-a"}


def test_two_installations_with_queues_share_no_object_of_rights() -> None:
    first, second = (
        {
            identity(each)
            for each in deploy.documents(f"dlr-{team}", jobs_namespace=team, kueue=True)
            if "kueue" in each["metadata"]["name"]
        }
        for team in ("a", "b")
    )
    assert len(first) == len(second) == 4 and not first & second


@pytest.mark.parametrize("jobs_namespace", [None, "team-a"])
@pytest.mark.parametrize("kind", ["ElasticJob", "NodeCheck"])
@pytest.mark.parametrize("strategy", ["AllreduceStrategy", "CustomStrategy"])
def test_controller_holds_what_it_gives_to_workers(
    jobs_namespace: str | None, kind: str, strategy: str
) -> None:
    """Else the API server refuses the Role: the controller has neither `escalate` nor `bind`."""
    from reconcilers.worker.access import rules_of

    name = "dlr-controller-jobs" if jobs_namespace else "dlr-controller"
    (held,) = (
        role["rules"]
        for role in deploy.documents(jobs_namespace=jobs_namespace)
        if role["metadata"]["name"] == name and role["kind"] == ("Role" if jobs_namespace else "ClusterRole")
    )
    owner = {"kind": kind, "metadata": {"name": "x"}, "spec": {"distributionStrategy": strategy}}
    for given in rules_of(owner):
        for wanted in single_rules(given):
            assert any(rule_covers(rule, wanted) for rule in held), wanted


@pytest.mark.real
def test_kind_scripts_say_in_a_sentence_that_docker_is_missing(tmp_path: Path) -> None:
    for program in ("bash", "dirname", "basename"):
        (tmp_path / program).symlink_to(shutil.which(program) or "")
    for script in ("up.sh", "down.sh", "build.sh", "load.sh"):
        done = subprocess.run(
            [str(tmp_path / "bash"), str(REPOSITORY / "kind" / script)],
            env={"PATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 1, script
        (said,) = done.stderr.splitlines()
        assert "docker is not installed" in said


def test_images_have_the_version_of_the_release() -> None:
    """YAML that kubectl applies as it is cannot read crds/release.py."""
    (deployment,) = of_kind("Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    images = [
        container["image"],
        *(word.partition("=")[2] for word in container["args"] if "-image=" in word),
    ]
    assert images == [f"dlr-{name}:{release.VERSION}" for name in ("controller", "worker", "agent")]
