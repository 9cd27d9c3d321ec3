"""What `dlr manifests` prints is what kustomize renders, and it is as careful as it says."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import crds
import deploy
from crds import names
from dlr.commands import controller as controller_command
from reconcilers.check import options as check_options

REPOSITORY = Path(deploy.__file__).parent.parent
KUBECTL = Path(sys.executable).with_name("kubectl")

JSON = dict[str, Any]


def of_kind(kind: str) -> list[JSON]:
    return [document for document in deploy.documents() if document["kind"] == kind]


def identity(document: JSON) -> tuple[str, str, str]:
    metadata = document["metadata"]
    return document["kind"], metadata.get("namespace", ""), metadata["name"]


@pytest.mark.skipif(not KUBECTL.exists(), reason="no kubectl beside this Python")
def test_documents_are_what_kustomize_renders() -> None:
    command = [str(KUBECTL), "kustomize", str(REPOSITORY / "deploy")]
    rendered = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert sorted(yaml.safe_load_all(rendered), key=identity) == sorted(deploy.documents(), key=identity)


def test_crds_are_all_of_them() -> None:
    expected = sorted(document["metadata"]["name"] for document in crds.manifests())
    assert (
        sorted(document["metadata"]["name"] for document in of_kind("CustomResourceDefinition")) == expected
    )


def test_what_others_refer_to_comes_before_them() -> None:
    kinds = [document["kind"] for document in deploy.documents()]
    assert kinds.index("Namespace") < kinds.index("ServiceAccount") < kinds.index("Deployment")
    assert kinds.index("CustomResourceDefinition") < kinds.index("Deployment")


def test_another_namespace_and_images_are_used_throughout() -> None:
    text = yaml.safe_dump_all(
        deploy.documents("elsewhere", "registry.example/dlr:9", "registry.example/check:9")
    )
    assert deploy.DEFAULT_NAMESPACE not in text
    assert deploy.DEFAULT_IMAGE not in text and deploy.DEFAULT_CHECK_IMAGE not in text
    assert "--check-image=registry.example/check:9" in text
    assert "system:serviceaccount:elsewhere:dlr-controller" in text


def test_images_carry_the_package_s_version_and_are_what_kind_builds() -> None:
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    built = (REPOSITORY / "kind" / "common.sh").read_text()
    assert f"dlr-controller:{version}" == deploy.DEFAULT_IMAGE
    assert f"dlr-worker:{version}" == deploy.DEFAULT_CHECK_IMAGE == check_options.DEFAULT_IMAGE
    assert f'CONTROLLER_IMAGE="{deploy.DEFAULT_IMAGE}"' in built
    assert f'WORKER_IMAGE="{deploy.DEFAULT_CHECK_IMAGE}"' in built


def test_images_hold_every_package_of_ours() -> None:
    packages = {path.parent.name for path in REPOSITORY.glob("*/__init__.py")}
    needed = packages - {"e2e", "tests"}
    for image in ("controller", "worker"):
        text = (REPOSITORY / "kind" / f"{image}.Dockerfile").read_text()
        assert {line.split()[1] for line in text.splitlines() if line.startswith("COPY ")} >= needed, image


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

    (deployment,) = of_kind("Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    options = {argument.split("=")[0].removeprefix("--").replace("-", "_") for argument in container["args"]}
    assert options <= set(inspect.signature(controller_command.controller).parameters)


def test_no_rule_has_a_wildcard_or_reaches_for_secrets() -> None:
    rules = [rule for kind in ("ClusterRole", "Role") for role in of_kind(kind) for rule in role["rules"]]
    for rule in rules:
        assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
        assert not {"secrets", "configmaps", "pods/exec", "pods/log"} & set(rule["resources"])


def test_worker_role_has_the_name_that_the_controller_binds() -> None:
    from reconcilers.pod.access import WORKER_ROLE

    assert [role["metadata"]["name"] for role in deploy.worker_documents()] == [WORKER_ROLE]
    assert names.SERVICE_ACCOUNT == "dlr-worker"  # the admission policy knows it by this name


@pytest.mark.parametrize("script", sorted(path.name for path in (REPOSITORY / "kind").glob("*.sh")))
def test_kind_script_is_sound_bash(script: str) -> None:
    subprocess.run(["bash", "-n", str(REPOSITORY / "kind" / script)], check=True, timeout=10)


@pytest.mark.parametrize("script", ["up.sh", "down.sh", "build.sh", "load.sh"])
def test_kind_script_says_in_a_sentence_that_docker_is_missing(script: str, tmp_path: Path) -> None:
    for program in ("bash", "dirname", "basename"):
        (tmp_path / program).symlink_to(shutil.which(program) or "")
    done = subprocess.run(
        [str(tmp_path / "bash"), str(REPOSITORY / "kind" / script)],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=10,
    )
    assert done.returncode == 1
    assert "docker is not installed" in done.stderr
    assert len(done.stderr.splitlines()) == 1
