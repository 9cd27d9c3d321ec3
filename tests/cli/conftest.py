"""The command line as the tests call it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.kube import api as transport
from dlr.cli import main
from dlr.client import job as client
from dlr.commands.job import changes
from dlr.commands.node_check import remote
from dlr.job import deletion
from dlr.kube import api, following
from tests.cli.scripted import Clock, Script, kubeconfig_for


@dataclass(frozen=True)
class Result:
    exit_code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def patient_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """However late an API server is scheduled, it is there."""
    monkeypatch.setattr(api, "REQUEST_TIMEOUT_SECONDS", 300.0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clock: Clock) -> Script:
    """An API server that is a script, without a socket."""
    script = Script()
    config = tmp_path / "scripted-kubeconfig"
    config.write_text(yaml.safe_dump(kubeconfig_for(script.url)))
    monkeypatch.setenv("KUBECONFIG", str(config))
    monkeypatch.setattr(transport, "_pool", lambda _: script)
    return script


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which commands wait, and the SDK's client."""
    found = Clock()
    for module in (transport, following, deletion, changes, remote, client):
        monkeypatch.setattr(module, "time", found)
    return found


@pytest.fixture
def dlr(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """The command as a person calls it, without the cost of a new interpreter."""

    def call(*words: str) -> Result:
        try:
            main(words)
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call
