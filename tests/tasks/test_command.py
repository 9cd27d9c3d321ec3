"""`dlr map` before anything is in the cluster, and who attaches to one."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dlr.client.image import UNUSED_IMAGE
from dlr.commands import options
from dlr.commands.application import run
from dlr.commands.errors import CommandError
from dlr.commands.map import command
from dlr.commands.map.manifest import MapWorkers, objects
from dlr.commands.map.submission import attach
from dlr.kube.api import Api, Resource
from dlr.kube.errors import UsageError
from dlr.tasks.lines import Lines
from dlr.tasks.task import LineTask

LINES = Lines(b"a\nb\n")
TASK = LineTask("echo", 2, LINES.digest, 1, 2, 9)


class Cluster:
    """An API server that has some objects."""

    namespace = "default"

    def __init__(self, *there: dict[str, Any]) -> None:
        self._there = {each["metadata"]["name"]: each for each in there}

    def get(self, kind: Resource, name: str) -> dict[str, Any]:
        return self._there[name]


def test_who_attaches_has_the_lines() -> None:
    made = objects("map-x", TASK, LINES, MapWorkers(1, 2, 1, 60, "image"))
    found = attach(cast(Api, Cluster(*made)), "map-x")
    assert (found.task, list(found.lines() or ())) == (TASK, list(LINES))


def test_another_job_is_none_to_attach_to() -> None:
    template = {"spec": {"containers": [{"name": "main"}]}}
    job = {"metadata": {"name": "digits"}, "spec": {"replicaSpecs": {"worker": {"template": template}}}}
    with pytest.raises(CommandError, match="'digits' was not made by `dlr map`"):
        attach(cast(Api, Cluster(job)), "digits")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--image", "x"], "There is no command"),
        (["echo"], "Name the image"),
        (["--image", "x", "--workers", "5:2", "echo"], "must be a number or MIN:MAX"),
        (["--image", "x", "--cpu", "much", "echo"], "'much' is not a quantity"),
        (["--image", "x", "--retries", "17", "echo"], "--retries"),
        (["--image", "x", "--name", "No", "echo"], "is no name for a job"),
        (["--pod", "/no/such.yaml", "echo"], "cannot be read: No such file"),
        (["--attach", "map-x", "echo"], "--attach follows what is there"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\n")))
    with pytest.raises(UsageError, match=said):
        run(["map", *words], "dlr")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "is not YAML"),
        ("spec: [" + "[" * 1000, "nested too deeply|is not YAML"),
        ("spec: {}\n---\nspec: {}", "is no Pod template"),
        ("spec: {containers: []}", "is no Pod template: it needs a `spec` with the Pod's containers"),
        ("spec: {containers: }", "is no Pod template"),
        ("spec: {containers: [a]}", "pod.yaml: spec.containers is no list of objects"),
        ("spec: {containers: [{volumeMounts: {a: b}}]}", r"spec.containers\[0\].volumeMounts is no list"),
        ("spec: {containers: [{resources: {requests: 1}}]}", r"resources.requests is no object"),
    ],
)
def test_a_file_that_is_no_pod_template_is_refused(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(text)
    with pytest.raises(UsageError, match=says):
        run(["map", "--pod", str(tmp_path / "pod.yaml"), "echo"], "dlr")


@pytest.mark.parametrize(("version", "needs"), [("v1.36.0+dlr", False), ("v1.36.0", True)])
def test_the_embedded_cluster_needs_no_image(
    version: str, needs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\n")))
    api = SimpleNamespace(version=lambda: ({"gitVersion": version}, None))
    monkeypatch.setattr(options.ClusterOptions, "api", lambda _: api)
    asked: list[MapWorkers] = []

    def submit_none(api: Any, name: str, task: LineTask, lines: Any, run_in: MapWorkers) -> Any:
        asked.append(run_in)
        return SimpleNamespace(name=name)

    monkeypatch.setattr(command, "submit", submit_none)
    if needs:
        with pytest.raises(UsageError, match="Name the image"):
            run(["map", "--detach", "echo"], "dlr")
    else:
        assert run(["map", "--detach", "echo"], "dlr") == 0
    assert [workers.image for workers in asked] == ([] if needs else [UNUSED_IMAGE])


def test_no_lines_are_no_work(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    assert run(["map", "--image", "x", "echo"], "dlr") == 0
    assert capsys.readouterr().err == "dlr: there are no lines, so nothing is run.\n"
