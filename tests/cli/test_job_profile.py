"""`dlr job profile`: asks for one rank, writes what its agent answers, and says in a sentence why there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crds import names
from crds.log_parts import log_parts
from dlr.commands.job import profile
from tests.cli.scripted import GROUP_PATH, Script, job, listing, worker

JSON = dict[str, Any]
Dlr = Callable[..., Any]
JOB = f"{GROUP_PATH}/default/elasticjobs/digits"
WORLD = {"round": 1, "phase": "Formed", "members": "0-1", "worldSize": 2}


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def script(server: Script, **answer: Any) -> list[str]:
    """Worker 1's agent answers the second time that it is looked at; gives the requests."""
    asked: list[str] = []

    def workers(_: Any) -> JSON:
        patches = [each for each in server.requests if each.method == "PATCH"]
        asked.append(str(patches[-1].body["metadata"]["annotations"][names.ANNOTATION_PROFILE]))
        told = (
            {"incarnation": 1, "profile": {"request": asked[-1], **answer}}
            if answer and len(asked) > 1
            else {}
        )
        return listing(worker(0), worker(1, agent={"incarnation": 1} | told))

    pods = "/api/v1/namespaces/default/pods/digits-worker-1-1"
    server.answers[f"GET {pods}"] = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}
    server.answers[f"GET {pods}/log"] = lambda _: "".join(
        f"step 3 {line}\n" for line in log_parts(asked[-1], b"trace" * 2_000)
    )
    server.answers[f"GET {JOB}"] = server.answers[f"PATCH {JOB}"] = job(phase="Running", rendezvous=WORLD)
    server.answers[f"GET {GROUP_PATH}/default/elasticworkers"] = workers
    return asked


def test_the_trace_is_written_and_where_to_open_it_is_said(server: Script, dlr: Dlr, tmp_path: Path) -> None:
    asked = script(server, by="torch.profiler", seconds=0.4, size=10_000, note="2 s are more than 512 KiB")
    done = dlr("job", "profile", "digits", "--rank", "1", "--seconds", "2")
    assert done.exit_code == 0
    assert (tmp_path / "digits-rank1.json.gz").read_bytes() == b"trace" * 2_000
    said = "0.4 s of rank 1, by torch.profiler (2 s are more than 512 KiB): digits-rank1.json.gz; open it in"
    assert done.out.startswith(said)
    assert asked[-1].split("/")[1:] == ["1", "2", ""] and len(asked[-1]) <= 64
    assert dlr("job", "profile", "digits", "--by", "py-spy", "--seconds", "59.123456").exit_code == 0
    assert asked[-1].endswith("/py-spy") and len(asked[-1]) <= 64


def test_why_there_is_none_is_said(server: Script, dlr: Dlr, monkeypatch: pytest.MonkeyPatch) -> None:
    script(server, by="", seconds=0, size=0, note="the image has no py-spy")
    done = dlr("job", "profile", "digits", "--rank", "1")
    assert (done.exit_code, done.err) == (1, "dlr: There is no profile of rank 1: the image has no py-spy.\n")
    done = dlr("job", "profile", "digits", "--rank", "2")
    assert "No process of 'digits' has rank 2: its world has 2 of them." in done.err
    script(server)
    monkeypatch.setattr(profile, "ANSWER_SECONDS", 0.05)
    done = dlr("job", "profile", "digits", "--seconds", "0.05")
    assert "No agent of 'digits' has answered: rank 0 does not run just now" in done.err
