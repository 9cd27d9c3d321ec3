"""The objects of a launched job."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.elasticjob import ElasticJob
from dlr.client.manifest import JobLaunch, new_name, objects
from dlr.client.program import FOLDER, Program
from dlr.kube.errors import UsageError
from localcluster.kubelet.environment import expand

SHIPPED = Program(f"{FOLDER}/train.py", ("--lr", "0.1"), "print()")
IN_IMAGE = Program("/app/train.py")
LIKE: dict[str, Any] = {
    "apiVersion": "elastic.iml.github.io/v1alpha1",
    "kind": "ElasticJob",
    "metadata": {"name": "before", "uid": "u"},
    "spec": {
        "suspend": True,
        "elasticPolicy": {"nodeUnit": 2},
        "replicaSpecs": {
            "worker": {
                "replicas": 4,
                "minReplicas": 2,
                "template": {
                    "spec": {
                        "nodeSelector": {"gpu": "a100"},
                        "containers": [
                            {
                                "name": "trainer",
                                "image": "old",
                                "command": ["python", "x.py"],
                                "args": ["y"],
                                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                                "resources": {"limits": {"nvidia.com/gpu": "8"}},
                                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                            }
                        ],
                        "volumes": [{"name": "data", "emptyDir": {}}],
                    }
                },
            }
        },
    },
}


def container(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"][0]
    return found


def test_code_goes_by_config_map_and_is_what_runs() -> None:
    code, job = objects(JobLaunch(SHIPPED, "n", workers=4, min_workers=2, image="i"))
    assert (code["kind"], code["data"]) == ("ConfigMap", {"code": "print()"})
    assert container(job)["command"] == ["dlr", "run", "--nproc-per-node=1", *(SHIPPED.path, "--lr", "0.1")]
    worker = job["spec"]["replicaSpecs"]["worker"]
    assert (worker["replicas"], worker["minReplicas"]) == (4, 2)
    ElasticJob.model_validate(job)


def test_dollars_of_arguments_and_variables_arrive_as_they_are() -> None:
    words, secret = ("$(HOME)", "$$", "a$b", "$"), "pa$$(A)word"
    made = objects(JobLaunch(Program("/app/$$.py", words), "n", image="i", env={"A": "1", "B": secret}))
    there = container(made[-1])
    assert [expand(word, {"HOME": "/root"}) for word in there["command"][3:]] == ["/app/$$.py", *words]
    assert [expand(each["value"], {"A": "1"}) for each in there["env"]] == ["1", secret]


def test_a_job_like_another_has_all_but_what_is_said() -> None:
    _, job = objects(JobLaunch(SHIPPED, "n", image="new", env={"B": "3"}), LIKE)
    spec = job["spec"]
    assert "suspend" not in spec and spec["elasticPolicy"] == {"nodeUnit": 2}
    assert spec["replicaSpecs"]["worker"]["replicas"] == 4
    pod = spec["replicaSpecs"]["worker"]["template"]["spec"]
    assert pod["nodeSelector"] == {"gpu": "a100"}
    assert [volume["name"] for volume in pod["volumes"]] == ["data", "dlr-code"]
    main = container(job)
    assert (main["name"], main["image"]) == ("trainer", "new")
    assert main["command"][2] == "--nproc-per-node=8", "a process for each GPU"
    assert "args" not in main
    assert main["env"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "3"}]
    assert LIKE["spec"]["suspend"], "the other is left as it is"


def test_the_code_of_the_job_that_it_is_like_stays_there() -> None:
    _, first = objects(JobLaunch(SHIPPED, "first", image="i"))
    _, second = objects(JobLaunch(SHIPPED, "second"), first)
    volumes = second["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["volumes"]
    assert [volume["configMap"]["name"] for volume in volumes] == ["second-code"]
    assert len(container(second)["volumeMounts"]) == 1
    (third,) = objects(JobLaunch(IN_IMAGE, "third"), first)
    assert "volumeMounts" not in container(third)


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (JobLaunch(SHIPPED, "n"), "image"),
        (JobLaunch(SHIPPED, "n", workers=1, min_workers=2, image="i"), "1 worker cannot be fewer than .* 2"),
        (JobLaunch(SHIPPED, "n", workers=3, max_workers=2, image="i"), "3 workers cannot be more than .* 2"),
    ],
)
def test_what_cannot_be_meant_is_refused(launch: JobLaunch, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        objects(launch)


@given(stem=st.text(max_size=60))
def test_new_names_are_names(stem: str) -> None:
    name = new_name(Program(f"/{stem.replace('/', '')}.py"))
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
    assert len(name) <= 44
