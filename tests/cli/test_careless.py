"""What careless people type: a clear sentence each, and nothing is begun, written or lost."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.scripted import ScriptedServer, kubeconfig_for

pytestmark = pytest.mark.real

Dlr = Callable[..., Any]

JOB = {
    "apiVersion": "elastic.iml.github.io/v1alpha1",
    "kind": "ElasticJob",
    "metadata": {"name": "digits"},
    "spec": {"replicaSpecs": {"worker": {"replicas": 2}}},
}
FILES = {
    "empty.yaml": "",
    "broken.yaml": "a: [",
    "list.yaml": "- a\n- b\n",
    "kind.yaml": yaml.safe_dump(JOB | {"kind": "ElasticJobb"}),
    "version.yaml": yaml.safe_dump(JOB | {"apiVersion": "v1"}),
    "nameless.yaml": yaml.safe_dump(JOB | {"metadata": {}}),
    "doubled.yaml": yaml.safe_dump(JOB) + "kind: ElasticJob\n",
    "job.yaml": yaml.safe_dump(JOB),
    "a file": "",
    "used/something": "",
}
"""What lies in the folder in which they type it."""

CARELESS = [
    ("jab", "No such command 'jab'. Did you mean 'job'?"),
    ("job lst", "No such command 'lst'. Did you mean 'list'?"),
    ("--versoin", "No such option: --versoin"),
    ("up now", "unexpected extra argument"),
    ("up --nods 3", "No such option: --nods"),
    ("up --nodes", "'--nodes' requires an argument"),
    ("up --nodes abc", "'--nodes'"),
    ("up --nodes 0", "'--nodes'"),
    ("up --nodes 5000", "'--nodes'"),
    ("up --cpus-per-node abc", "'abc' is not a quantity as Kubernetes writes them"),
    ("up --cpus-per-node=", "'' is not a quantity"),
    ("up --cpus-per-node -1", "'-1' is not a quantity"),
    ("up --cpus-per-node nan", "'nan' is not a quantity"),
    ("up --memory-per-node 8GB", "'8GB' is not a quantity"),
    ("up --memory-per-node 0", "'0' is not a quantity"),
    ("up --gpus-per-node -1", "'--gpus-per-node'"),
    ("up --port 99999", "'--port'"),
    ("up --home=", "'--home': it is empty"),
    ("up --home a_file", "a_file cannot be used for the cluster: "),
    ("up --home used", "used has other things in it; name another"),
    ("up --home ~nosuch-user", "home of the user in ~nosuch-user is not known"),
    ("up --home /proc/dlr", "The folder /proc/dlr cannot be used for the cluster"),
    ("down --home nosuch", "There is no embedded cluster in "),
    ("down --home=", "'--home': it is empty"),
    ("down everything", "unexpected extra argument"),
    ("kubeconfig --home a_file", "There is no embedded cluster in"),
    ("job status", "Missing argument"),
    ("job status ''", "'' is not a valid name in Kubernetes"),
    ("job status ä", "'ä' is not a valid name in Kubernetes"),
    ("job status ä/b", "'ä/b' is not a valid name in Kubernetes"),
    ("job status team/digits", "a namespace goes after -n"),
    ("job status ../../nodes", "is not a valid name in Kubernetes"),
    ("job status Digits", "'Digits' is not a valid name in Kubernetes"),
    ("job status digits other", "unexpected extra argument"),
    ("job status digits -o yaml", "'yaml' is not one of 'table', 'json'"),
    ("job status digits", "No API server answers at "),
    ("job list --namespace=", "'' is no name for a namespace"),
    ("job list -n Ünich", "'Ünich' is no name for a namespace"),
    ("job list --context=", "'--context': it is empty"),
    ("job list --context nosuch", "has no context 'nosuch' (it has: x)"),
    ("job list --kubeconfig=", "'--kubeconfig': it is empty"),
    ("job list --kubeconfig nosuch", "--kubeconfig names nosuch, which does not exist"),
    ("job list --kubeconfig ~nosuch-user/config", "names the home of an unknown user"),
    ("job list --kubeconfig used", "used cannot be read: Is a directory"),
    ("job list --kubeconfig binary", "binary cannot be read: it is not text"),
    ("job list --kubeconfig empty.yaml", "is not a kubeconfig"),
    ("job submit", "Missing option '--file'"),
    ("job submit --file=", "'--file' / '-f': it is empty"),
    ("job submit -f nosuch.yaml", "nosuch.yaml cannot be read: No such file or directory"),
    ("job submit -f used", "used cannot be read: Is a directory"),
    ("job submit -f binary", "binary cannot be read: it is not UTF-8 text"),
    ("job submit -f empty.yaml", "empty.yaml has no ElasticJob in it"),
    ("job submit -f broken.yaml", "broken.yaml:1 is not YAML"),
    ("job submit -f list.yaml", "list.yaml:1 is not a Kubernetes object"),
    ("job submit -f kind.yaml", "kind.yaml:2: elastic.iml.github.io/v1alpha1 ElasticJobb is no "),
    ("job submit -f version.yaml", "version.yaml:2: v1 ElasticJob is no "),
    ("job submit -f nameless.yaml", "metadata.name is missing"),
    ("job submit -f doubled.yaml", "the key 'kind' is there twice"),
    ("job submit -f job.yaml -f nosuch.yaml", "nosuch.yaml cannot be read"),
    ("job scale digits", "Missing option '--replicas'"),
    ("job scale digits --replicas -1", "'--replicas'"),
    ("job scale digits --replicas 1.5", "'--replicas'"),
    ("job logs digits --tail -1", "'--tail'"),
    ("job logs digits --rank -1", "'--rank'"),
    ("job logs digits --container=", "it is empty"),
    ("job logs digits --failed --rank 0", "--failed finds the rank and the Pod itself"),
    ("job delete", "Missing argument"),
    ("job delete digits Other", "'Other' is not a valid name in Kubernetes"),
    ("job delete digits --timeout nan", "'--timeout'"),
    ("job timeline digits -o digits.pdf", "a timeline is a file that ends with .svg, .html"),
    ("job profile digits -f nosuch/digits.json.gz", "there is no folder nosuch"),
    ("job profile digits -f used", "cannot be written to used: it is a folder"),
    ("job timeline digits -o nosuch/digits.svg", "there is no folder nosuch"),
    ("node-check", "by exactly one of --nodes, --selector, --all, --job and --local"),
    ("node-check --all --local", "by exactly one of"),
    ("node-check --nodes=", "has a node without a name"),
    ("node-check --job=", "'' is not a valid name in Kubernetes"),
    ("node-check --selector ==", "'==' is not understood"),
    ("node-check --all --straggler-ratio nan", "nan is not a finite number"),
    ("node-check --all --timeout 0", "'--timeout'"),
    ("node-check --all --gpu --accelerator none", "contradict each other"),
    ("node-check --local --no-wait", "--local takes --gpu and --accelerator alone"),
    ("install --image=", "'' is no image"),
    ("install --timeout inf", "'--timeout'"),
    ("uninstall -n BAD", "'BAD' is no name for a namespace"),
    ("manifests -o xml", "'xml' is not one of 'yaml', 'json'"),
    ("controller --metrics-port 99999", "'--metrics-port'"),
    ("controller --listen-address=", "'--listen-address': it is empty"),
    ("controller --log-level loud", "'loud' is not one of"),
    ("controller --cordon-limit 0", "'--cordon-limit'"),
    ("bundle ''", "'folder': it is empty"),
    ("bundle a_file/agent", "The agent cannot be written to a file/agent: Not a directory"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the command runs: with some files, and a cluster that is not up."""
    place = tmp_path / "folder"
    for name, text in FILES.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    (place / "binary").write_bytes(b"\x7fELF\xff\xfe")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("DLR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(place)
    with socket.socket() as bound:  # it does not listen, and nobody else is given its port
        bound.bind(("127.0.0.1", 0))
        config = kubeconfig_for(f"http://127.0.0.1:{bound.getsockname()[1]}")
        (tmp_path / "config").write_text(yaml.safe_dump(config))
        yield place


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


def test_one_wrong_name_deletes_no_job(dlr: Dlr, server: ScriptedServer) -> None:
    assert dlr("job", "delete", "digits", "Other").exit_code == 2
    assert server.requests == []
