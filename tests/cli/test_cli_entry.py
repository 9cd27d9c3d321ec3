"""The entry point: what each command needs, and how commands fail before they reach a cluster."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import deploy
from crds import names
from dlr.commands.application import Commands, application
from dlr.commands.dispatch import other_distribution
from dlr.commands.job.commands import JobCommands
from dlr.commands.lazy import LazyGroup
from localcluster import supervisor
from localcluster.paths import Home
from tests.cli.scripted import kubeconfig_for

Dlr = Callable[..., Any]


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
def test_checking_this_machine_needs_no_kubernetes_client() -> None:
    asked = run_without("pykube,kubernetes", "node-check", "--local", "--accelerator", "tpu")
    assert "'tpu' is unknown here" in asked.stderr


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


@pytest.mark.real
def test_node_check_that_cannot_be_loaded_gives_no_verdict_on_the_machine(tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("raise ImportError('rich is broken')")
    program = "import sys; sys.path.insert(0, sys.argv[1]); from dlr.cli import main; main(sys.argv[2:])"
    command = [sys.executable, "-c", program, str(tmp_path), "node-check", "--local"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 69
    assert done.stderr.endswith("a package that this command needs cannot be loaded: rich is broken\n")
    assert "Traceback" not in done.stderr


def test_defect_of_dlr_is_no_verdict_on_the_machine_either(dlr: Dlr, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
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


def test_every_command_has_help() -> None:
    runner = CliRunner()
    for words in (
        ["up"],
        ["down"],
        ["kubeconfig"],
        ["controller"],
        ["manifests"],
        ["install"],
        ["uninstall"],
        ["doctor"],
        ["job"],
        ["job", "status"],
        ["node-check"],
    ):
        shown = runner.invoke(application, [*words, "--help"])
        assert shown.exit_code == 0
        assert "Usage" in shown.output
    everything = runner.invoke(application, ["--help"]).output
    assert all(
        name in everything
        for name in ("up", "down", "kubeconfig", "job", "node-check", "run", "controller", "manifests")
    )
    assert all(name in everything for name in ("install", "uninstall", "doctor"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("manifests", "--namespace", "BAD NAME"), "'BAD NAME' is no name for a namespace: it needs 1 to 63"),
        (("manifests", "--namespace", "n" * 64), "is no name for a namespace"),
        (("manifests", "--image", ""), "'' is no image: it needs a form like registry.example/team/"),
        (("manifests", "--check-image", "a b"), "'a b' is no image"),
        (("install", "--image", "Registry/Upper"), "'Registry/Upper' is no image"),
        (("install", "--jobs-namespace", ""), "'' is no name for a namespace"),
        (("uninstall", "-n", "-x"), "'-x' is no name for a namespace"),
        (("doctor", "-n", "a.b"), "'a.b' is no name for a namespace"),
    ],
)
def test_names_that_cannot_be_are_refused_in_one_sentence(
    dlr: Dlr, words: tuple[str, ...], says: str
) -> None:
    done = dlr(*words)
    assert (done.exit_code, done.out) == (2, "")
    assert says in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    "image",
    [
        "x",
        "x:1",
        "localhost:5000/a/b__c:v1.2",
        f"r.example/x:1@sha256:{'0' * 64}",
        "[::1]:5000/x",
        "R.example/x",
    ],
)
def test_images_as_registries_name_them_are_taken(dlr: Dlr, image: str) -> None:
    assert f"image: {image}\n" in dlr("manifests", "--image", image).out.replace("'", "")


@pytest.mark.real
def test_what_only_installing_needs_is_not_imported_at_the_start() -> None:
    program = "import sys, dlr.commands.application, dlr.commands.install.command; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    ).stdout.split()
    assert not {"jsonpatch", "dlr.commands.install.installer", "dlr.commands.doctor.facts"} & set(loaded)


def test_shell_completion_knows_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"_DLR_COMPLETE": "complete_bash", "COMP_WORDS": "dlr job ", "COMP_CWORD": "2"}
    shown = CliRunner().invoke(application, [], env=environment, prog_name="dlr")
    looks, changes = (
        {"list", "status", "logs", "stacks", "events", "timeline", "diagnose", "profile"},
        {"submit", "launch", "scale", "suspend", "resume", "delete"},
    )
    assert set(shown.output.split()) == looks | changes


def test_kubeconfig_of_no_cluster_is_one_sentence(dlr: Dlr, tmp_path: Path) -> None:
    done = dlr("kubeconfig", "--home", str(tmp_path / "none"))
    assert done.exit_code == 1
    assert done.err == f"dlr: There is no embedded cluster in {tmp_path}/none; start one with `dlr up`.\n"


def test_kubeconfig_prints_its_path(dlr: Dlr, tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").touch()
    assert dlr("kubeconfig", "--home", str(tmp_path)).out == f"{tmp_path}/kubeconfig\n"


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


def test_down_of_no_cluster_is_fine_unless_one_is_named(
    dlr: Dlr, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLR_HOME", str(tmp_path / "none"))
    assert dlr("down").exit_code == 0
    done = dlr("down", "--home", str(tmp_path / "none"))
    assert (done.exit_code, done.err) == (1, f"dlr: There is no embedded cluster in {tmp_path}/none.\n")


@pytest.mark.real
def test_controller_on_a_port_in_use_is_one_sentence(dlr: Dlr, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(kubeconfig_for("http://127.0.0.1:1")))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = dlr(
            *(
                "controller",
                "--kubeconfig",
                str(path),
                "--lease-namespace=default",
                "--listen-address",
                "127.0.0.1",
            ),
            *(
                "--metrics-port",
                str(port),
                "--health-port",
                "0",
                "--log-level",
                "error",
            ),
        )
    assert done.exit_code == 1
    assert str(port) in done.err
    assert "Traceback" not in done.err


def test_controller_without_a_cluster_is_one_sentence(dlr: Dlr, tmp_path: Path) -> None:
    done = dlr("controller", "--kubeconfig", str(tmp_path / "none"))
    assert (done.exit_code, done.err) == (
        1,
        f"dlr: --kubeconfig names {tmp_path}/none, which does not exist.\n",
    )


@pytest.mark.real
def test_importing_dlr_in_a_training_script_is_light() -> None:
    program = "import sys, dlr; dlr.report(1); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    assert not {"typer", "rich", "kubernetes", "pykube", "yaml", "torch"} & set(loaded.stdout.split())


@pytest.mark.parametrize("group", [Commands, JobCommands])
def test_lists_of_commands_have_their_own_first_lines(group: type[LazyGroup]) -> None:
    for name, command in group.lazy.items():
        first_line = command.load(name).help.strip().splitlines()[0]
        assert command.summary == first_line, name


@pytest.mark.real
def test_a_command_imports_no_other() -> None:
    program = "import sys; from dlr.commands.application import application as a; a(['job', '--help'], standalone_mode=False); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    heavy = {"yaml", "ssl", "dlr.commands.cluster", "dlr.commands.job.status", "crds.elasticjob"}
    assert not heavy & set(done.stderr.split())


@pytest.mark.real
def test_a_list_of_jobs_loads_no_models_and_no_client_of_the_controllers() -> None:
    """Each takes longer to import than all else that the command does."""
    program = "import sys, dlr.commands.job.lists; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    heavy = {"aiohttp", "kubernetes", "controller.client", "pydantic", "crds.elasticjob"}
    assert not heavy & set(done.stdout.split())


@pytest.mark.real
def test_the_status_of_a_job_loads_no_client_of_the_controllers() -> None:
    program = "import sys, dlr.commands.job.status; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    assert not {"aiohttp", "kubernetes", "controller.client"} & set(done.stdout.split())


def test_version(dlr: Dlr) -> None:
    assert re.fullmatch(r"dlr \d+\.\d+\.\d+\S*\n", dlr("--version").out)


@pytest.mark.real
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--help > /dev/full", "dlr: No space left on device.\n"),
        ("manifests > /dev/full", "dlr: No space left on device.\n"),
        ("--help | true", ""),
        ("manifests | head -1", ""),
        ("--help >&-", ""),
    ],
)
def test_output_that_nobody_takes_is_no_traceback(line: str, says: str) -> None:
    command = f"{sys.executable} -m dlr.cli {line}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=300)
    assert done.stderr == says


@pytest.mark.real
def test_errors_do_not_go_to_stdout_where_stderr_is_closed() -> None:
    command = f"{sys.executable} -m dlr.cli jab 2>&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.real
def test_the_default_namespace_of_a_new_embedded_cluster_may_cordon(
    dlr: Dlr, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the user's own machine. Later on, the namespace's labels are the user's too."""
    given: list[list[dict[str, Any]]] = []
    monkeypatch.setattr(supervisor, "up", lambda _, **options: given.append(options["manifests"]))
    home = tmp_path / "home"
    dlr("up", "--home", str(home))
    Home(home).database.touch()
    dlr("up", "--home", str(home))
    first, later = ([each for each in made if each["kind"] == "Namespace"] for made in given)
    assert [each["metadata"]["labels"][names.LABEL_MAY_CORDON] for each in first] == ["true"]
    assert not later


@pytest.mark.parametrize("names", [["dlr_training-0.1.0.dist-info"], ["dlr-1.10.0.dist-info", "numpy"]])
def test_another_project_s_dlr_in_the_same_folder_is_reported(names: list[str], tmp_path: Path) -> None:
    for name in [*names, "dlr"]:
        (tmp_path / name).mkdir()
    found = other_distribution(str(tmp_path / "dlr"))
    if "dlr-1.10.0.dist-info" not in names:
        assert found is None
    else:
        assert found is not None and found.startswith(f"{tmp_path} also has the distribution `dlr`, another")


def test_the_agent_s_zip_has_no_other_distribution() -> None:
    assert other_distribution("/dlr/dlr.pyz/dlr") is None
