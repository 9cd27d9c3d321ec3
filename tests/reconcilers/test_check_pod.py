from __future__ import annotations

import copy
from typing import Any

import pytest

from crds import names
from crds.nodecheck import NodeCheck
from localcluster.scheduler.constraints import matches_node, untolerated_taint
from reconcilers.nodecheck.pod import CheckAssignment, build_check_pod
from tests.reconcilers.build import NOW, check, check_worker, later
from tests.reconcilers.pods import environment

GPU = "nvidia.com/gpu"
COMMAND = ["dlr", "check-worker"]
TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"team": "fabric"}, "annotations": {"k8s.v1.cni.cncf.io/networks": "rdma"}},
    "spec": {
        "hostNetwork": True,
        "nodeName": "elsewhere",
        "tolerations": [{"key": "reserved", "operator": "Exists"}],
        "serviceAccountName": "fabric",
        "imagePullSecrets": [{"name": "registry"}],
        "containers": [
            {"name": "probe", "image": "mine", "env": [{"name": "NCCL_IB_HCA", "value": "mlx5"}]},
            {"name": "sidecar", "image": "x", "command": ["sleep", "5"]},
        ],
    },
}


def node(gpus: str | None = None, name: str = "node-3") -> dict[str, Any]:
    allocatable = {"cpu": "8"} | ({GPU: gpus} if gpus is not None else {})
    return {"metadata": {"name": name, "labels": {}}, "status": {"allocatable": allocatable}}


def built(of: NodeCheck, on: dict[str, Any] | None = None) -> dict[str, Any]:
    return build_check_pod(of, check_worker(3), node() if on is None else on, "dlr-worker:test")


def limits(pod: dict[str, Any]) -> dict[str, Any]:
    limits: dict[str, Any] = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
    return limits


def test_without_a_template_it_is_a_small_pod_of_the_controllers_image_that_runs_as_nobody() -> None:
    pod = built(check())
    (container,) = pod["spec"]["containers"]
    assert (container["name"], container["image"], container["command"]) == (
        "check",
        "dlr-worker:test",
        COMMAND,
    )
    assert (pod["spec"]["restartPolicy"], pod["spec"]["terminationGracePeriodSeconds"]) == ("Never", 5)
    assert pod["spec"]["serviceAccountName"] == f"dlr-{check().metadata.uid}"
    (mount, token), (volume, _) = container["volumeMounts"], pod["spec"]["volumes"]
    assert token["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount"
    assert (mount["mountPath"], volume["emptyDir"]) == ("/dev/shm", {"medium": "Memory"})
    assert pod["spec"]["securityContext"]["runAsUser"] == 65532
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert environment(pod)["TMPDIR"] == "/dev/shm" == container["volumeMounts"][0]["mountPath"]


def test_the_agents_container_alone_has_the_checks_key() -> None:
    of = check(template=copy.deepcopy(TEMPLATE))
    pod = built(of)
    key = {"secretKeyRef": {"name": f"dlr-key-{of.metadata.uid}", "key": "key"}}
    assert environment(pod)["DLR_JOB_KEY"] == key
    assert "DLR_JOB_KEY" not in environment(pod, 1)


def test_what_the_template_says_stays_and_it_is_not_changed() -> None:
    of = check(template=copy.deepcopy(TEMPLATE))
    pod = built(of)
    assert of.spec.template == TEMPLATE
    spec = pod["spec"]
    assert spec["hostNetwork"] is True and spec["serviceAccountName"] == "fabric"
    assert spec["imagePullSecrets"] == TEMPLATE["spec"]["imagePullSecrets"]
    assert [c.get("command") for c in spec["containers"]] == [COMMAND, ["sleep", "5"]]
    assert environment(pod)["NCCL_IB_HCA"] == "mlx5"
    assert pod["metadata"]["labels"]["team"] == "fabric"
    assert pod["metadata"]["annotations"] == TEMPLATE["metadata"]["annotations"]


def test_a_command_of_the_templates_own_is_left() -> None:
    template = {"spec": {"containers": [{"name": "c", "image": "x", "command": ["mine"]}]}}
    assert built(check(template=template))["spec"]["containers"][0]["command"] == ["mine"]


def test_environment_names_the_check_and_no_job() -> None:
    variables = environment(built(check(template=TEMPLATE)), container=1)
    assert variables["DLR_CHECK_NAME"] == "lab" and "DLR_JOB_NAME" not in variables
    assert variables["DLR_WORKER_NAME"] == "lab-check-3" and variables["DLR_WORKER_INDEX"] == "3"
    assert variables["DLR_HEARTBEAT_SECONDS"] == "10" and variables["DLR_TERMINATION_GRACE_SECONDS"] == "30"
    assert not any(name.startswith("PET_") for name in variables)


@pytest.mark.parametrize("template", [None, TEMPLATE])
def test_it_runs_on_its_node_and_nowhere_else_cordoned_or_not(template: dict[str, Any] | None) -> None:
    spec = built(check(template=template))["spec"]
    assert "nodeName" not in spec  # the scheduler is to see to it that there is room
    assert matches_node(spec, node()) and not matches_node(spec, node(name="node-4"))
    taints = [
        {"key": names.TAINT_UNHEALTHY, "value": "CheckFailed", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
        {"key": "anything", "effect": "NoExecute"},
    ]
    assert untolerated_taint(taints, spec["tolerations"]) is None


def test_a_template_that_excludes_the_node_keeps_it_excluded() -> None:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["nodeSelector"] = {"pool": "a100"}
    assert not matches_node(built(check(template=template))["spec"], node())


@pytest.mark.parametrize("template", [{}, {"template": TEMPLATE}])
@pytest.mark.parametrize(
    ("accelerator", "gpus", "asked"),
    [
        *((None, "8", {GPU: "8"}), (None, "0", {}), (None, None, {})),
        *((GPU, "8", {GPU: "8"}), (GPU, "0", {}), ("none", "8", {})),
    ],
)
def test_all_gpus_of_the_node_are_asked_for_unless_none_are_to_be_used(
    accelerator: str | None, gpus: str | None, asked: dict[str, str], template: dict[str, Any]
) -> None:
    of = {"accelerator": accelerator} if accelerator else {}
    assert limits(built(check(**of, **template), node(gpus))) == asked


def test_gpus_that_the_template_asks_for_are_its_own_business() -> None:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["containers"][1]["resources"] = {"limits": {GPU: 2}}
    pod = built(check(template=template), node("8"))
    assert limits(pod) == {} and pod["spec"]["containers"][1]["resources"] == {"limits": {GPU: 2}}


def test_a_node_that_is_gone_gets_a_pod_that_will_not_be_scheduled() -> None:
    pod = build_check_pod(check(), check_worker(3), None, "x")
    assert limits(pod) == {} and matches_node(pod["spec"], node())


def test_a_template_makes_a_pod_no_part_of_another_job_or_check() -> None:
    labels = {names.LABEL_JOB: "victim", names.LABEL_CHECK: "victim", "team": "fabric"}
    of_check = check(template={**TEMPLATE, "metadata": {"labels": labels}})
    found = built(of_check)["metadata"]["labels"]
    assert names.LABEL_JOB not in found and found["team"] == "fabric"
    assert found[names.LABEL_CHECK] == of_check.metadata.name


@pytest.mark.parametrize(
    ("grace", "pod_ended", "at", "expected"),
    [(None, True, 99, None), (None, False, 0, 10), (None, False, 20, 0), (60, False, 20, 45)],
)
def test_pod_of_a_finished_check_stays_unless_it_outlives_its_grace(
    grace: int | None, pod_ended: bool, at: float, expected: float | None
) -> None:
    spec = {"containers": [{"name": "c", "image": "x"}], "terminationGracePeriodSeconds": grace}
    of = check(
        status={"phase": "Succeeded", "completionTime": NOW},
        **({"template": {"spec": spec}} if grace else {}),
    )
    assignment = CheckAssignment(check_worker(), {}, of, None, "image")
    assert assignment.seconds_to_cleaning(pod_ended=pod_ended, now=later(at)) == expected
