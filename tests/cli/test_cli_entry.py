"""The entry point: what each command needs, and how commands fail before they reach a cluster."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import deploy
from crds import names
from dlr.commands import cluster
from dlr.commands.application import Commands
from dlr.commands.job.commands import JobCommands
from dlr.commands.lazy import LazyGroup
from localcluster import supervisor
from localcluster.paths import Home
from tests.cli.scripted import Dlr


def run_without(blocked: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The command on a machine that lacks these packages (comma-separated)."""
    program = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in sys.argv[1].split(','):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "from dlr.cli import main\n"
        "main(sys.argv[2:])\n"
    )
    command = [sys.executable, "-c", program, blocked, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


CLI_ONLY = "typer,rich,pykube,requests,kubernetes,pydantic,orjson,yaml,aiohttp,prometheus_client"


@pytest.mark.real
def test_run_needs_nothing_but_torch_and_the_agent_s_own_packages() -> None:
    done = run_without(CLI_ONLY, "run", "--help")
    assert done.returncode == 0, done.stderr
    assert "--nproc-per-node" in done.stdout


@pytest.mark.real
def test_controller_and_manifests_need_neither_torch_nor_pykube() -> None:
    assert run_without("torch,pykube", "controller", "--help").returncode == 0
    printed = run_without("torch,pykube,kubernetes", "manifests")
    assert list(yaml.safe_load_all(printed.stdout)) == deploy.documents()


@pytest.mark.real
@pytest.mark.parametrize(
    ("blocked", "words", "says"),
    [
        ("torch", ["run", "x.py"], "the package torch, which is not installed here; pip install torch"),
        (
            "typer",
            ["job", "list"],
            "the package typer, which is not installed here; install dlr with its extra: pip install 'dlr-training[cli]'",
        ),
    ],
)
def test_missing_package_is_named_in_one_sentence(blocked: str, words: list[str], says: str) -> None:
    done = run_without(blocked, *words)
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr == f"dlr: this command needs {says}\n"


def test_defect_of_dlr_is_no_verdict_on_the_machine_either(dlr: Dlr, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("figures")

    monkeypatch.setattr("dlr.commands.node_check.command.check_this_machine", broken)
    done = dlr("node-check", "--local")
    assert done.exit_code == 70
    assert "KeyError: 'figures'" in done.err


@pytest.mark.real
def test_kubectl_runs_it_as_a_plugin() -> None:
    bin_folder = Path(sys.executable).parent
    environment = {"PATH": f"{bin_folder}:/usr/bin:/bin", "HOME": "/nonexistent"}

    def kubectl(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(bin_folder / "kubectl"), "dlr", *words]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=300
        )

    helped = kubectl("job", "status", "--help")
    assert "Usage: kubectl dlr job status" in helped.stdout
    assert kubectl("job", "list").stderr.startswith("dlr: No cluster is configured")


@pytest.mark.real
def test_up_on_a_port_in_use_is_one_sentence(dlr: Dlr, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = dlr("up", "--home", str(tmp_path / "home"), "--port", str(port))
    assert done.exit_code == 1
    assert (
        done.err
        == f"dlr: port {port} on 127.0.0.1 is in use by another process; choose another with --port.\n"
    )


def test_down_of_no_cluster_is_fine(dlr: Dlr, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLR_HOME", str(tmp_path / "none"))
    assert dlr("down").exit_code == 0


@pytest.mark.parametrize("group", [Commands, JobCommands])
def test_lists_of_commands_have_their_own_first_lines(group: type[LazyGroup]) -> None:
    for name, command in group.lazy.items():
        first_line = command.load(name).help.strip().splitlines()[0]
        assert command.summary == first_line, name


@pytest.mark.real
@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("dlr.commands.install.command", {"jsonpatch", "dlr.commands.install.installer"}),
        ("dlr.commands.application", {"yaml", "ssl", "dlr.commands.job.status", "crds.elasticjob"}),
        ("dlr.commands.job.lists", {"aiohttp", "kubernetes", "controller.client", "pydantic"}),
    ],
)
def test_a_command_imports_what_it_needs_alone(module: str, heavy: set[str]) -> None:
    """Each of these takes longer to import than all else that the command does."""
    program = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    assert not heavy & set(done.stdout.split())


def test_version(dlr: Dlr) -> None:
    assert re.fullmatch(r"dlr \d+\.\d+\.\d+\S*\n", dlr("--version").out)


@pytest.mark.real
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--help > /dev/full", "dlr: No space left on device.\n"),
        ("manifests | head -1", ""),
        ("--help >&-", ""),
    ],
)
def test_output_that_nobody_takes_is_no_traceback(line: str, says: str) -> None:
    command = f"{sys.executable} -m dlr.cli {line}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=300)
    assert done.stderr == says


def test_the_default_namespace_of_a_new_embedded_cluster_may_cordon(
    dlr: Dlr, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the user's own machine. Later on, the namespace's labels are the user's too."""
    given: list[list[dict[str, Any]]] = []
    monkeypatch.setattr(cluster, "controller_command", lambda _: ["dlr", "controller"])
    monkeypatch.setattr(supervisor, "up", lambda _, **options: given.append(options["manifests"]))
    home = tmp_path / "home"
    dlr("up", "--home", str(home))
    Home(home).database.touch()
    dlr("up", "--home", str(home))
    first, later = ([each for each in made if each["kind"] == "Namespace"] for made in given)
    assert [each["metadata"]["labels"][names.LABEL_MAY_CORDON] for each in first] == ["true"]
    assert not later
