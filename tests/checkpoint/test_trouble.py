"""What does not work is told: to the agent, and to whoever reads the log."""

from __future__ import annotations

import gc
import json
import math
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agent.slots.format import Mark
from agent.slots.slot import Slot
from crds.checkpoint_files import CheckpointTrouble
from crds.progress_record import ENV_PROGRESS_FILE, TROUBLE_SUFFIX
from dlr import progress
from dlr.checkpoint import Checkpointer, leaving, persistence, sharing, storage
from dlr.checkpoint.files import files_at
from dlr.checkpoint.memory import private_slot
from dlr.checkpoint.persistence import Persistence
from dlr.checkpoint.plan import Piece
from dlr.checkpoint.saver import SaveError, persist
from dlr.checkpoint.state import capture
from dlr.checkpoint.surroundings import Surroundings, Trouble, quantity
from tests.checkpoint.states import request, saved, state, steps_in

pytestmark = pytest.mark.real


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ENV_PROGRESS_FILE, str(tmp_path / "step.0"))
    return tmp_path / f"step.0{TROUBLE_SUFFIX}"


def told(record: Path) -> dict[str, str]:
    return json.loads(record.read_text()) if record.exists() else {}


def test_the_file_is_written_when_something_changes_and_not_otherwise(record: Path) -> None:
    trouble = Trouble()
    trouble.tell(CheckpointTrouble.STORAGE, "it is full")
    assert told(record) == {"StorageFails": "it is full"}
    trouble.works(CheckpointTrouble.STORAGE, CheckpointTrouble.SKIPPED)
    assert told(record) == {"StorageFails": "", "SaveSkipped": ""}
    record.unlink()
    trouble.works(CheckpointTrouble.STORAGE, CheckpointTrouble.SKIPPED)
    assert not record.exists()


def test_outside_of_dlr_nothing_is_written(tmp_path: Path) -> None:
    Trouble({}).tell(CheckpointTrouble.STORAGE, "it is full")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("nbytes", "text"), [(1, "1Mi"), (2**20 + 1, "2Mi"), (2**34 - 1, "16384Mi"), (2**34 + 1, "17Gi")]
)
def test_a_quantity_is_at_least_what_is_needed(nbytes: int, text: str) -> None:
    assert quantity(nbytes) == text


def test_a_slot_that_is_too_small_is_told_with_the_size_that_would_do(
    tmp_path: Path, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptor = os.memfd_create("small")
    os.ftruncate(descriptor, 8192)
    given = {"round": 1, "slots": [f"/proc/self/fd/{descriptor}"], "slots_of_pod": 600}
    (tmp_path / "file").write_text(json.dumps(given))
    monkeypatch.setenv("DLR_CHECKPOINT_FILE", str(tmp_path / "file"))
    checkpointer = Checkpointer(tmp_path / "path", state(1), every=1, persist_every=None)
    checkpointer.step(1)
    message = told(record)["SlotTooSmall"]
    found = re.search(r"the state needs ([\d,]+) bytes of memory, and a slot has 8,192; set (.*)", message)
    assert found is not None
    size = quantity(1.05 * 600 * int(found[1].replace(",", "")))
    assert found[2] == f"replicaSpecs.worker.memoryCheckpoint.size to {size} or more"
    checkpointer.close()


def test_memory_that_cannot_be_opened_is_told(
    tmp_path: Path, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text(json.dumps({"round": 1, "slots": ["/proc/self/fd/999999"]}))
    monkeypatch.setenv("DLR_CHECKPOINT_FILE", str(tmp_path / "file"))
    Checkpointer(tmp_path / "path", state(1), persist_every=None).close()
    assert told(record)["MemoryFails"].startswith("there are no checkpoints in memory, since the agent's")


def test_a_start_at_step_0_after_a_checkpoint_was_lost_is_told_for_a_while(
    tmp_path: Path, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = [private_slot(capture(state(1))) for _ in range(3)]
    given = {
        "round": 2,
        "slots": [slot.path for slot in slots],
        "resume": None,
        "lost_step": 120,
    }
    (tmp_path / "file").write_text(json.dumps(given))
    monkeypatch.setenv("DLR_CHECKPOINT_FILE", str(tmp_path / "file"))
    checkpointer = Checkpointer(tmp_path / "path", state(1), every=1, persist_every=None)
    assert checkpointer.load() is None
    assert told(record)["CheckpointLost"].startswith(
        "training begins at step 0: of step 120 in memory a part"
    )
    checkpointer.step(1)
    assert told(record)["CheckpointLost"]
    checkpointer._trouble._until.clear()
    checkpointer.step(2)
    checkpointer.close()
    assert not told(record)["CheckpointLost"]
    mark = Mark(1, 9, 0, 1)
    persist(request(saved(state(9), mark), mark, tmp_path / "path"), lambda: None)
    again = Checkpointer(tmp_path / "path", state(0), persist_every=None)
    assert again.load() == 9, "storage has one, so nothing is lost"
    assert not told(record)["CheckpointLost"]
    again.close()


def test_what_is_not_used_does_not_fail_any_more(tmp_path: Path, record: Path) -> None:
    """Whatever a process of an earlier Pod has told of it."""
    Checkpointer(tmp_path / "path", state(1), persist_every=None).close()
    assert told(record) == {"SlotTooSmall": "", "MemoryFails": "", "StorageFails": "", "SaveSkipped": ""}


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


def test_steps_that_do_not_rise_are_told_once_and_those_that_do_are_saved(
    tmp_path: Path, record: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = Checkpointer(tmp_path / "path", state(1), persist_every=None)
    checkpointer.load()
    for step in (3, 1, 2, 3):
        checkpointer.step(step)
    assert [entry.getMessage()[:31] for entry in caplog.records] == ["step(1) comes after step 3, so t"[:31]]
    assert [kind for kind, message in told(record).items() if message] == ["StateNotSaved"]
    checkpointer.close()


def test_steps_whose_numbers_have_gaps_are_saved(tmp_path: Path) -> None:
    """A script that counts batches from 0 and steps after every fourth: no number is a multiple of 2."""
    checkpointer = Checkpointer(tmp_path, state(1), persist_every=100)
    for step in range(3, 299, 4):
        checkpointer.step(step)
        checkpointer._storage.finish()
    checkpointer.close()
    assert steps_in(tmp_path) == [203, 103]


def test_a_step_may_be_any_whole_number(tmp_path: Path) -> None:
    """One of NumPy or torch was in memory, and never came to storage."""
    checkpointer = Checkpointer(tmp_path, state(1), persist_every=1)
    checkpointer.step(torch.tensor(1))  # type: ignore[arg-type]
    checkpointer.close()
    assert steps_in(tmp_path) == [1]
    with pytest.raises(TypeError):
        checkpointer.step(2.0)  # type: ignore[arg-type]


def test_a_run_that_does_not_load_is_refused_beside_an_earlier_ones_checkpoints(tmp_path: Path) -> None:
    slot = saved(state(5), mark := Mark(1, 5, 0, 1))
    persist(request(slot, mark, tmp_path), lambda: None)
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
    told = [message for message in caplog.messages if "comes without load()" in message]
    assert len(told) == (not loads)


def test_whoever_begins_anew_beside_what_memory_has_is_told(
    tmp_path: Path, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"round": 2, "slots": [], "resume": {"round": 1, "step": 86, "world_size": 1}}
    (tmp_path / "file").write_text(json.dumps(given))
    monkeypatch.setenv("DLR_CHECKPOINT_FILE", str(tmp_path / "file"))
    checkpointer = Checkpointer(tmp_path / "path", state(1), every=1, persist_every=None)
    with pytest.raises(
        RuntimeError, match=r"begun at step 1, where the agents' memory has step 86: call load"
    ):
        checkpointer.step(1)
    checkpointer.close()


def test_memory_is_for_one_checkpointer_which_loads_before_it_steps(
    tmp_path: Path, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two would write over one another, and what another one loaded after a failure could be either's."""
    slots = [private_slot(capture(state(1))) for _ in range(3)]
    given = {"round": 2, "slots": [slot.path for slot in slots], "resume": None}
    (tmp_path / "file").write_text(json.dumps(given))
    monkeypatch.setenv("DLR_CHECKPOINT_FILE", str(tmp_path / "file"))
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
    given = {"round": 2, "slots": [slot.path for slot in slots], "resume": None}
    (tmp_path / "file").write_text(json.dumps(given))
    monkeypatch.setenv("DLR_CHECKPOINT_FILE", str(tmp_path / "file"))
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


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"every": 0}, "every is 'auto' or a whole number, at least 1, not 0"),
        ({"every": "10"}, "every is 'auto' or a whole number, at least 1, not '10'"),
        ({"keep": 0}, "keep is None or a whole number, at least 1, not 0"),
    ],
)
def test_numbers_that_are_none_are_refused(tmp_path: Path, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Checkpointer(tmp_path, {}, **arguments)


def test_a_saver_that_stands_still_is_left_behind_and_told(
    tmp_path: Path, record: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where a network file system does not answer: the end of a training waited for it, for ever."""
    checkpointer = Checkpointer(tmp_path / "path", state(1), persist_every=1)
    checkpointer.step(1)
    checkpointer._storage.finish()
    process = checkpointer._storage._saver._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    checkpointer.step(2)
    while checkpointer._storage._saver._number < 2:  # else another saver would be started for it
        time.sleep(0.01)
    monkeypatch.setattr(persistence, "STILL_SECONDS", 0.5)
    checkpointer.close()
    sentence = "step 2 is not saved to .*: the process that saves it has stood still for"
    assert re.search(sentence, told(record)["StorageFails"])
    assert len(re.findall("step 2 is not saved to", caplog.text)) == 1
    assert process.wait(300) == -signal.SIGKILL
    assert steps_in(tmp_path / "path") == [1]


def test_a_saver_that_goes_on_is_waited_for_however_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter(range(10))
    done = threading.Event()

    def activity(_: object) -> tuple[bytes, ...]:
        if (look := next(looks, None)) is None:
            done.set()
        return (str(look).encode(),)

    saving = Persistence(files_at(tmp_path), Surroundings(0, 1, "", "a"), None, Trouble())
    monkeypatch.setattr(persistence, "STILL_SECONDS", 0.0)
    monkeypatch.setattr(persistence.Saver, "activity", activity)
    assert saving._comes(done)


def test_who_waits_for_storage_does_not_hang_and_waits_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent killed a training at its end, where its last save took longer than the limit for a hang."""
    busy_until: list[float] = []
    times = memoryview(bytearray(8 * 18)).cast("d")
    monkeypatch.setattr(progress, "_slot", (times.cast("B").cast("q"), times))

    def activity(_: object) -> tuple[bytes, ...]:
        busy_until.append(times[5])
        return ()

    saving = Persistence(files_at(tmp_path), Surroundings(0, 1, "", "a"), None, Trouble())
    saving._under_way = 1, threading.Event()
    monkeypatch.setattr(persistence, "STILL_SECONDS", 0.01)
    monkeypatch.setattr(persistence.Saver, "activity", activity)
    saving.finish()
    assert set(busy_until) == {math.inf} and times[5] == 0
    looks = len(busy_until)
    saving.finish()
    assert len(busy_until) == looks, "it was left behind"


def test_storage_that_fails_is_told_until_a_step_is_there(tmp_path: Path, record: Path) -> None:
    (tmp_path / "mount").write_text("not there")
    saving = Persistence(files_at(tmp_path / "mount" / "run"), Surroundings(0, 1, "", "a"), None, Trouble())
    saving.save(Mark(1, 1, 0, 1), capture(state(1)))
    saving.finish()
    assert "Not a directory" in told(record)["StorageFails"]
    (tmp_path / "mount").unlink()
    saving.save(Mark(1, 2, 0, 1), capture(state(2)))
    saving.finish()
    assert not any(told(record).values())
    saving.close()


def test_other_ranks_do_not_wait_for_one_that_has_nothing_to_write(
    tmp_path: Path, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where its state cannot be taken apart, nor where it has changed while it was copied."""
    made = state(1)
    made["odd"] = lambda: None
    checkpointer = Checkpointer(tmp_path / "path", made, persist_every=1)
    checkpointer.step(1)
    checkpointer._storage.finish()
    (given_up,) = (tmp_path / "path").glob("step-1/try-*/notes/gave-up-0")
    assert "cannot be pickled" in given_up.read_text()
    del made["odd"]
    reached, changed = threading.Event(), threading.Event()
    copy = torch._foreach_copy_

    def held(views: list[Tensor], sources: list[Tensor]) -> None:
        reached.set()
        assert changed.wait(300)
        copy(views, sources)

    monkeypatch.setattr(torch, "_foreach_copy_", held)
    checkpointer.step(2)
    assert reached.wait(300)
    with torch.no_grad():
        made["model"][0].weight.add_(1)
    changed.set()
    checkpointer._storage.finish()
    (given_up,) = (tmp_path / "path").glob("step-2/try-*/notes/gave-up-0")
    assert "has changed while it was copied" in given_up.read_text()
    checkpointer.close()


def test_what_fails_again_and_again_is_not_said_to_work_in_between(
    tmp_path: Path, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(captured: object) -> Slot:
        raise OSError("no memory")

    monkeypatch.setattr(persistence, "private_slot", no_memory)
    checkpointer = Checkpointer(tmp_path / "path", state(1), persist_every=1)
    said: list[dict[CheckpointTrouble, str]] = []
    monkeypatch.setattr(checkpointer._trouble, "_say", said.append)
    for step in (1, 2):
        checkpointer.step(step)
        checkpointer._storage.finish()
    assert ["no memory" in news.get(CheckpointTrouble.STATE, "") for news in said] == [True, True]
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


def test_what_others_of_the_same_start_write_is_not_cleared_away(tmp_path: Path) -> None:
    for name in ("4/try-a", "5/try-a", "6/try-a", "6/try-b", "3/try-c", "2/try-c"):
        (tmp_path / f"step-{name}").mkdir(parents=True)
    (tmp_path / "step-3" / ".metadata").touch()
    (tmp_path / "step-7").mkdir()
    (tmp_path / "step-7" / "__0_0.distcp").touch()
    storage.clear(files_at(tmp_path), 5, "a")
    assert tries_in(tmp_path) == {"5/try-a", "6/try-a", "3/try-c", "2/try-c"}
    assert (tmp_path / "step-7" / "__0_0.distcp").exists(), "torch alone writes there"


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


def test_a_skipped_save_is_told_until_one_that_began_later_is_there(tmp_path: Path, record: Path) -> None:
    saving = Persistence(files_at(tmp_path / "run"), Surroundings(0, 1, "", "a"), None, Trouble())
    saving._saver.start()
    process = saving._saver._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    saving.save(Mark(1, 1, 0, 1), capture(state(1)))
    assert not saving.is_free(2), "the saver takes a second to start"
    assert not record.exists(), "which is no trouble"
    process.send_signal(signal.SIGCONT)
    saving.finish()
    process.send_signal(signal.SIGSTOP)
    saving.save(Mark(1, 3, 0, 1), capture(state(3)))
    assert not saving.is_free(4)
    process.send_signal(signal.SIGCONT)
    saving.finish()
    assert told(record)["SaveSkipped"].startswith("step 4 is skipped in ")
    saving.save(Mark(1, 5, 0, 1), capture(state(5)))
    saving.finish()
    assert not any(told(record).values())
    saving.close()
