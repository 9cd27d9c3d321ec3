"""Public manifests of Trainer, training-operator, JobSet and DLRover, each as an ElasticJob."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from crds.elasticjob import ElasticJob
from crds.names import API_VERSION
from dlr.convert import NotConvertible, convert
from dlr.convert.command import launched
from tests.cli.scripted import JSON, Dlr

FOLDER = Path(__file__).parent / "manifests"
MANIFESTS = sorted(FOLDER.glob("*.yaml"))


def read(name: str) -> list[JSON]:
    return list(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()))


def worker_of(job: JSON) -> JSON:
    found: JSON = job["spec"]["replicaSpecs"]["worker"]
    return found


def command_of(job: JSON) -> list[str]:
    found: list[str] = worker_of(job)["template"]["spec"]["containers"][0]["command"]
    return found


def only(name: str) -> tuple[JSON, list[str]]:
    """The ElasticJob of a manifest, and the paths of what is lost."""
    found = convert(read(name))
    ((job, remarks),) = found.jobs
    ElasticJob.model_validate(job)
    assert len(found.documents) == 1, "a runtime goes into its job"
    return job, [remark.path for remark in remarks if remark.is_loss]


@pytest.mark.parametrize(
    ("name", "replicas", "least", "restarts", "losses"),
    [
        ("trainer-pytorch-simple", 1, None, None, []),
        ("trainer-with-runtime", 1, None, None, []),
        ("trainer-runtime-patches", 2, None, None, []),
        ("trainer-kueue", 3, None, None, []),
        ("operator-simple", 2, None, None, []),
        ("operator-elastic-echo", 2, 1, 100, []),
        ("operator-elastic-imagenet", 2, 1, 100, ["spec.elasticPolicy.metrics"]),
        (
            *("operator-mnist-gloo", 2, None, None),
            ["spec.pytorchReplicaSpecs.Worker.template.spec.containers[pytorch].command"],
        ),
        ("jobset-cnn-mnist", 4, None, 0, []),
        ("jobset-resnet", 4, None, 0, []),
        ("dlrover-mnist", 4, None, 3, []),
        (
            *("dlrover-chaos", 4, 3, 1),
            ["spec.replicaSpecs.worker.template.spec.containers[main].command"],
        ),
    ],
)
def test_each_becomes_an_elastic_job_with_its_counts_and_losses(
    name: str, replicas: int, least: int | None, restarts: int | None, losses: list[str]
) -> None:
    job, lost = only(name)
    worker = worker_of(job)
    found = worker["replicas"], worker.get("minReplicas"), worker.get("restartCount")
    assert (*found, lost) == (replicas, least, restarts, losses)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("operator-simple", ["dlr", "run", "--nproc-per-node=1", "/opt/mnist/src/mnist.py", "--epochs=1"]),
        ("operator-elastic-echo", ["python", "-m", "torch.distributed.run", "./echo.py"]),
        (
            "jobset-cnn-mnist",
            ["bash", "-xc", "torchrun --nproc_per_node=1 mnist.py --epochs=1 --log-interval=1\n"],
        ),
    ],
)
def test_commands_lose_only_who_meets_whom(name: str, command: list[str]) -> None:
    assert command_of(only(name)[0]) == command


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """(path, value) of all scalars."""
    if isinstance(value, dict):
        return [
            leaf for key, each in value.items() for leaf in leaves(each, f"{path}.{key}" if path else key)
        ]
    if isinstance(value, list):
        return [leaf for number, each in enumerate(value) for leaf in leaves(each, f"{path}[{number}]")]
    return [(path, value)]


def objects(value: Any) -> list[JSON]:
    """All objects in it, itself first."""
    if isinstance(value, dict):
        return [value, *(found for each in value.values() for found in objects(each))]
    if isinstance(value, list):
        return [found for each in value for found in objects(each)]
    return []


@given(data=st.data(), path=st.sampled_from(MANIFESTS))
def test_no_field_is_dropped_in_silence(data: st.DataObject, path: Path) -> None:
    """A field that nobody knows, anywhere in the manifest, is carried over or told of."""
    documents = list(yaml.safe_load_all(path.read_text()))
    (document,) = [each for each in documents if each["kind"] not in ("TrainingRuntime",)]
    places = objects(document)
    place = data.draw(st.integers(0, len(places) - 1))
    places[place]["zzUnknown"] = "kept-or-told"
    ((job, remarks),) = convert(copy.deepcopy(documents)).jobs
    carried = any(value == "kept-or-told" for _, value in leaves(job))
    told = any("zzUnknown" in remark.path for remark in remarks)
    at = _path_of(document, places[place])
    paths = [re.sub(r"containers\[\w+\]", "containers[0]", remark.path) for remark in remarks]
    told_with_its_parent = any(at.startswith(path) for path in paths)
    assert carried or told or told_with_its_parent, (place, remarks)


def _path_of(document: JSON, wanted: JSON) -> str:
    """Where an object is, from the manifest's root."""

    def look(value: Any, path: str) -> str | None:
        if value is wanted:
            return path
        pairs = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        )
        for key, each in pairs:
            step = f"[{key}]" if isinstance(key, int) else f".{key}" if path else key
            if (found := look(each, f"{path}{step}")) is not None:
                return found
        return None

    return look(document, "") or ""


JOB: JSON = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "plain"},
    "spec": {
        "completions": 4,
        "parallelism": 4,
        "completionMode": "Indexed",
        "backoffLimit": 6,
        "ttlSecondsAfterFinished": 60,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}},
                {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [4]}},
            ]
        },
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "subdomain": "torch",
                "containers": [
                    {
                        "name": "main",
                        "image": "i",
                        "command": ["/opt/conda/bin/torchrun"],
                        "args": [
                            *("--nnodes=4", "--nproc-per-node", "2", "--rdzv-backend=c10d"),
                            *("--rdzv-endpoint", "plain-0.torch:29400", "--max-restarts=2"),
                            *("-m", "train", "--max-restarts=9"),
                        ],
                    }
                ],
            }
        },
    },
}


def test_of_two_limits_of_restarts_the_one_that_does_not_count_is_named() -> None:
    run = JOB["spec"]["template"]["spec"]
    policy = {"elasticPolicy": {"maxRestarts": 100}, "runPolicy": {"backoffLimit": 6}}
    worker = {"Worker": {"replicas": 2, "template": {"spec": run}}}
    operator = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "x"}}
    ((job, remarks),) = convert([operator | {"spec": policy | {"pytorchReplicaSpecs": worker}}]).jobs
    assert job["spec"]["replicaSpecs"]["worker"]["restartCount"] == 6
    said = [str(remark) for remark in remarks]
    assert "spec.elasticPolicy.maxRestarts: 100: spec.runPolicy.backoffLimit, 6, counts" in said
    assert any("--max-restarts=2: spec.runPolicy.backoffLimit, 6, counts" in each for each in said)


def test_plain_job_with_torchrun() -> None:
    ((job, remarks),) = convert([JOB]).jobs
    ElasticJob.model_validate(job)
    assert command_of(job) == [
        *("/opt/conda/bin/torchrun", "--nproc-per-node", "2", "-m", "train", "--max-restarts=9")
    ]
    assert worker_of(job)["restartCount"] == 6
    assert job["spec"]["runPolicy"] == {"ttlSecondsAfterFinished": 60}
    assert [remark.path for remark in remarks if remark.is_loss] == ["spec.podFailurePolicy"]


def test_a_label_by_which_dlr_finds_its_pods_is_left_out_of_the_template_and_named() -> None:
    job = copy.deepcopy(JOB)
    job["spec"]["template"]["metadata"] = {"labels": {"app.kubernetes.io/managed-by": "Helm", "team": "x"}}
    ((made, remarks),) = convert([job]).jobs
    assert worker_of(made)["template"]["metadata"]["labels"] == {"team": "x"}
    assert "spec.template.metadata.labels" in [remark.path for remark in remarks if not remark.is_loss]


TRAINJOB = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "TrainJob",
    "metadata": {"name": "t"},
    "spec": {"runtimeRef": {"name": "ours"}},
}


def job_of(containers: Any) -> JSON:
    return {**JOB, "spec": {"template": {"spec": {"containers": containers}}}}


def runtime_of(spec: Any) -> JSON:
    kind = {"apiVersion": TRAINJOB["apiVersion"], "kind": "ClusterTrainingRuntime"}
    return {**kind, "metadata": {"name": "ours"}, "spec": spec}


@pytest.mark.parametrize(
    ("documents", "says"),
    [
        ([], "there is none of TrainJob, PyTorchJob, JobSet, Job, ElasticJob in it"),
        ([{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}], "there is none of"),
        ([{**JOB, "metadata": {}}], "Job : metadata.name is missing"),
        ([{**JOB, "spec": {}}], "spec.template.spec.containers is empty"),
        (
            [{**JOB, "spec": {**JOB["spec"], "parallelism": "4"}}],
            "spec.parallelism is '4', which is no whole",
        ),
        ([{**TRAINJOB, "spec": {}}], "spec.runtimeRef.name is missing"),
        ([job_of({"name": "a", "image": "i"})], "spec.template.spec.containers is no list."),
        (
            [job_of([{"command": "torchrun train.py"}])],
            "spec.template.spec.containers[0].command is no list.",
        ),
        ([job_of([{"env": {"A": "1"}}])], "spec.template.spec.containers[0].env is no list."),
        ([job_of([{"env": [{"name": ["A"]}]}])], "spec.template.spec.containers[0].env[0].name is no text."),
        (
            [{**JOB, "apiVersion": API_VERSION, "kind": "ElasticJob", "spec": {"nodeCheck": [{}]}}],
            "spec.nodeCheck is no object.",
        ),
        ([TRAINJOB, runtime_of({"template": []})], "ClusterTrainingRuntime ours.spec.template is no object."),
        (
            [{"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": "m"}}],
            "MPIJob m: this kind is not converted: see docs/from-others.md for Horovod",
        ),
        ([TRAINJOB], "its ClusterTrainingRuntime 'ours' is not among these files"),
    ],
)
def test_what_cannot_be_converted_is_refused_in_one_sentence(documents: list[JSON], says: str) -> None:
    with pytest.raises(NotConvertible) as refused:
        convert(documents)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("text", "converted"),
    [
        ('torchrun --rdzv-id "my job" --nnodes=2 train.py "a b"', 'torchrun train.py "a b"'),
        ("torchrun --rdzv-id=$(date +%s) --nnodes=2 train.py; date", "torchrun train.py; date"),
        ("torchrun --node_rank=$(hostname | sed 's/.*-//') train.py | tee a", "torchrun train.py | tee a"),
        ('torchrun --node_rank="$(hostname | cut -d"-" -f3)" train.py', "torchrun train.py"),
        ("torchrun --node_rank=${RANK:-0 } --nnodes=$((N + 1)) train.py", "torchrun train.py"),
        ("torchrun \\\n  --nnodes=2 \\\n  train.py", "torchrun \\\n  \\\n  train.py"),
        ("torchrun --nnodes=2\ntrain.py --nnodes=3", "torchrun \ntrain.py --nnodes=3"),
        ("# a torchrun for all\ntorchrun --nnodes=2 a.py", "# a torchrun for all\ntorchrun a.py"),
        ("python3 -u -m torch.distributed.run --nnodes=2 a.py", "python3 -u -m torch.distributed.run a.py"),
        ("torchrun --rdzv-id 'never closed", "torchrun "),
    ],
)
def test_flags_are_cut_out_of_a_shells_text_as_the_shell_divides_it(text: str, converted: str) -> None:
    assert launched(["bash", "-c", text], None).command == ["bash", "-c", converted]


@pytest.mark.parametrize("launcher", [["torchrun"], ["bash", "-c"]])
def test_a_variable_of_the_old_operator_does_not_stay_as_the_number_of_processes(launcher: list[str]) -> None:
    flag, script = "--nproc_per_node=$PET_NPROC_PER_NODE", "train.py"
    words = [*launcher, f"torchrun {flag} {script}"] if "-c" in launcher else [*launcher, flag, script]
    assert "PET" not in " ".join(launched(words, None).command)
    assert "--nproc-per-node=8 train.py" in " ".join(launched(words, "8").command)


def test_command_prints_yaml_and_tells_losses(dlr: Dlr, tmp_path: Path) -> None:
    done = dlr("convert", "-f", str(FOLDER / "operator-elastic-imagenet.yaml"))
    assert done.exit_code == 3
    (job,) = yaml.safe_load_all(done.out)
    assert job["kind"] == "ElasticJob"
    assert done.err.startswith("dlr: not carried over: spec.elasticPolicy.metrics: make a Horizontal")
    assert done.out.startswith("# Not carried over: spec.elasticPolicy.metrics")
    whole = dlr("convert", "-f", str(FOLDER / "operator-simple.yaml"))
    assert (whole.exit_code, whole.err) == (0, "")
    (tmp_path / "pod.yaml").write_text("apiVersion: v1\nkind: Pod\n")
    refused = dlr("convert", "-f", str(tmp_path / "pod.yaml"))
    assert (refused.exit_code, refused.out, len(refused.err.splitlines())) == (1, "", 1)


def test_one_of_several_that_cannot_be_converted_keeps_no_other_back(dlr: Dlr, tmp_path: Path) -> None:
    broken = {**JOB, "metadata": {"name": "broken"}, "spec": {}}
    path = tmp_path / "both.yaml"
    path.write_text(yaml.safe_dump_all([broken, JOB]))
    done = dlr("convert", "-f", str(path))
    assert done.exit_code == 3
    assert [each["metadata"]["name"] for each in yaml.safe_load_all(done.out)] == ["plain"]
    why = "Job broken: spec.template.spec.containers is empty"
    assert done.out.startswith(f"# Not converted: {why}") and f"dlr: not converted: {why}" in done.err
    path.write_text(yaml.safe_dump_all([broken, broken]))
    neither = dlr("convert", "-f", str(path))
    assert (neither.exit_code, neither.out, neither.err.count(why)) == (1, "", 2)
