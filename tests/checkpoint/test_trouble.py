"""What does not work is told: to the agent, and to whoever reads the log."""

from __future__ import annotations

import gc
import io
import json
import math
import os
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from agent import own_program
from agent.slots.format import Mark
from crds.checkpoint_files import CheckpointTrouble
from crds.names import ENV_JOB_NAME
from crds.progress_record import ENV_PROGRESS_FILE, TROUBLE_SUFFIX
from dlr import progress
from dlr.checkpoint import Checkpointer, leaving, persistence, saver, sharing, storage
from dlr.checkpoint.files import files_at
from dlr.checkpoint.memory import private_slot
from dlr.checkpoint.persistence import Persistence, Saver
from dlr.checkpoint.plan import Piece
from dlr.checkpoint.saver import SaveError, persist
from dlr.checkpoint.state import capture
from dlr.checkpoint.surroundings import SaveTroubles, Surroundings, quantity
from tests.checkpoint import at_once
from tests.checkpoint.states import request, save, saved, state, steps_in, tell
from tests.cli.scripted import Clock


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ENV_PROGRESS_FILE, str(tmp_path / "step.0"))
    return tmp_path / f"step.0{TROUBLE_SUFFIX}"


def told(record: Path) -> dict[str, str]:
    return json.loads(record.read_text()) if record.exists() else {}


def test_the_file_is_written_when_something_changes_and_not_otherwise(record: Path) -> None:
    trouble = SaveTroubles()
    trouble.tell(CheckpointTrouble.STORAGE, "it is full")
    assert told(record) == {"StorageFails": "it is full"}
    trouble.works(CheckpointTrouble.STORAGE, CheckpointTrouble.SKIPPED)
    assert told(record) == {"StorageFails": "", "SaveSkipped": ""}
    record.unlink()
    trouble.works(CheckpointTrouble.STORAGE, CheckpointTrouble.SKIPPED)
    assert not record.exists()


def test_saves_to_memory_that_a_job_has_none_of_are_told_once_by_rank_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def warned(**arguments: Any) -> list[str]:
        caplog.clear()
        Checkpointer(tmp_path / "kept", state(0), **arguments).close()
        return caplog.messages

    assert not warned(every=1), "outside of dlr there is no such memory"
    monkeypatch.setenv(ENV_JOB_NAME, "llm")
    (message,) = warned(every=1)
    assert "memoryCheckpoint" in message and message.startswith("every=1 saves nothing")
    assert not warned(every="auto")
    monkeypatch.setenv("RANK", "1")
    assert not warned(every=1)


def test_a_slot_that_is_too_small_is_told_with_the_size_that_would_do(
    tmp_path: Path, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptor = os.memfd_create("small")
    os.ftruncate(descriptor, 8192)
    tell(monkeypatch, tmp_path, f"/proc/self/fd/{descriptor}", slots_of_pod=600)
    checkpointer = Checkpointer(tmp_path / "path", state(1), every=1, persist_every=None)
    checkpointer.step(1)
    message = told(record)["SlotTooSmall"]
    found = re.search(r"the state needs ([\d,]+) bytes of memory, and a slot has 8,192; set (.*)", message)
    assert found is not None
    size = quantity(1.05 * 600 * int(found[1].replace(",", "")))
    assert found[2] == f"replicaSpecs.worker.memoryCheckpoint.size to {size} or more"
    checkpointer.close()


def test_a_start_at_step_0_after_a_checkpoint_was_lost_is_told_for_a_while(
    tmp_path: Path, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = [private_slot(capture(state(1))) for _ in range(3)]
    tell(monkeypatch, tmp_path, *slots, lost_step=120)
    checkpointer = Checkpointer(tmp_path / "path", state(1), every=1, persist_every=None)
    assert checkpointer.load() is None
    said = told(record)["CheckpointLost"]
    assert said.startswith("training begins at step 0: of step 120 in memory a part")
    assert "replicas: 1 survives one loss at a time" in said, "a job may have it, and lose two"
    checkpointer.step(1)
    assert told(record)["CheckpointLost"]
    checkpointer._trouble._until.clear()
    checkpointer.step(2)
    checkpointer.close()
    assert not told(record)["CheckpointLost"]
    save(tmp_path / "path", 9)
    again = Checkpointer(tmp_path / "path", state(0), persist_every=None)
    assert again.load() == 9
    said = told(record)["CheckpointLost"]
    assert said.startswith("training goes on from step 9: of step 120 in memory a part is lost")
    again.close()
    save(tmp_path / "path", 120)
    last = Checkpointer(tmp_path / "path", state(0), persist_every=None)
    assert last.load() == 120, "storage has it, so nothing is lost"
    assert not told(record)["CheckpointLost"]
    last.close()


def test_a_value_that_cannot_be_saved_is_named_and_then_that_it_can_be_again(
    tmp_path: Path, record: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = state(1)
    made["config"] = {"seed": 1, "hooks": {"loss": lambda: None}}
    checkpointer = Checkpointer(tmp_path / "path", made, persist_every=1)
    checkpointer.step(1)
    assert "step 1 is not saved: TypeError: config.hooks.loss cannot be pickled, so take it" in caplog.text
    assert "config.hooks.loss" in told(record)["StateNotSaved"]
    del made["config"]
    checkpointer.step(2)
    checkpointer.close()
    assert not any(told(record).values())
    assert steps_in(tmp_path / "path") == [2]


def test_a_run_that_does_not_load_is_refused_beside_an_earlier_ones_checkpoints(tmp_path: Path) -> None:
    save(tmp_path, 5)
    checkpointer = Checkpointer(tmp_path, made := state(0), persist_every=None)
    with pytest.raises(RuntimeError, match=r"has checkpoints of an earlier run, up to step 5, and training"):
        checkpointer.step(1)
    assert checkpointer.load() == 5
    checkpointer.step(6)
    checkpointer.close()
    assert made["step"] == 5


@pytest.mark.parametrize("loads", [True, False])
def test_a_training_that_begins_without_load_is_told_before_a_failure_shows_it(
    loads: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = Checkpointer(tmp_path, state(1), persist_every=None)
    if loads:
        checkpointer.load()
    for step in (1, 2):
        checkpointer.step(step)
    checkpointer.close()
    told = [message for message in caplog.messages if "was called without load()" in message]
    assert len(told) == (not loads)


def test_memory_is_for_one_checkpointer_which_loads_before_it_steps(
    tmp_path: Path, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two would write over one another, and what another one loaded after a failure could be either's."""
    slots = [private_slot(capture(state(1))) for _ in range(3)]
    tell(monkeypatch, tmp_path, *slots)
    checkpointer = Checkpointer(tmp_path / "a", state(1), every=1, persist_every=2)
    with pytest.raises(RuntimeError, match="the agent's memory is for one: give it all of the state"):
        Checkpointer(tmp_path / "b", state(1))
    assert checkpointer.load() is None is checkpointer.load()
    for step in (1, 2, 3):
        checkpointer.step(step)
    with pytest.raises(RuntimeError, match=r"load\(\) comes after step\(3\), and after a failure"):
        checkpointer.load()
    checkpointer.close()
    marks = [slot.mark for slot in slots]
    second = Checkpointer(tmp_path / "a", state(0), every=1, persist_every=4)
    assert told(record)["MemoryFails"].endswith("an earlier Checkpointer saved its own there")
    assert second.load() == 2, "from storage"
    second.step(3)
    second.step(4)
    second.close()
    assert [slot.mark for slot in slots] == marks
    assert steps_in(tmp_path / "a") == [4, 2]


def test_who_is_to_leave_for_memory_and_finds_too_little_of_it_leaves_for_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before the first save: nobody knew that the state does not fit, and all steps were lost."""
    slots = [private_slot(capture({"epoch": 1})) for _ in range(3)]
    tell(monkeypatch, tmp_path, *slots)
    monkeypatch.setattr(leaving, "boundary", lambda step: "memory" if step == 3 else None)
    checkpointer = Checkpointer(tmp_path / "path", state(3), every=100, persist_every=None)
    checkpointer.load()
    assert [checkpointer.step(step) for step in (1, 2, 3)] == [False, False, True]
    gc.unfreeze()
    assert steps_in(tmp_path / "path") == [3]
    with pytest.raises(RuntimeError, match=r"step\(3\) returned True, and training went on to step 4"):
        checkpointer.step(4)
    checkpointer.wait()
    checkpointer.close()


class Coming(threading.Event):
    """The end of a save, which is not there yet at so many looks."""

    def __init__(self, clock: Clock, looks: float) -> None:
        super().__init__()
        self.clock, self.looks = clock, looks

    def wait(self, timeout: float | None = None) -> bool:
        self.clock.sleep(timeout or 0.0)
        self.looks -= 1
        return self.looks < 0


def saving(path: Path) -> Persistence:
    return Persistence(files_at(path), Surroundings(0, 1, "", "a"), None, SaveTroubles())


def test_a_saver_that_stands_still_is_left_behind_and_told(
    tmp_path: Path,
    record: Path,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where a network file system does not answer. Meanwhile its process is busy, and does not hang."""
    times = memoryview(bytearray(8 * 18)).cast("d")
    monkeypatch.setattr(progress, "_slot", (times.cast("B").cast("q"), times))
    busy_until: set[float] = set()

    class Still(at_once.SaverHere):
        def activity(self) -> tuple[bytes, ...]:
            busy_until.add(times[5])
            return ()

    monkeypatch.setattr(persistence, "Saver", Still)
    made = saving(tmp_path / "path")
    made._under_way = 2, Coming(clock, math.inf)
    made.finish()
    waited = clock.now
    made.finish()
    assert persistence.STILL_SECONDS < waited == clock.now < 1.1 * persistence.STILL_SECONDS, "once"
    assert busy_until == {math.inf} and times[5] == 0
    sentence = "step 2 is not saved to .*: the process that saves it has made no progress for"
    assert re.search(sentence, told(record)["StorageFails"])
    assert len(re.findall("step 2 is not saved to", caplog.text)) == 1
    assert made._saver.is_abandoned


def test_a_save_under_way_keeps_nobody_whose_last_step_is_in_memory(
    tmp_path: Path, record: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a saver is slow to start: the next world waited, and the last steps were lost after the grace."""
    slots = [private_slot(capture(state(3))) for _ in range(3)]
    tell(monkeypatch, tmp_path, *slots)
    monkeypatch.setattr(leaving, "boundary", lambda step: "memory" if step == 3 else None)
    checkpointer = Checkpointer(tmp_path / "path", state(3), every=100, persist_every=None)
    checkpointer.load()
    checkpointer.step(2)
    began, newest = clock.now, []
    under_way = Coming(clock, math.inf)
    checkpointer._storage._under_way = 2, under_way
    wait = under_way.wait

    def seen(timeout: float | None = None) -> bool:
        newest.append(max(slot.mark.step for slot in slots if slot.mark))
        return wait(timeout)

    monkeypatch.setattr(under_way, "wait", seen)
    assert checkpointer.step(3)
    gc.unfreeze()
    assert newest == [3], "it was in memory before"
    assert clock.now - began == persistence.LEAVING_SECONDS
    assert checkpointer._storage._saver.is_abandoned and told(record)["StorageFails"] == ""


def test_a_saver_that_goes_on_is_waited_for_however_long_it_takes(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        at_once.SaverHere, "activity", lambda _: (b"%d" % (clock.now // (persistence.STILL_SECONDS - 1)),)
    )
    assert saving(tmp_path)._comes(Coming(clock, 9_999))


class Ended:
    """A saver's process that has ended before it answered."""

    def __init__(self, code: int, writes: Exception | None = None) -> None:
        self._code, self._writes = code, writes
        self.stdin, self.stdout = self, io.StringIO()

    def write(self, _: str) -> None:
        if self._writes is not None:
            raise self._writes

    def flush(self) -> None: ...

    def poll(self) -> int | None:
        return None

    def wait(self) -> int:
        return self._code


@pytest.mark.parametrize("writes", [None, BrokenPipeError(32, "Broken pipe")])
@pytest.mark.parametrize(
    ("code", "how"),
    [(-6, "was ended by SIGABRT"), (-9, "was ended by SIGKILL"), (1, "ended with exit code 1")],
)
def test_the_end_of_a_saver_is_told_by_its_signal_with_the_place_of_its_log(
    code: int, how: str, writes: Exception | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persistence, "start_saver", lambda: Ended(code, writes))
    error = Saver().save(request("-", Mark(1, 1, 0, 1), tmp_path), lambda: None)
    assert error == f"the saver process {how}, see the log of this rank"


def test_a_module_of_the_scripts_folder_does_not_hide_one_of_pythons_from_a_saver() -> None:
    standard = str(Path(os.__file__).parent)
    own = [standard, f"{standard}/lib-dynload"]
    path = own_program.standard_first(["/app", "/opt/dlr.zip", *own, f"{standard}/site-packages"])
    assert path == [*own, "/app", "/opt/dlr.zip", f"{standard}/site-packages"]


def test_storage_that_fails_is_told_until_a_step_is_there(tmp_path: Path, record: Path) -> None:
    (tmp_path / "mount").write_text("not there")
    made = saving(tmp_path / "mount" / "run")
    made.save(Mark(1, 1, 0, 1), capture(state(1)))
    assert "Not a directory" in told(record)["StorageFails"]
    (tmp_path / "mount").unlink()
    made.save(Mark(1, 2, 0, 1), capture(state(2)))
    assert not any(told(record).values())
    made.close()


def test_other_ranks_do_not_wait_for_one_that_has_nothing_to_write(
    tmp_path: Path, gate: at_once.Gate
) -> None:
    """Neither where its state cannot be taken apart, nor where it has changed while it was copied."""
    made = state(1)
    made["odd"] = lambda: None
    checkpointer = Checkpointer(tmp_path / "path", made, persist_every=1)
    checkpointer.step(1)
    (given_up,) = (tmp_path / "path").glob("step-1/try-*/notes/gave-up-0")
    assert "cannot be pickled" in given_up.read_text()
    del made["odd"]
    gate.close()
    checkpointer.step(2)
    with torch.no_grad():
        made["model"][0].weight.add_(1)
    gate.open()
    (given_up,) = (tmp_path / "path").glob("step-2/try-*/notes/gave-up-0")
    assert "has changed while it was copied" in given_up.read_text()
    checkpointer.close()


def test_a_saver_whose_folder_was_removed_does_not_wait_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "GONE_SECONDS", 0.1)
    slot = saved(state(3), mark := Mark(1, 3, 1, 2))
    follow = sharing.Savers.follow

    def removed(savers: sharing.Savers, *arguments: Any) -> list[Piece]:
        storage.clear(files_at(tmp_path), 4, "try1")
        return follow(savers, *arguments)

    monkeypatch.setattr(sharing.Savers, "follow", removed)
    with pytest.raises(SaveError, match="rank 0 has given it up, and removed it"):
        persist(request(slot, mark, tmp_path), lambda: None)


def tries_in(path: Path) -> set[str]:
    return {str(each.relative_to(path)).removeprefix("step-") for each in path.glob("step-*/try-*")}


def test_what_training_writes_is_not_cleared_away_by_savers_of_what_it_goes_on_from_after_a_failure(
    tmp_path: Path,
) -> None:
    for name in ("4/try-a", "5/try-failure-7", "6/try-a", "5/try-failure-6"):
        (tmp_path / f"step-{name}").mkdir(parents=True)
    storage.clear(files_at(tmp_path), 5, "failure-7")
    assert tries_in(tmp_path) == {"5/try-failure-7", "6/try-a"}
    storage.clear(files_at(tmp_path), 6, "a")
    assert tries_in(tmp_path) == {"6/try-a"}
    assert [path.name for path in tmp_path.iterdir()] == ["step-6"]


def test_what_another_replica_group_writes_is_not_cleared_away_as_long_as_nothing_newer_is_there(
    tmp_path: Path,
) -> None:
    """Groups that are suspended leave after different steps, and both write at once."""
    for name in ("4/.metadata", "5/try-old.0", "5/try-a.0", "7/try-b.1", "7/try-old.0", "6/try-failure-2.1"):
        (tmp_path / f"step-{name}").mkdir(parents=True)
    storage.clear(files_at(tmp_path), 5, "a.0")
    assert tries_in(tmp_path) == {"5/try-a.0", "7/try-b.1", "6/try-failure-2.1"}
    storage.clear(files_at(tmp_path), 7, "b.1")
    assert tries_in(tmp_path) == {"5/try-a.0", "7/try-b.1"}
    (tmp_path / "step-7" / ".metadata").mkdir()
    storage.clear(files_at(tmp_path), 8, "c.1")
    assert tries_in(tmp_path) == {"7/try-b.1"}


def test_a_skipped_save_is_told_until_one_that_began_later_is_there(
    tmp_path: Path, record: Path, gate: at_once.Gate, caplog: pytest.LogCaptureFixture
) -> None:
    made = saving(tmp_path / "run")

    def save_slowly(step: int) -> None:
        gate.close()
        made.save(Mark(1, step, 0, 1), capture(state(step)))
        assert not made.is_free(step + 1)

    save_slowly(1)
    assert not record.exists(), "the saver takes a second to start, which is no trouble"
    assert caplog.messages[-1].endswith("since step 1 waits for the start of its writer")
    gate.open()
    save_slowly(3)
    gate.open()
    assert told(record)["SaveSkipped"].startswith("step 4 is skipped in ")
    assert "raise persist_every" in told(record)["SaveSkipped"]
    made.save(Mark(1, 5, 0, 1), capture(state(5)))
    assert not any(told(record).values())
    made.close()


def test_a_saver_that_nobody_hears_begins_no_save_beside_the_next_starts(tmp_path: Path) -> None:
    """It imports torch for seconds, in which its process may be killed, and another start may begin to save."""
    slot = saved(state(7), Mark(1, 7, 0, 1))
    line = f"1 {request(slot, Mark(1, 7, 0, 1), tmp_path).encode()}\n"
    (later := tmp_path / "step-7" / "try-later").mkdir(parents=True)
    saver.serve([line], answers := io.StringIO(), lambda: False)
    assert later.exists() and not answers.getvalue()
    saver.serve([line], answers, lambda: True)
    assert '"done": true' in answers.getvalue()
    slot.close()


def test_a_save_whose_folder_others_have_removed_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_: object) -> None:
        shutil.rmtree(tmp_path / "step-7")
        (tmp_path / storage.try_folder(7, wanted.attempt) / "__0_0.distcp").open("wb")

    slot = saved(state(7), Mark(1, 7, 0, 1))
    wanted = request(slot, Mark(1, 7, 0, 1), tmp_path)
    monkeypatch.setattr(saver, "write", write)
    assert saver.try_to_persist(wanted, lambda: None) == (
        "others save a later step, and have removed what was written of this one"
    )
    assert not (tmp_path / "step-7").exists()
    slot.close()
