"""When spares are started and given up; the processes and the parent that forks them are the test's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.facts.place import Place
from agent.survival import spares as spares_module
from agent.survival.desk import ProcessStatements
from agent.survival.spares import Spares
from tests.agent.survival.test_kept import Desk, Process


class Parent:
    """Forks processes, or does not."""

    def __init__(self) -> None:
        self.started: list[tuple[Process, Mapping[str, str]]] = []
        self.is_ready = True
        self._pids: Iterator[int] = count(100)

    def is_warm(self) -> bool:
        return self.is_ready

    def start(self, _: object, env: Mapping[str, str], redirects: Mapping[int, int]) -> Process:
        assert set(redirects) == {1, 2}
        process = Process(next(self._pids))
        self.started.append((process, env))
        return process


class Pod:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.desk, self.parent = folder, Desk(), Parent()
        self.desk.pids = lambda: list(self.desk.expected)  # type: ignore[attr-defined]
        self.ended: list[int] = []
        monkeypatch.setattr(spares_module, "handles", SimpleNamespace(end=self._end))
        monkeypatch.setattr(spares_module, "may_lower_niceness", lambda: False)
        orphans: Any = SimpleNamespace(kill=list, started=lambda pids: None)
        self.spares = Spares(self.desk, self.parent, orphans, folder)  # type: ignore[arg-type]
        self.launch()

    def _end(self, processes: Any) -> None:
        self.ended += [process.pid for process in processes]

    def env(self, local_rank: int, rank: int, size: int) -> dict[str, str]:
        return {
            "LOCAL_RANK": str(local_rank),
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "DLR_CHECKPOINT_FILE": "/checkpoint",
            "DLR_PROGRESS_FILE": "/progress",
            "TORCHELASTIC_ERROR_FILE": str(self.folder / f"logs/attempt_1/{local_rank}/error.json"),
        }

    def launch(self, first: int = 2, size: int = 4) -> None:
        for local_rank in (0, 1):
            env = self.env(local_rank, first + local_rank, size)
            self.spares.note_launch(local_rank, ["python", "train.py"], env)

    def look(self, *, wanted: bool = True) -> list[int]:
        self.spares.look(wanted=wanted)
        return sorted(self.spares.pids())


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pod:
    return Pod(tmp_path, monkeypatch)


def test_each_process_has_one_once_all_train(pod: Pod) -> None:
    assert pod.look(wanted=False) == []
    pod.parent.is_ready = False
    assert pod.look() == []
    pod.parent.is_ready = True
    assert pod.look() == [100, 101] == pod.look()
    assert list(pod.desk.expected) == [100, 101]
    for _, env in pod.parent.started:
        assert env["DLR_SPARE"] == env["DLR_JOINS"] == "1" and "DLR_CHECKPOINT_FILE" not in env
        assert env["DLR_PROGRESS_FILE"] == str(pod.folder / f"spare.{env['LOCAL_RANK']}")
        assert Path(env["DLR_PROGRESS_FILE"]).exists()
        log = pod.folder / "logs/spare" / env["LOCAL_RANK"] / "stderr.log"
        assert log.exists() and env["TORCHELASTIC_ERROR_FILE"] == str(log.with_name("error.json"))


def test_one_is_taken_once_whether_it_waits_or_comes_there(pod: Pod) -> None:
    first, second = pod.look()
    pod.desk.statements[first] = ProcessStatements(entered=True)
    for local_rank in (0, 1):
        process = pod.spares.take(local_rank, pod.env(local_rank, 2 + local_rank, 4))
        assert process is not None and process.pid in (first, second)
        assert pod.spares.take(local_rank, pod.env(local_rank, 2 + local_rank, 4)) is None
    assert pod.ended == [] and pod.look() == [102, 103]


@pytest.mark.parametrize("change", [{"first": 0}, {"size": 3}], ids=["rank", "size"])
def test_one_whose_place_has_changed_is_made_again(pod: Pod, change: dict[str, int]) -> None:
    before = pod.look()
    pod.launch(**change)
    assert pod.look() == [102, 103] and sorted(pod.ended) == before
    assert pod.spares.take(0, pod.env(0, 9, 9)) is None, "nor is it taken for another place"


def test_one_that_goes_into_any_place_is_kept_for_another_once_it_waits(pod: Pod) -> None:
    bound, free = pod.look()
    pod.desk.statements = {
        bound: ProcessStatements(entered=True, bound_to=Place(2, 4)),
        free: ProcessStatements(entered=True),
    }
    pod.launch(first=1, size=3)
    assert pod.look() == [free, 102] and pod.ended == [bound]
    taken = pod.spares.take(1, pod.env(1, 0, 2))
    assert taken is not None and taken.pid == free


@pytest.mark.parametrize("entered", [False, True], ids=["before its loop", "while it waits"])
def test_after_three_in_a_row_that_end_before_one_is_needed_there_are_no_more(
    pod: Pod, caplog: pytest.LogCaptureFixture, *, entered: bool
) -> None:
    def end() -> None:
        process = next(each for each, env in reversed(pod.parent.started) if env["LOCAL_RANK"] == "1")
        process.code = 1
        pod.desk.statements[process.pid] = ProcessStatements(entered=entered)

    for _ in range(2):
        assert len(pod.look()) == 2
        end()
    assert len(pod.look()) == 2
    assert pod.spares.take(1, pod.env(1, 3, 4)) is not None, "not in a row"
    for _ in range(3):
        assert len(pod.look()) == 2
        end()
    assert len(pod.look()) == 1 == len(pod.look()), "the other waits"
    assert caplog.text.count("no more spare processes") == 1 and "spare/1/stderr.log" in caplog.text


def test_the_end_of_a_spare_is_not_that_of_the_round_that_trains(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod.look()
    killed: list[str] = []
    monkeypatch.setattr(pod.spares._orphans, "kill", lambda: killed.append("all processes of the round"))
    pod.parent.started[0][0].code = 1
    pod.launch(first=0)
    assert pod.look() == [102, 103] and killed == []


def test_where_there_is_no_room_for_their_logs_the_round_goes_on_without_them(
    pod: Pod, caplog: pytest.LogCaptureFixture
) -> None:
    (pod.folder / "logs").write_text("a file")
    assert pod.look() == [] == pod.look()
    assert caplog.text.count("their files cannot be written") == 2, "once for each process"


def test_all_are_given_up_at_the_end(pod: Pod) -> None:
    pod.look()
    assert sorted(process.pid for process in pod.spares.give_up()) == [100, 101] and pod.spares.pids() == []
