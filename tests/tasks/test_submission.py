"""Making a `dlr map`: whole, or not at all."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any, cast

import pytest

from controller.errors import AlreadyExists
from dlr.commands.errors import CommandError
from dlr.commands.map.manifest import Workers
from dlr.commands.map.submission import submit
from dlr.kube.api import CONFIGMAPS, ELASTICJOBS, Api, Resource
from dlr.tasks.lines import Lines
from dlr.tasks.task import Task

JSON = dict[str, Any]
LINES = Lines(b"a\nb\n")
TASK = Task("echo", 2, LINES.digest, 1, 2, 99)


class Server:
    """What an API server has, which may be interrupted while it takes a request."""

    namespace = "default"

    def __init__(self, interrupted: Resource | None = None) -> None:
        self.objects: dict[tuple[str, str], JSON] = {}
        self._interrupted = interrupted

    def create(self, kind: Resource, body: JSON) -> tuple[JSON, list[str]]:
        key = kind.kind, body["metadata"]["name"]
        if key in self.objects:
            raise AlreadyExists(409, "AlreadyExists", "there is one")
        if kind is self._interrupted:
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C does, before the answer is there
        self.objects[key] = body | {"metadata": {**body["metadata"], "uid": "u"}}
        return self.objects[key], []

    def patch(self, kind: Resource, name: str, patch: JSON) -> JSON:
        self.objects[kind.kind, name]["spec"] |= patch["spec"]
        return self.objects[kind.kind, name]

    def delete(self, kind: Resource, name: str) -> None:
        del self.objects[kind.kind, name]


def made_in(server: Server) -> JSON:
    return submit(cast(Api, server), "map", TASK, LINES, Workers(1, 2, 1, 60, "image")).job


def test_a_job_and_its_lines() -> None:
    server = Server()
    assert made_in(server)["spec"]["suspend"] is False
    assert set(server.objects) == {("ElasticJob", "map"), ("ConfigMap", "map-map-0000")}


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Whoever starts the tests in the background may have SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("kind", [ELASTICJOBS, CONFIGMAPS])
def test_who_is_interrupted_while_it_is_made_leaves_no_job(kind: Resource) -> None:
    server = Server(interrupted=kind)
    with pytest.raises(KeyboardInterrupt):
        made_in(server)
    assert ("ElasticJob", "map") not in server.objects
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_job_of_that_name_stays_as_it_is() -> None:
    server = Server()
    made_in(server)
    with pytest.raises(CommandError, match="There is an ElasticJob 'map' in namespace 'default' already"):
        made_in(server)
    assert server.objects["ElasticJob", "map"]["spec"]["suspend"] is False
