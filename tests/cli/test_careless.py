"""What careless people type: a clear sentence each, and nothing is begun, written or lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from tests.cli.scripted import Dlr, Script

JOB = {
    "apiVersion": "elastic.iml.github.io/v1alpha1",
    "kind": "ElasticJob",
    "metadata": {"name": "digits"},
    "spec": {"replicaSpecs": {"worker": {"replicas": 2}}},
}
FILES = {
    "empty.yaml": "",
    "version.yaml": yaml.safe_dump(JOB | {"apiVersion": "v1"}),
    "job.yaml": yaml.safe_dump(JOB),
    "a file": "",
    "used/something": "",
}
"""What lies in the folder in which they type it."""

CARELESS = [
    ("jab", "No such command 'jab'. Did you mean 'job'?"),
    ("--versoin", "No such option: --versoin"),
    ("up --nodes", "'--nodes' requires an argument"),
    ("up --nodes 0", "'--nodes'"),
    ("up --cpus-per-node abc", "'abc' is not a quantity as Kubernetes writes them"),
    ("up --memory-per-node 8GB", "'8GB' is not a quantity"),
    ("up --home=", "'--home': it is empty"),
    ("up --home a_file", "a_file cannot be used for the cluster: "),
    ("up --home used", "used has other things in it; name another"),
    ("up --home ~nosuch-user", "user's home in ~nosuch-user is unknown"),
    ("up --home /proc/dlr", "The folder /proc/dlr cannot be used for the cluster"),
    ("down --home nosuch", "There is no embedded cluster in "),
    ("kubeconfig --home nosuch", "There is no embedded cluster in "),
    ("job list -o xml", "'--output' / '-o': 'xml' is not one of 'table', 'json'"),
    ("job status", "Missing argument"),
    ("job status ä", "'ä' is not a valid name in Kubernetes"),
    ("job status team/digits", "a namespace goes after -n"),
    ("job status Digits", "'Digits' is not a valid name in Kubernetes"),
    ("job status digits", "No API server answers at "),
    ("dashboard digits", "No API server answers at "),
    ("job list --namespace=", "'' is no name for a namespace"),
    ("job list -n Ünich", "'Ünich' is no name for a namespace"),
    ("job list --context=", "'--context': it is empty"),
    ("job list --context nosuch", "has no context 'nosuch' (it has: x)"),
    ("job list --kubeconfig ~nosuch-user/config", "names the home of an unknown user"),
    ("job list --kubeconfig used", "used cannot be read: Is a directory"),
    ("job list --kubeconfig binary", "binary cannot be read: it is not text"),
    ("job list --kubeconfig empty.yaml", "is not a kubeconfig"),
    ("job submit", "Missing option '--file'"),
    ("job submit -f version.yaml", "version.yaml:2: v1 ElasticJob is no "),
    ("job submit -f job.yaml -f nosuch.yaml", "nosuch.yaml cannot be read"),
    ("job scale digits", "Missing option '--replicas'"),
    ("job scale digits --replicas -1", "'--replicas'"),
    ("job logs digits --tail -1", "'--tail'"),
    ("job logs digits --failed --rank 0", "--failed finds the rank and the Pod itself"),
    ("job delete digits Other", "'Other' is not a valid name in Kubernetes"),
    ("node-check --nodes=", "has a node without a name"),
    ("node-check --all --timeout 0", "'--timeout'"),
    ("install --image=", "'' is no image"),
    ("uninstall -n BAD", "'BAD' is no name for a namespace"),
    ("controller --cordon-limit 0", "'--cordon-limit'"),
    ("bundle ''", "'folder': it is empty"),
    ("bundle a_file/agent", "The agent cannot be written to a file/agent: Not a directory"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Script) -> Path:
    """Where the command runs: with some files, and a cluster that is not up."""
    place = tmp_path / "folder"
    for name, text in FILES.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    (place / "binary").write_bytes(b"\x7fELF\xff\xfe")
    server.is_away = True
    monkeypatch.setenv("DLR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(place)
    return place


def words_of(line: str) -> list[str]:
    """As a shell splits it, but that `a_file` has a space in its name."""
    return [word.replace("a_file", "a file").replace("''", "") for word in line.split(" ")]


def all_files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in folder.parent.rglob("*")}


def children() -> set[str]:
    return {*Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


@pytest.mark.parametrize(("line", "says"), CARELESS, ids=[line for line, _ in CARELESS])
def test_is_one_sentence_and_changes_nothing(dlr: Dlr, folder: Path, line: str, says: str) -> None:
    before, children_before = (all_files(folder), folder.stat().st_mode), children()
    done = dlr(*words_of(line))
    assert done.exit_code != 0
    assert says.replace("a_file", "a file") in done.err
    assert done.err.startswith("dlr: ")
    assert done.err.count("\n") == 1
    assert done.out == ""
    assert (all_files(folder), folder.stat().st_mode) == before
    assert children() <= children_before  # those of earlier tests may end


def test_one_wrong_name_deletes_no_job(dlr: Dlr, server: Script) -> None:
    assert dlr("job", "delete", "digits", "Other").exit_code == 2
    assert server.requests == []
