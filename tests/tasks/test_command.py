"""`dlr map` before anything is in the cluster, and when making it fails half-way."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from controller.errors import AlreadyExists, Unavailable
from dlr.client.image import UNUSED_IMAGE
from dlr.commands import options
from dlr.commands.application import run
from dlr.commands.errors import CommandError
from dlr.commands.map import command
from dlr.commands.map.manifest import MapWorkers
from dlr.commands.map.submission import attach, submit
from dlr.kube.api import CONFIGMAPS, ELASTICJOBS, Api, Resource
from dlr.kube.errors import UsageError
from dlr.tasks.lines import Lines
from dlr.tasks.task import LineTask

LINES = Lines(b"a\nb\n")
TASK = LineTask("echo", 2, LINES.digest, 1, 2, 9)


class Cluster:
    """An API server that fails at the n-th request."""

    namespace = "default"

    def __init__(self, fails_at: int = 0, error: BaseException | None = None) -> None:
        self.requests, self._fails_at, self._error = 0, fails_at, error
        self.there: dict[tuple[str, str], dict[str, Any]] = {}

    def create(self, kind: Resource, body: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        self._ask()
        key = kind.plural, body["metadata"]["name"]
        if key in self.there:
            raise AlreadyExists(409, "AlreadyExists", "there is one")
        self.there[key] = body | {"metadata": body["metadata"] | {"uid": f"uid-{self.requests}"}}
        return self.there[key], []

    def patch(self, kind: Resource, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        self._ask()
        job = self.there[kind.plural, name]
        job["spec"] |= patch["spec"]
        return job

    def get(self, kind: Resource, name: str) -> dict[str, Any]:
        return self.there[kind.plural, name]

    def delete(self, kind: Resource, name: str) -> None:
        uid = self.there.pop((kind.plural, name))["metadata"]["uid"]
        self.there = {
            key: each
            for key, each in self.there.items()
            if uid not in [owner["uid"] for owner in each["metadata"].get("ownerReferences", ())]
        }

    def _ask(self) -> None:
        self.requests += 1
        if self._error and self.requests == self._fails_at:
            raise self._error


def made_in(cluster: Cluster) -> dict[str, Any]:
    return submit(cast(Api, cluster), "map-x", TASK, LINES, MapWorkers(1, 2, 1, 60, "image")).job


@pytest.mark.parametrize("error", [Unavailable("etcd is full", status=500), KeyboardInterrupt()])
@pytest.mark.parametrize("request_", [1, 2, 3])
def test_whenever_it_ends_half_way_nothing_is_left(request_: int, error: BaseException) -> None:
    cluster = Cluster(request_, error)
    with pytest.raises((type(error), CommandError)):
        made_in(cluster)
    assert not cluster.there


def test_no_pod_waits_for_lines_and_who_attaches_has_them() -> None:
    cluster = Cluster()
    job = made_in(cluster)
    assert [kind for kind, _ in cluster.there] == [ELASTICJOBS.plural, CONFIGMAPS.plural]
    assert job["spec"]["suspend"] is False
    found = attach(cast(Api, cluster), "map-x")
    assert (found.task, list(found.lines() or ())) == (TASK, list(LINES))


def test_a_job_of_that_name_stays_as_it_is() -> None:
    cluster = Cluster()
    job = made_in(cluster)
    with pytest.raises(CommandError, match="There is an ElasticJob 'map-x' in namespace 'default' already"):
        made_in(cluster)
    assert cluster.there[ELASTICJOBS.plural, "map-x"] is job
    assert job["spec"]["suspend"] is False


def test_another_job_is_none_to_attach_to() -> None:
    cluster = Cluster()
    template = {"spec": {"containers": [{"name": "main"}]}}
    job = {"metadata": {"name": "digits"}, "spec": {"replicaSpecs": {"worker": {"template": template}}}}
    cluster.create(ELASTICJOBS, job)
    with pytest.raises(CommandError, match="'digits' was not made by `dlr map`"):
        attach(cast(Api, cluster), "digits")


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
        ("metadata: {}", "is no Pod template"),
        ("spec: {}\n---\nspec: {}", "is no Pod template"),
        ("spec: {containers: a}", r"pod.yaml: spec.containers is no list"),
        ("spec: {containers: [a]}", "spec.containers is no list of objects"),
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
    monkeypatch.setattr(options.Cluster, "api", lambda _: api)
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
