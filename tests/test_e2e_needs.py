"""What scenarios of e2e/ need is declared, and a cluster that shares a directory of this machine has STORAGE."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from e2e import capacity, kind, kubeconfig
from e2e.cluster import REPOSITORY, Capability
from e2e.kubeconfig import ENV_SHARED_PATH, SHARED_PATH, KubeconfigCluster

SCENARIOS = sorted((REPOSITORY / "e2e" / "scenarios").glob("test_*.py"))
NEEDED_FOR = {
    Capability.WIDE_NODES: ("capacity.", "NODE_CPUS"),
    Capability.STORAGE: (".storage(", "capacity.grower("),
    Capability.SOURCE: ('REPOSITORY / "tests"', "[sys.executable, str(STAND_IN)"),
}
"""What in a scenario's source shows that it needs a capability."""
OUTLIVES_PODS_ALONE = {"test_hang"}
"""Scenarios in which nobody but Pods looks into the storage."""


@pytest.mark.parametrize("capability", NEEDED_FOR, ids=lambda each: each.name)
def test_scenarios_declare_what_they_need(capability: Capability) -> None:
    needing = {path.stem: path.read_text() for path in SCENARIOS if path.stem not in OUTLIVES_PODS_ALONE}
    needing = {name: text for name, text in needing.items() if any(s in text for s in NEEDED_FOR[capability])}
    assert needing
    assert [name for name, text in needing.items() if f"Capability.{capability.name}" not in text] == []


def test_a_named_directory_of_this_machine_is_storage_and_any_other_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENV_SHARED_PATH, raising=False)
    assert kubeconfig.capabilities() == frozenset()
    monkeypatch.setenv(ENV_SHARED_PATH, str(tmp_path / "elsewhere"))
    assert kubeconfig.capabilities() == frozenset()
    far = KubeconfigCluster(tmp_path / "kubeconfig").storage("e2e-1")
    assert far.path == f"{tmp_path}/elsewhere/e2e-1"
    assert not Path(far.path).exists()
    monkeypatch.setenv(ENV_SHARED_PATH, str(tmp_path))
    assert kubeconfig.capabilities() == {Capability.STORAGE}


def test_pods_find_the_namespaces_folder_and_the_fixtures_in_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_SHARED_PATH, str(tmp_path))
    cluster = KubeconfigCluster(tmp_path / "kubeconfig")
    manifest = capacity.grower(cluster, "e2e-1")
    spec = manifest["spec"]["replicaSpecs"]["worker"]["template"]["spec"]
    (container,), (volume,), (mount,) = (
        spec["containers"],
        spec["volumes"],
        spec["containers"][0]["volumeMounts"],
    )
    assert volume["hostPath"]["path"] == mount["mountPath"] == str(tmp_path)
    script = Path(container["command"][-1])
    assert script.read_bytes() == capacity.GROWER.read_bytes()
    assert script.is_relative_to(tmp_path)
    assert Path(cluster.storage("e2e-1").path) == tmp_path / "e2e-1"


def test_kinds_nodes_mount_the_shared_directory() -> None:
    nodes = yaml.safe_load((REPOSITORY / "kind" / "cluster.yaml").read_text())["nodes"]
    workers = [node for node in nodes if node["role"] == "worker"]
    assert workers
    for node in workers:
        assert {"hostPath": SHARED_PATH, "containerPath": SHARED_PATH} in node["extraMounts"]
    assert Capability.STORAGE in kind.CAPABILITIES
