"""The artefacts of `make release`, each as a user has it: without this repository."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tenacity
import yaml

import deploy
from crds.release import VERSION
from deploy.kustomize import render
from e2e.bare_venv import BareVenv
from release.images import Layout
from tests.release.conftest import find_uv, make
from tests.release.helm import Helm, HelmFailed

ROOT = Path(__file__).parents[2]
JSON = dict[str, Any]

pytestmark = pytest.mark.real

WHEEL = f"dlr_training-{VERSION}-py3-none-any.whl"
IMAGES = {
    "images": {
        "controller": "r.example/c@sha256:" + "0" * 64,
        "agent": "r.example/a:1",
        "worker": "r.example/w:1",
    }
}
TRAIN = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(f"rank {os.environ['RANK']} of {int(total)}", flush=True)
"""


def test_a_second_release_of_the_commit_has_the_same_sums(dist: Path, base: Path, tmp_path: Path) -> None:
    """Also where another version of a package stands beside the Python that makes it."""
    other = shutil.copytree(Path(tenacity.__file__).parent, tmp_path / "packages" / "tenacity")
    (other / "__init__.py").write_text(f"# Newer.\n{(other / '__init__.py').read_text()}")
    make(tmp_path / "again", base, PYTHONPATH=str(other.parent))
    assert (tmp_path / "again" / "SHA256SUMS").read_text() == (dist / "SHA256SUMS").read_text()


def test_the_wheel_from_the_sdist_has_every_file_of_the_repository(dist: Path) -> None:
    expected = runpy.run_path(str(ROOT / "setup.py"))["wheel_files"](ROOT)
    with zipfile.ZipFile(dist / WHEEL) as wheel:
        assert {name: wheel.read(name) for name in wheel.namelist() if name.startswith("dlr/")} == expected
        (generator,) = (wheel.read(name).decode() for name in wheel.namelist() if name.endswith("/WHEEL"))
    (pinned,) = re.findall(
        r"^setuptools==(\S+)", (ROOT / "kind/requirements/build.txt").read_text(), re.MULTILINE
    )
    assert f"Generator: setuptools ({pinned})" in generator


def test_images_list_what_is_in_them(dist: Path, tmp_path: Path) -> None:
    for name, packages in (
        ("controller", {"kubernetes", "aiohttp"}),
        ("agent", {"tenacity", "urllib3", "nvidia-ml-py"}),
    ):
        stem = f"dlr-{name}-{VERSION}-amd64"
        listed = {each["name"] for each in json.loads((dist / f"{stem}.cdx.json").read_text())["components"]}
        assert listed >= packages | {"dlr-training"} and "torch" not in listed
        with tarfile.open(dist / f"{stem}.oci.tar") as tar:
            tar.extractall(tmp_path / name, filter="data")
        layout = Layout(tmp_path / name)
        _, manifest = layout.manifest("amd64")
        with tarfile.open(layout.blob(manifest["layers"][-1]["digest"])) as layer:
            paths = set(layer.getnames())
        wanted = {
            "controller": {
                "usr/local/bin/dlr",
                "opt/dlr/dlr/cli.py",
                "opt/dlr/dlr/_internal/deploy/namespace.yaml",
            },
            "agent": {"opt/dlr-agent/dlr.pyz", "opt/dlr-agent/bin/torchrun"},
        }
        assert wanted[name] < paths
        assert not [path for path in paths if path.endswith((".pyc", "direct_url.json"))]


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of a venv with the wheel, its requirements from the registry, and torch."""
    folder = tmp_path_factory.mktemp("wheel")
    torch = BareVenv(folder / "torch")
    venv.EnvBuilder(symlinks=True).create(folder / "venv")
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (of_torch,) = (torch.folder / "lib").glob("python*/site-packages")
    (packages / "torch.pth").write_text(f"{of_torch}\n")
    bin_folder = folder / "venv" / "bin"
    command = [
        find_uv(),
        "pip",
        "install",
        "--quiet",
        "--python",
        bin_folder / "python3",
        f"{dist / WHEEL}[cli]",
    ]
    subprocess.run(command, check=True, timeout=300, cwd=folder)
    return bin_folder


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "train.py").write_text(TRAIN)
    yield tmp_path


class Installed:
    """The `dlr` of a venv, on a cluster of its own, in a folder with nothing but a script."""

    def __init__(self, bin_folder: Path, folder: Path) -> None:
        self._program = bin_folder / "dlr"
        self.home = folder / "home"
        self._folder = folder
        self._environment = {
            "PATH": f"{bin_folder}:{os.defpath}",
            "HOME": str(folder),
            "DLR_HOME": str(self.home),
            "KUBECONFIG": str(self.home / "kubeconfig"),
        }

    def __call__(self, *words: str) -> str:
        done = subprocess.run(
            [self._program, *words],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout


@pytest.fixture
def dlr(installed: Path, home: Path) -> Iterator[Installed]:
    command = Installed(installed, home)
    command("up", "--nodes", "2")
    yield command
    command("down")


def test_the_wheel_alone_brings_a_cluster_and_a_first_job(dlr: Installed) -> None:
    dlr("job", "launch", "train.py", "--name", "train", "--workers", "2")
    assert "rank 0 of 2" in dlr("job", "logs", "train", "--follow")
    assert "Succeeded" in dlr("job", "status", "train", "--watch")
    assert yaml.safe_load(dlr("manifests").partition("---")[0])["kind"] == "CustomResourceDefinition"


def by_name(rendered: list[JSON]) -> dict[tuple[str, str, str], JSON]:
    """What Helm applies, without the annotation that keeps CRDs."""
    found = {}
    for document in rendered:
        metadata = document["metadata"]
        if document["kind"] == "CustomResourceDefinition":
            assert metadata.pop("annotations") == {"helm.sh/resource-policy": "keep"}
        found[document["kind"], metadata.get("namespace", ""), metadata["name"]] = document
    return found


def expected(*more: JSON, **options: Any) -> dict[tuple[str, str, str], JSON]:
    return {
        (document["kind"], document["metadata"].get("namespace", ""), document["metadata"]["name"]): document
        for document in [*deploy.documents(**options), *more]
        if document["kind"] != "Namespace"
    }


def test_helm_finds_no_fault_with_the_chart(helm: Helm, chart: Path) -> None:
    found = helm("lint", chart).splitlines()
    assert [line for line in found if line.startswith("[")] == ["[INFO] Chart.yaml: icon is recommended"]


def test_default_values_render_what_dlr_install_applies_but_for_the_namespace(
    helm: Helm, chart: Path
) -> None:
    assert by_name(helm.template(chart, {}, namespace=deploy.DEFAULT_NAMESPACE)) == expected()


@pytest.mark.parametrize(
    ("jobs_namespace", "network", "priority"), [("team-a", True, True), ("", True, False)]
)
def test_values_render_what_the_options_of_dlr_install_apply(
    helm: Helm, chart: Path, jobs_namespace: str, network: bool, priority: bool
) -> None:
    values = {"jobsNamespace": jobs_namespace, "networkPolicy": network, "priorityClass": priority, **IMAGES}
    images = IMAGES["images"]
    assert by_name(helm.template(chart, values, name="x", namespace="1234")) == expected(
        namespace="1234",
        image=images["controller"],
        check_image=images["worker"],
        agent_image=images["agent"],
        jobs_namespace=jobs_namespace or None,
        network_policy=network,
        priority_class=priority,
    )


def test_metrics_are_what_kustomize_renders(helm: Helm, chart: Path) -> None:
    metrics = render(Path(deploy.__file__).parent / "metrics")
    rendered = helm.template(chart, {"metrics": True}, namespace=deploy.DEFAULT_NAMESPACE)
    assert by_name(rendered) == expected(*metrics)


def test_values_leave_their_objects_out(helm: Helm, chart: Path) -> None:
    for value, kinds in {
        "crds": {"CustomResourceDefinition"},
        "admissionPolicies": {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"},
        "flowSchemas": {"FlowSchema"},
    }.items():
        left = by_name(helm.template(chart, {value: False}, namespace=deploy.DEFAULT_NAMESPACE))
        assert left == {key: document for key, document in expected().items() if key[0] not in kinds}, value


def test_two_releases_have_no_object_in_common(helm: Helm, chart: Path) -> None:
    everything = {"networkPolicy": True, "priorityClass": True, "metrics": True}
    first, second = (
        by_name(helm.template(chart, {**everything, **own}, namespace=f"dlr-{own['jobsNamespace']}"))
        for own in (
            {"jobsNamespace": "team-a"},
            {"jobsNamespace": "team-b", "crds": False, "userRoles": False},
        )
    )
    assert not first.keys() & second.keys()


def test_one_replica_has_no_disruption_budget_that_would_keep_its_node(helm: Helm, chart: Path) -> None:
    rendered = by_name(helm.template(chart, {"replicas": 1}, namespace=deploy.DEFAULT_NAMESPACE))
    assert "PodDisruptionBudget" not in {kind for kind, _, _ in rendered}
    assert rendered["Deployment", deploy.DEFAULT_NAMESPACE, "dlr-controller"]["spec"]["replicas"] == 1


def controller_of(documents: list[JSON]) -> JSON:
    (deployment,) = (each for each in documents if each["kind"] == "Deployment")
    spec: JSON = deployment["spec"]["template"]["spec"]
    return spec


POD_VALUES: JSON = {
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
}


def test_values_say_where_the_controllers_pods_run_and_with_what(helm: Helm, chart: Path) -> None:
    resources = {"limits": {"memory": "4Gi"}}
    sent = {"name": "OTEL_EXPORTER_OTLP_HEADERS", "valueFrom": {"secretKeyRef": {"name": "c", "key": "k"}}}
    more = {"extraArgs": ["--cordon-limit=5"], "extraEnv": [sent]}
    values = {**POD_VALUES, "resources": resources, "cordon": "report", **more}
    plain, found = (controller_of(helm.template(chart, each, namespace="n")) for each in ({}, values))
    (container,) = plain["containers"]
    arguments = [*container["args"], "--cordon=report", "--cordon-limit=5"]
    wanted = {**container, "resources": {**container["resources"], **resources}, "args": arguments}
    wanted["env"] = [sent, *container["env"]]
    assert found == {**plain, **POD_VALUES, "containers": [wanted]}


def test_a_controller_of_one_namespace_never_cordons(helm: Helm, chart: Path) -> None:
    values = {"jobsNamespace": "team-a", "cordon": "report"}
    (container,) = controller_of(helm.template(chart, values, namespace="n"))["containers"]
    assert [each for each in container["args"] if each.startswith("--cordon")][-1] == "--cordon=off"


def test_helm_test_runs_the_doctor_where_the_controllers_run(helm: Helm, chart: Path) -> None:
    values = {**POD_VALUES, **IMAGES}
    rendered = helm.template(chart, values, "--show-only", "templates/tests/doctor.yaml", namespace="n")
    assert all(each["metadata"]["annotations"]["helm.sh/hook"] == "test" for each in rendered)
    (spec,) = (each["spec"] for each in rendered if each["kind"] == "Pod")
    (container,) = spec["containers"]
    assert container["image"] == IMAGES["images"]["controller"]
    assert container["command"] == ["dlr", "doctor", "--namespace=n"]
    assert {key: spec[key] for key in POD_VALUES} == POD_VALUES


def test_values_that_the_chart_does_not_have_are_refused(helm: Helm, chart: Path) -> None:
    wrong = ({"replica": 3}, {"replicas": 0}, {"images": {"agent": ""}}, {"cordon": "maybe"})
    for values in (*wrong, {"imagePullSecrets": ["registry"]}, {"nodeSelector": {"pool": 1}}):
        with pytest.raises(HelmFailed, match="values don't meet the specifications of the schema"):
            helm.template(chart, values, namespace=deploy.DEFAULT_NAMESPACE)
