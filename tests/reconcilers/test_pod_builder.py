from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from crds import names
from reconcilers.observed.builder import heartbeat_seconds
from reconcilers.worker.job_pod import build_job_pod
from tests.reconcilers.build import job, worker
from tests.reconcilers.pods import environment

DOCS = Path(__file__).parents[2] / "docs"
TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"team": "vision"}, "annotations": {"note": "kept"}},
    "spec": {
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": 77,
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}},
        "volumes": [{"name": "data", "emptyDir": {}}],
        "initContainers": [{"name": "fetch", "image": "x", "command": ["true"]}],
        "containers": [
            {
                "name": "main",
                "image": "x",
                "lifecycle": {"preStop": {"exec": {"command": ["save"]}}},
                "env": [{"name": "MINE", "value": "1"}, {"name": "NODE_RANK", "value": "9"}],
                "resources": {"limits": {"nvidia.com/gpu": 8}},
            },
            {"name": "sidecar", "image": "x"},
        ],
    },
}


def test_what_the_template_says_stays() -> None:
    owner = job(template=TEMPLATE)
    pod = build_job_pod(owner, worker())
    assert owner.spec.replica_specs["worker"].template == TEMPLATE, "it is not changed"
    spec = pod["spec"]
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("OnFailure", 77)
    assert spec["affinity"] == TEMPLATE["spec"]["affinity"]
    assert spec["volumes"][:-1] == TEMPLATE["spec"]["volumes"], "the last one is the token"
    assert spec["containers"][0]["lifecycle"] == TEMPLATE["spec"]["containers"][0]["lifecycle"]
    assert [c["name"] for c in spec["containers"]] == ["main", "sidecar"]
    assert pod["metadata"]["labels"]["team"] == "vision"
    assert pod["metadata"]["annotations"]["note"] == "kept"


def test_the_job_of_the_page_on_images_has_its_pull_secrets_and_volumes_in_its_pod() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "images.md").read_text(), re.DOTALL)
    (manifest,) = (each for each in yaml.safe_load_all(block) if each["kind"] == "ElasticJob")
    template = manifest["spec"]["replicaSpecs"]["worker"]["template"]
    spec = build_job_pod(job(template=template), worker())["spec"]
    assert spec["imagePullSecrets"] == [{"name": "registry"}], "also of the agent's container in the Pod"
    assert spec["volumes"][:-1] == template["spec"]["volumes"]
    mounts = spec["containers"][0]["volumeMounts"]
    assert mounts[:-1] == template["spec"]["containers"][0]["volumeMounts"]


def test_a_templates_own_name_label_is_kept_and_what_selects_pods_is_ours() -> None:
    """vertica-kubernetes#384, netbird#87."""
    own = {names.LABEL_APP: "bert", "team": "a", names.LABEL_INDEX: "9", names.LABEL_MANAGED_BY: "helm"}
    template = {"metadata": {"labels": own}, "spec": TEMPLATE["spec"]}
    labels = build_job_pod(job(template=template), worker(2))["metadata"]["labels"]
    assert (labels[names.LABEL_APP], labels["team"]) == ("bert", "a")
    assert (labels[names.LABEL_INDEX], labels[names.LABEL_MANAGED_BY]) == ("2", names.MANAGER)
    assert build_job_pod(job(), worker(2))["metadata"]["labels"][names.LABEL_APP] == names.APP


def test_environment_speaks_torchruns_and_dlrovers_names_and_the_users_win() -> None:
    variables = environment(
        build_job_pod(job(template=TEMPLATE, replicas=4, worker={"minReplicas": 2}), worker(1))
    )
    assert variables["PET_NNODES"] == "2:4" and variables["PET_RDZV_BACKEND"] == "dlr"
    assert variables["PET_NPROC_PER_NODE"] == "8" and variables["NODE_NUM"] == "4"
    assert variables["NODE_RANK"] == "9" and variables["MINE"] == "1"
    assert variables["WORKER_RANK"] == "1" and variables["DLR_WORKER_NAME"] == "digits-worker-1"
    assert variables["DLR_POD_UID"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert variables["DLR_TERMINATION_GRACE_SECONDS"] == "77"


def test_agents_are_told_how_much_memory_their_checkpoints_have() -> None:
    asked: dict[str, Any] = {"memoryCheckpoint": {"size": "1.5Gi", "replicas": 1}}
    variables = environment(build_job_pod(job(template=TEMPLATE, worker=asked), worker()))
    assert variables["DLR_MEMORY_CHECKPOINT_BYTES"] == str(3 << 29)
    assert variables["DLR_MEMORY_CHECKPOINT_REPLICAS"] == "1"
    assert variables["DLR_MEMORY_CHECKPOINT_PERSIST"] == "0"
    asked["memoryCheckpoint"]["persistOnFailure"] = True
    variables = environment(build_job_pod(job(template=TEMPLATE, worker=asked), worker()))
    assert variables["DLR_MEMORY_CHECKPOINT_PERSIST"] == "1"
    assert "DLR_MEMORY_CHECKPOINT_BYTES" not in environment(build_job_pod(job(template=TEMPLATE), worker()))


def test_agents_are_told_of_spare_processes() -> None:
    wanted = job(template=TEMPLATE, elasticPolicy={"spareProcesses": 1})
    assert environment(build_job_pod(wanted, worker()))["DLR_SPARE_PROCESSES"] == "1"
    assert "DLR_SPARE_PROCESSES" not in environment(build_job_pod(job(template=TEMPLATE), worker()))


def test_every_container_gets_the_environment_and_the_jobs_variables() -> None:
    envs = {"PLAIN": "v", "SECRET": {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}, "MINE": "job"}
    pod = build_job_pod(job(template=TEMPLATE, envs=envs), worker())
    assert environment(pod, 1)["PLAIN"] == "v" and environment(pod, 1)["MINE"] == "job"
    assert environment(pod, 0)["MINE"] == "1"
    assert environment(pod, 1)["SECRET"] == {"secretKeyRef": {"name": "s", "key": "k"}}
    assert "env" in pod["spec"]["initContainers"][0]


@pytest.mark.parametrize(
    ("value", "text"), [(True, "true"), (8, "8"), (0.5, "0.5"), ("True", "True"), ("", "")]
)
def test_a_variable_of_the_job_has_the_text_that_the_user_wrote(value: Any, text: str) -> None:
    assert environment(build_job_pod(job(envs={"SET": value}), worker()))["SET"] == text


def test_the_agents_container_alone_has_the_jobs_key() -> None:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["containers"][0]["env"].append({"name": "DLR_JOB_KEY", "value": "the user's"})
    pod = build_job_pod(job(template=template, envs={"DLR_JOB_KEY": "the user's too"}), worker())
    assert environment(pod)["DLR_JOB_KEY"] == {"secretKeyRef": {"name": "dlr-key-uid-digits", "key": "key"}}
    pod = build_job_pod(job(template=TEMPLATE), worker())
    others = [*pod["spec"]["containers"][1:], *pod["spec"]["initContainers"]]
    assert len(others) == 2
    assert all(each["name"] != "DLR_JOB_KEY" for container in others for each in container["env"])


def test_no_variable_is_defined_twice() -> None:
    pod = build_job_pod(job(template=TEMPLATE, envs={"MINE": "job", "NODE_RANK": "3"}), worker())
    entries = [e["name"] for e in pod["spec"]["containers"][0]["env"]]
    assert len(entries) == len(set(entries))


def test_service_account_is_ours_unless_the_template_names_one() -> None:
    assert build_job_pod(job(), worker())["spec"]["serviceAccountName"] == "dlr-uid-digits"
    own = {"spec": {"serviceAccountName": "mine", "containers": [{"name": "main", "image": "x"}]}}
    spec = build_job_pod(job(template=own), worker())["spec"]
    assert spec["serviceAccountName"] == "mine"
    assert "automountServiceAccountToken" not in spec, "its containers may need what the user lets it do"


def test_the_agents_container_alone_has_the_token_of_our_account() -> None:
    spec = build_job_pod(job(template=TEMPLATE), worker())["spec"]
    assert spec["automountServiceAccountToken"] is False
    (mount,) = spec["containers"][0]["volumeMounts"]
    assert mount["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount" and mount["readOnly"] is True
    (volume,) = (each for each in spec["volumes"] if each["name"] == mount["name"])
    assert [next(iter(source)) for source in volume["projected"]["sources"]] == [
        *("serviceAccountToken", "configMap", "downwardAPI")
    ]
    others = [*spec["containers"][1:], *spec["initContainers"]]
    assert not any(container.get("volumeMounts") for container in others)


@pytest.mark.parametrize("automount", [True, False])
def test_a_template_that_says_whether_tokens_are_mounted_is_followed(automount: bool) -> None:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["automountServiceAccountToken"] = automount
    spec = build_job_pod(job(template=template), worker())["spec"]
    assert spec["automountServiceAccountToken"] is automount
    assert "volumeMounts" not in spec["containers"][0]


def test_a_template_that_mounts_a_token_of_its_own_is_left_alone() -> None:
    template = copy.deepcopy(TEMPLATE)
    mount = {"name": "data", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount/"}
    template["spec"]["containers"][0]["volumeMounts"] = [mount]
    spec = build_job_pod(job(template=template), worker())["spec"]
    assert spec["containers"][0]["volumeMounts"] == [mount]
    assert "automountServiceAccountToken" not in spec


@pytest.mark.parametrize("value", [None, ""])
def test_what_a_template_leaves_empty_gets_our_default_and_not_kubernetes_own(value: Any) -> None:
    """As a chart writes it that has no value for it; with Always, a finished training would start again."""
    container = {"name": "main", "image": "x", "terminationMessagePolicy": value}
    template = {"spec": {"containers": [container], "restartPolicy": value}}
    spec = build_job_pod(job(template=template), worker())["spec"]
    assert spec["restartPolicy"] == "Never"
    assert spec["containers"][0]["terminationMessagePolicy"] == "FallbackToLogsOnError"


@given(st.integers(0, 10_000), st.floats(5, 3_600))
def test_heartbeats_fit_thrice_into_the_time_out_and_never_flood(workers: int, timeout: float) -> None:
    period = heartbeat_seconds(workers, timeout)
    assert 0 < period <= timeout / 3
    assert period == timeout / 3 or workers / period <= 1_000
