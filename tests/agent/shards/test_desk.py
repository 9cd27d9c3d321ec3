"""Processes that pull from an agent's desk, with the controller's own decision behind it."""

from __future__ import annotations

import os
import queue
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.shards import dealing
from agent.shards.desk import Desk
from crds.names import LABEL_JOB_UID
from crds.shard_set import ENV_SHARDS_SOCKET, SetDefinition
from dlr.shards import ShardsError, pull
from tests.agent.shards.conftest import Job

pytestmark = pytest.mark.real

WAIT_SECONDS = 300


def at_once(work: Callable[[], None], number: int) -> None:
    threads = [threading.Thread(target=work, daemon=True) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()


def test_processes_share_what_their_worker_holds(alone: Job) -> None:
    done: list[int] = []

    def work() -> None:
        for part in pull("train", 1_000, size=3):
            done.extend(part)

    at_once(work, 3)
    assert sorted(done) == list(range(1_000))
    assert alone.sets[0].done == 1_000
    assert alone.writes < 60


def test_a_function_that_always_fails_on_one_element(alone: Job, capsys: pytest.CaptureFixture[str]) -> None:
    pulled = pull("train", 20, retries=2, max_failed=1)
    for part in pulled:
        with part:
            assert part[0] != 7, "seven is bad"
    assert pulled.failed == [7]
    assert alone.sets[0].reason.startswith("AssertionError: seven is bad")
    assert capsys.readouterr().err.count("Traceback") == 3


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"items": 21}, "was begun with 20 elements, and this process names 21"),
        ({"items": list(range(20))}, "other elements, or in another order"),
        ({"items": 20, "retries": 1}, "all workers have to name the same"),
        ({"items": 20, "epoch": 1}, "pull one epoch after the other"),
    ],
)
def test_who_names_the_set_differently_is_told_so(
    alone: Job, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any], sentence: str
) -> None:
    monkeypatch.setattr(dealing, "SKIPPED_EPOCH_SECONDS", 0.01)
    begun = pull("train", 20)
    next(begun)
    with pytest.raises(ShardsError, match=sentence):
        next(pull("train", **other))


@pytest.mark.parametrize("items", [{"a": 1}, "files.txt"])
def test_what_has_a_length_but_is_no_list_is_refused(items: Any) -> None:
    with pytest.raises(ShardsError, match=f"{type(items).__name__} is no list of elements"):
        pull("files", items)


@pytest.mark.parametrize(
    "text", [b"[" * 60_000 + b"\n", b'{"leaves": true}\n{"pull": {"name": "other", "size": 9}}\n']
)
def test_a_process_that_says_what_makes_no_sense_is_left_and_the_others_go_on(
    alone: Job, text: bytes
) -> None:
    confused, other = pull("train", 20), pull("train", 20)
    next(confused), next(other)
    confused._source._socket.sendall(text)  # type: ignore[union-attr]
    with pytest.raises(ShardsError, match="the agent of this Pod does not answer"):
        for _ in range(20):
            next(confused)
    assert next(other)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_desk_that_ends_by_a_fault_of_its_own_leaves_nobody_waiting(
    alone: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulling = pull("train", 20)
    next(pulling)
    monkeypatch.setattr(alone.desks[0], "_answer_all", lambda: 1 / 0)
    with pytest.raises(ShardsError, match="the agent of this Pod does not answer"):
        next(pulling)


def test_a_long_path_for_temporary_files_keeps_no_agent_from_starting(
    job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setenv(ENV_SHARDS_SOCKET, job.add(0).path)
    assert [part[0] for part in pull("train", 3)] == [0, 1, 2]
    assert not any(long.iterdir())


def test_who_finds_no_more_open_files_is_turned_away_and_the_desk_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(0, 1)
    theirs, ours = socket.socketpair()
    answers: list[Any] = [(ours, ""), OSError(24, "Too many open files")]

    class Server:
        def accept(self) -> Any:
            if isinstance(answer := answers.pop(), OSError):
                raise answer
            return answer

    try:
        with monkeypatch.context() as patched:
            patched.setattr(desk, "_server", Server())
            desk._accept()
        assert theirs.recv(1) == b"", "it hears that nobody serves it"
        os.fstat(desk._spare_fd)
    finally:
        theirs.close()
        desk.stop()


def test_no_wait_that_a_process_names_ends_the_desk(alone: Job) -> None:
    waits, other = pull("waits", 1), pull("other", 20)
    next(waits)
    for within in ("1e300", "NaN"):
        waits._source._socket.sendall(f'{{"next": 1, "within": {within}}}\n'.encode())  # type: ignore[union-attr]
    assert len(list(other)) == 20


def test_a_desk_follows_one_shard_set_more_until_it_has_found_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk, followed, given = Desk(0, 1), queue.Queue[int](), list[int]()
    monkeypatch.setenv(ENV_SHARDS_SOCKET, desk.path)
    desk.be_of({"metadata": {"labels": {LABEL_JOB_UID: "job"}}})
    desk.serve(lambda soon: None, lambda number: followed.put(number) or (lambda: None))  # type: ignore[func-returns-value]
    wanted = {"size": 3, "digest": SetDefinition.parse({"name": "mine", "size": 3}).digest}

    def shown(name: str, job: str = "job", **status: Any) -> dict[str, Any]:
        return {**wanted, "name": name, "uid": f"uid-{name}", "jobUid": job, **status}

    def work() -> None:
        for part in pull("mine", 3, retries=0):
            given.extend(part)

    process = threading.Thread(target=work, daemon=True)
    process.start()
    assert followed.get(timeout=WAIT_SECONDS) == 0
    desk.see(0, shown("others"))
    assert followed.get(timeout=WAIT_SECONDS) == 1
    desk.see(1, shown("mine", "an earlier job of the name"))
    assert followed.get(timeout=WAIT_SECONDS) == 2
    (pulled,) = desk.to_status() or ()
    status = {"digest": pulled.digest, "retries": 0, "maxFailed": 0, "epoch": 0}
    desk.see(2, shown("mine", **status))
    process.join(WAIT_SECONDS)
    assert not process.is_alive() and given == [] and followed.empty(), "that set is over"
    desk.stop()


def test_name_and_items_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ShardsError, match=r"is of type list: pull\(name, items\)"):
        pull(["one", "two"], "files")  # type: ignore[arg-type]
