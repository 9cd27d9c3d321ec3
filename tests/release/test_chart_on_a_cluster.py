"""A platform engineer's round with the chart: install, a tenant's rights, upgrade and rollback under a running
job, uninstall, and install again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from crds.release import VERSION
from deploy import DEFAULT_NAMESPACE
from e2e.cluster import default_kubectl
from localcluster import supervisor
from localcluster.kubelet.container import Isolation, detect_isolation
from localcluster.paths import Home
from reconcilers.observed.options import DEFAULT_AGENT_PATH
from tests.deploy.api_server import Server, eventually
from tests.release.deployments import DeploymentController, UnpackedImage
from tests.release.helm import Helm, HelmFailed

JSON = dict[str, Any]

pytestmark = [pytest.mark.real, pytest.mark.named]

TENANT_NAMESPACE = "team-a"
IMAGES = {name: f"r.example/dlr-{name}:{VERSION}" for name in ("controller", "agent", "worker")}
NEXT_VERSION = "0.1.1"
NEXT_IMAGE = f"r.example/dlr-controller:{NEXT_VERSION}"
CRDS = [f"{name}.elastic.iml.github.io" for name in ("elasticjobs", "elasticworkers", "nodechecks")]
CRD_FOLDER = Path(__file__).parents[2] / "crds/yaml"
TRAIN = """
import json, os, pathlib, time
import torch
import torch.distributed as dist

folder = pathlib.Path(os.environ["FOLDER"])
dist.init_process_group("gloo")
saved = folder / "step"
step = int(saved.read_text()) if saved.exists() else 0
while not (folder / "enough").exists() or step < 10:
    total = torch.ones(1)
    dist.all_reduce(total)
    step += 1
    if dist.get_rank() == 0:
        with (folder / "steps").open("a") as lines:
            lines.write(json.dumps({"step": step, "world": int(total), "pid": os.getpid()}) + "\\n")
        scratch = folder / "scratch"
        scratch.write_text(str(step))
        scratch.rename(saved)
    time.sleep(0.1)
    dist.barrier()
"""


@dataclass(frozen=True)
class Person:
    """Somebody with a kubeconfig."""

    kubeconfig: Path

    def call(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"KUBECONFIG": str(self.kubeconfig)}
        return subprocess.run(
            words, input=stdin, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    def kubectl(self, *words: str, stdin: JSON | None = None) -> str:
        done = self.call(default_kubectl(), *words, stdin=None if stdin is None else yaml.safe_dump(stdin))
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def refused(self, *words: str, stdin: JSON | None = None) -> str:
        done = self.call(default_kubectl(), *words, stdin=None if stdin is None else yaml.safe_dump(stdin))
        assert done.returncode != 0, (words, done.stdout)
        return done.stderr

    def dlr(self, *words: str) -> str:
        done = self.call(str(Path(sys.executable).with_name("dlr")), *words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout


@dataclass(frozen=True)
class BareCluster:
    """The embedded cluster without dlr, and what runs the Pods of the chart's Deployment there."""

    server: Server
    admin: Person
    folder: Path

    def tenant(self) -> Person:
        """Somebody with the rights that docs/security.md gives people: `edit` in a namespace."""
        self.admin.kubectl("create", "namespace", TENANT_NAMESPACE)
        self.admin.kubectl("create", "serviceaccount", "somebody", "-n", TENANT_NAMESPACE)
        account = f"--serviceaccount={TENANT_NAMESPACE}:somebody"
        self.admin.kubectl(
            "create", "rolebinding", "edit", "--clusterrole=edit", account, "-n", TENANT_NAMESPACE
        )
        token = self.server.token(TENANT_NAMESPACE, "somebody")
        return Person(self.server.kubeconfig_of(token, self.folder / "tenant"))


@pytest.fixture
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareCluster]:
    folder = tmp_path_factory.mktemp("c")
    home = Home(folder / "home")
    supervisor.up(
        home,
        nodes=2,
        cpus_per_node="8",
        memory_per_node="32Gi",
        gpus_per_node=0,
        port=0,
        manifests=[],
        addons=[],
    )
    try:
        yield BareCluster(Server(home.kubeconfig, folder), Person(home.kubeconfig), folder)
    finally:
        supervisor.down(home)


@pytest.fixture
def controllers(bare: BareCluster, dist: Path, tmp_path: Path) -> Iterator[None]:
    archive = f"dlr-{{}}-{VERSION}-amd64.oci.tar"
    controller, agent = (
        UnpackedImage.of(dist / archive.format(name), tmp_path / name) for name in ("controller", "agent")
    )
    options = ["--no-inject-agent"]
    if detect_isolation(tmp_path) is not Isolation.NONE:
        mount_point = bare.folder / "dlr"
        mount_point.mkdir()
        options = [f"--agent-path={agent.root}{DEFAULT_AGENT_PATH}", f"--agent-mount-path={mount_point}"]
    images = dict.fromkeys((IMAGES["controller"], NEXT_IMAGE), controller)
    player = DeploymentController(bare.server, DEFAULT_NAMESPACE, "dlr-controller", images, options)
    yield
    player.stop()


@dataclass(frozen=True)
class Training:
    """A job of the tenant that trains until it is told that it is enough."""

    tenant: Person
    folder: Path

    def submit(self) -> None:
        script = self.folder / "train.py"
        script.write_text(TRAIN)
        container = {
            "name": "main",
            "image": "any",
            "command": ["torchrun", str(script)],
            "env": [{"name": "FOLDER", "value": str(self.folder)}, {"name": "OMP_NUM_THREADS", "value": "1"}],
            "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        }
        template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
        job = {
            "apiVersion": "elastic.iml.github.io/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": "train"},
            "spec": {"replicaSpecs": {"worker": {"replicas": 2, "template": template}}},
        }
        self.tenant.kubectl("apply", "-n", TENANT_NAMESPACE, "-f", "-", stdin=job)

    def steps(self) -> list[JSON]:
        try:
            lines = (self.folder / "steps").read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def goes_on(self, *, world: int = 2) -> None:
        """Wait until it has made five steps more in a world of that size."""
        before = len(self.steps())

        def trains() -> bool:
            new = [each for each in self.steps()[before:] if each["world"] == world]
            return len(new) >= 5

        eventually(f"training goes on with {world} workers", trains)

    def status(self) -> JSON:
        text = self.tenant.kubectl("get", "ej", "train", "-n", TENANT_NAMESPACE, "-o", "json")
        found: JSON = json.loads(text)["status"]
        return found

    def finish(self) -> None:
        (self.folder / "enough").touch()
        eventually("the job succeeds", lambda: self.status().get("phase") == "Succeeded")


def assert_not_interrupted(steps: list[JSON]) -> None:
    """One process made all of the steps, each once."""
    assert len({each["pid"] for each in steps}) == 1
    assert [each["step"] for each in steps] == [*range(steps[0]["step"], steps[0]["step"] + len(steps))]


def leader(bare: BareCluster) -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{DEFAULT_NAMESPACE}/leases/dlr-controller"
    holder: str = bare.server.as_admin("GET", path)["spec"].get("holderIdentity") or ""
    return holder


def chart_of_next_version(helm: Helm, chart: Path, folder: Path) -> Path:
    with tarfile.open(chart) as tar:
        tar.extractall(folder, filter="data")
    versions = ("--version", NEXT_VERSION, "--app-version", NEXT_VERSION)
    helm("package", folder / "dlr", *versions, "--destination", folder)
    return folder / f"dlr-{NEXT_VERSION}.tgz"


def install_over_crds(bare: BareCluster, helm: Helm, words: tuple[str | Path, ...], values: JSON) -> str:
    """Install the chart where the CRDs are there without it, as `dlr up` and `dlr uninstall` leave them."""
    bare.admin.kubectl("create", "-f", str(CRD_FOLDER))
    with pytest.raises(HelmFailed, match="invalid ownership metadata"):
        helm("install", *words, values=values)
    return helm("install", *words, "--take-ownership", "--force-conflicts", values=values)


@pytest.mark.usefixtures("controllers")
def test_a_platform_engineers_round(bare: BareCluster, helm: Helm, chart: Path, tmp_path: Path) -> None:
    helm = Helm(helm.program, helm.home, bare.admin.kubeconfig)
    place = ("--namespace", DEFAULT_NAMESPACE)
    patiently = (*place, "--wait", "--timeout", "300s")
    values: JSON = {"images": IMAGES}

    notes = install_over_crds(bare, helm, ("dlr", chart, *patiently, "--create-namespace"), values)
    assert f"dlr {VERSION} is installed in namespace {DEFAULT_NAMESPACE}" in notes
    advised = notes[notes.index("kubectl label") :].replace("\\\n", " ").split()
    bare.admin.kubectl(*advised[1:])
    bare.admin.dlr("doctor", "-n", DEFAULT_NAMESPACE)
    helm("test", "dlr", *place)

    tenant = bare.tenant()
    training = Training(tenant, tmp_path)
    training.submit()
    training.goes_on()
    assert "Running" in tenant.dlr("job", "status", "train", "-n", TENANT_NAMESPACE)

    first = leader(bare)
    newer = {**values, "priorityClass": True, "networkPolicy": True}
    newer["images"] = {**IMAGES, "controller": NEXT_IMAGE}
    helm("upgrade", "dlr", chart_of_next_version(helm, chart, tmp_path / "next"), *patiently, values=newer)
    (release,) = helm.releases(DEFAULT_NAMESPACE)
    assert (release["status"], release["app_version"]) == ("deployed", NEXT_VERSION)
    bare.admin.kubectl("get", "networkpolicy", "dlr-controller", "-n", DEFAULT_NAMESPACE)
    second = eventually("the new controller leads", lambda: (now := leader(bare)) not in ("", first) and now)
    training.goes_on()
    assert_not_interrupted(training.steps())

    tenant.kubectl("scale", "ej", "train", "--replicas=3", "-n", TENANT_NAMESPACE)
    training.goes_on(world=3)

    scaled = training.steps()
    helm("rollback", "dlr", "1", *patiently)
    eventually("the first image's controller leads", lambda: leader(bare) not in ("", second))
    bare.admin.refused("get", "networkpolicy", "dlr-controller", "-n", DEFAULT_NAMESPACE)
    training.goes_on(world=3)
    assert_not_interrupted([each for each in training.steps() if each["pid"] == scaled[-1]["pid"]])
    assert training.steps()[-1]["pid"] == scaled[-1]["pid"]

    helm("uninstall", "dlr", *place)
    bare.admin.kubectl("get", "crd", *CRDS)
    assert helm.releases(DEFAULT_NAMESPACE) == []
    eventually("no controller is left", lambda: not pods_of(bare, DEFAULT_NAMESPACE))
    training.goes_on(world=3)
    with pytest.raises(HelmFailed, match="invalid ownership metadata"):
        helm("install", "other", chart, *place, values=values)
    helm("install", "dlr", chart, *patiently, values=values)
    training.finish()
    assert training.steps()[-1]["pid"] == scaled[-1]["pid"]

    helm("uninstall", "dlr", *place)
    bare.admin.kubectl("delete", "crd", *CRDS)
    assert "dlr" not in bare.admin.kubectl(
        "get", "clusterroles,clusterrolebindings,flowschemas", "-o", "name"
    )


def pods_of(bare: BareCluster, namespace: str) -> list[str]:
    return bare.admin.kubectl("get", "pods", "-n", namespace, "-o", "name").split()
