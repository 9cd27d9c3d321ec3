"""Ctrl-C at any moment of a command: it ends, and there is neither a traceback nor anything left."""

from __future__ import annotations

import ast
import runpy
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dlr.commands import cluster
from localcluster import supervisor
from tests.cli.scripted import Dlr, kubeconfig_for

PROGRAM = """
import os, signal, sys

class InterruptAt:
    '''Has this process interrupted when so many modules have been looked for.'''
    left = int(sys.argv.pop(1))
    def find_spec(self, name, path=None, target=None):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, InterruptAt())
from dlr.cli import main
main()
"""
"""As the installed command, with an interrupt in the middle of an import."""


@pytest.fixture(autouse=True)
def not_in_the_background() -> Iterator[None]:
    """A shell without a terminal has what runs in its background ignore interrupts, and all that this starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ended(code: int) -> bool:
    return code in (-signal.SIGINT, 130)


@pytest.mark.real
@pytest.mark.parametrize(("import_number", "line"), [(10, "--help"), (150, "job list")])
def test_an_interrupted_import_is_no_traceback(import_number: int, line: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(import_number), *line.split()]
    done = subprocess.run(
        command,
        env={"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert "Traceback" not in done.stderr
    assert ended(done.returncode) or done.returncode in (0, 1)  # it was over before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("was_up", "ended"), [(False, ["down"]), (True, [])])
def test_an_interrupted_up_ends_what_it_began_and_no_more(
    dlr: Dlr, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_up: bool, ended: list[str]
) -> None:
    calls: list[str] = []

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster, "controller_command", lambda _: ["dlr", "controller"])
    monkeypatch.setattr(supervisor, "is_up", lambda _: was_up)
    monkeypatch.setattr(supervisor, "up", interrupted)
    monkeypatch.setattr(supervisor, "down", lambda _: calls.append("down"))
    done = dlr("up", "--home", str(tmp_path / "home"))
    assert (done.exit_code, done.out, done.err, calls) == (130, "", "", ended)


PATIENT = """
from dlr.kube import api
api.REQUEST_TIMEOUT_SECONDS = 300
from dlr.cli import main
main()
"""


@pytest.mark.real
def test_an_interrupted_request_leaves_no_file(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = tmp_path / "config"
        config.write_text(yaml.safe_dump(kubeconfig_for(f"http://127.0.0.1:{silent.getsockname()[1]}")))
        temporary = tmp_path / "tmp"
        temporary.mkdir()
        with subprocess.Popen(
            [sys.executable, "-c", PATIENT, "job", "list", "--kubeconfig", str(config)],
            env={"HOME": str(tmp_path), "TMPDIR": str(temporary), "PYTHONPATH": str(Path.cwd())},
            stderr=subprocess.PIPE,
            text=True,
        ) as child:
            connection, _ = silent.accept()
            with connection:
                connection.recv(1)  # the request is there, and the command waits for its answer
                child.send_signal(signal.SIGINT)
                _, said = child.communicate(timeout=300)
        assert (child.returncode, said) == (130, "")
        assert list(temporary.iterdir()) == []


def test_the_installed_commands_handle_the_signal_before_they_import_anything() -> None:
    """An entry point's script, as pip writes it, imports `re` before anything of ours runs."""
    folder = Path(__file__).parents[2]
    scripts = runpy.run_path(str(folder / "setup.py"))["SCRIPTS"]
    for script in scripts:
        first, guarded = ast.parse((folder / script).read_text()).body
        assert ast.unparse(first) == "import _signal"
        assert isinstance(guarded, ast.If), "multiprocessing imports it for the processes of `--run-path`"
        assert ast.unparse(guarded.test) == "__name__ == '__main__'"
        assert ast.unparse(guarded.body[0]) == "_signal.signal(_signal.SIGINT, _signal.SIG_DFL)"
        assert ast.unparse(guarded.body[-1]) == "main()"
    assert {Path(script).name for script in scripts} == {"dlr", "kubectl-dlr"}
    assert "scripts" not in tomllib.loads((folder / "pyproject.toml").read_text())["project"]
