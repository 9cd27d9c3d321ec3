"""Storage and other Pods' slots: who may use a path, what fails in between, what is kept."""

from __future__ import annotations

import errno
import gc
import json
import math
import os
import signal
import stat
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import torch

import dlr.checkpoint.persistence as persistence_module
from agent.connection.listener import Listener
from agent.slots.format import CommitWord, Mark
from agent.slots.pool import Pool
from agent.slots.process_files import MemoryResume
from agent.slots.server import SlotServer
from agent.slots.slot import DamagedError, Slot
from crds import names
from crds.checkpoint_files import AFTER_FAILURE
from dlr.checkpoint import Checkpointer, MismatchError, choosing, storage
from dlr.checkpoint.choosing import choose
from dlr.checkpoint.files import Files, LocalFiles, files_at
from dlr.checkpoint.memory import private_slot
from dlr.checkpoint.own_slot import own_slot
from dlr.checkpoint.persistence import Persistence, Saver
from dlr.checkpoint.reading import in_slots
from dlr.checkpoint.saver import SaveError, persist
from dlr.checkpoint.state import capture, restore
from dlr.checkpoint.storage import StorageError
from dlr.checkpoint.surroundings import SaveTroubles, Surroundings, look_around
from tests.checkpoint import savers
from tests.checkpoint.at_once import Gate
from tests.checkpoint.states import assert_whole, request, save, saved, state, steps_in, tell, write
from tests.checkpoint.test_trouble import Coming
from tests.cli.scripted import Clock


def here(job: str = "") -> Surroundings:
    return Surroundings(0, 1, job, "a")


def test_memory_gives_way_to_what_is_newer_in_storage_and_whole(tmp_path: Path) -> None:
    save(tmp_path, 5)
    save(tmp_path, 9)
    assert (manifest := choose(files_at(tmp_path), here(), beyond=8)) is not None and manifest.step == 9
    assert choose(files_at(tmp_path), here(), beyond=9) is None
    (tmp_path / "step-9" / ".metadata").unlink()
    assert choose(files_at(tmp_path), here(), beyond=8) is None, "step 5 is older than what memory has"
    assert choose(files_at(tmp_path), Surroundings(0, 2, "", "a"), beyond=3) is None, (
        "two ranks that cannot agree"
    )
    (tmp_path / "file").touch()
    assert choose(files_at(tmp_path / "file"), here(), beyond=8) is None, "storage that is away"


@pytest.mark.parametrize("stored", [None, 3])
def test_memory_that_starts_have_ended_with_gives_way_to_storage_and_is_not_given_up_without(
    stored: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = saved(state(7), Mark(1, 7, 0, 1))
    resume = {"round": 1, "step": 7, "world_size": 1, "slot": slot.path, "is_last_resort": True}
    tell(monkeypatch, tmp_path, resume=resume)
    if stored is not None:
        save(tmp_path / "path", stored)
    checkpointer = Checkpointer(tmp_path / "path", made := state(0), persist_every=None)
    assert checkpointer.load() == (stored or 7)
    assert_whole(made, stored or 7)
    checkpointer.close()


def test_a_checkpoint_of_another_model_is_named_with_its_path(tmp_path: Path) -> None:
    save(tmp_path, 5)
    checkpointer = Checkpointer(tmp_path, {"model": torch.nn.Linear(3, 4)})
    with pytest.raises(MismatchError) as refused:
        checkpointer.load()
    checkpointer.close()
    assert str(refused.value) == (
        f"the checkpoint {tmp_path / 'step-5'} does not fit: the checkpoint has model, optimizer, step, and the "
        "state has model; go on with the model and optimizer that it is of, or give this run a path of its own"
    )


@pytest.mark.parametrize("owner", ['{"job": "ns/one"}', "{", None])
def test_a_run_is_continued_under_another_name_and_the_first_job_saves_there_no_more(
    tmp_path: Path, owner: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_job(name: str, **options: Any) -> Checkpointer:
        monkeypatch.setenv(names.ENV_NAMESPACE, "ns")
        monkeypatch.setenv(names.ENV_JOB_NAME, name)
        return Checkpointer(tmp_path, state(0), persist_every=1, **options)

    (one := as_job("one")).step(1)
    (tmp_path / storage.OWNER).unlink()
    if owner is not None:
        (tmp_path / storage.OWNER).write_text(owner)
    two = as_job("two")
    with pytest.raises(
        StorageError, match=r"once ns/one has ended, continue .* Checkpointer\(…, adopt=True\)$"
    ):
        two.load()
    two.close()
    (tmp_path / storage.OWNER).unlink()  # what has no owner is given one before it is read
    if owner is not None:
        (tmp_path / storage.OWNER).write_text(owner)
    (two := as_job("two", adopt=True)).load()
    assert two.find() == 1
    two.step(2)
    two.close()
    one.step(3)
    one.close()
    assert list(storage.steps_in(files_at(tmp_path))) == [2, 1]
    assert as_job("two").load() == 2, "from now on they are its own"
    with pytest.raises(StorageError, match="has the checkpoints of job ns/two, and this is job ns/one"):
        as_job("one").load()


def test_as_many_stay_as_are_to_be_kept_and_nothing_of_what_was_never_complete(tmp_path: Path) -> None:
    (tmp_path / "step-1" / "try-other").mkdir(parents=True)
    (tmp_path / "step-1" / "..metadata.0a1b2c3d").touch()  # whoever wrote it was killed
    for step in (10, 9, 11, 12):
        save(tmp_path, step, keep=2)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-11", "step-12"]
    save(tmp_path, 12, keep=None, round=2)
    assert steps_in(tmp_path) == [12, 11]
    assert [entry.name for entry in (tmp_path / "step-12").glob("try-*")] == ["try-try2"]


@pytest.mark.parametrize(("number", "kept"), [(errno.EINVAL, [1]), (errno.EIO, [])])
def test_a_file_system_that_syncs_no_folders_keeps_checkpoints_and_one_that_fails_to_does_not(
    number: int, kept: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def refuse_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    with suppress(OSError):
        save(tmp_path, 1)
    assert steps_in(tmp_path) == kept


def test_what_is_in_storage_already_is_not_written_again_after_a_failure(tmp_path: Path) -> None:
    save(tmp_path, 6)
    mark = Mark(1, 6, 0, 1)
    slot, metadata = saved(state(6), mark), tmp_path / "step-6" / ".metadata"
    written_at = metadata.stat().st_mtime_ns
    after_failure = replace(request(slot, mark, tmp_path), attempt=f"{AFTER_FAILURE}2")
    persist(after_failure, lambda: None)
    assert metadata.stat().st_mtime_ns == written_at
    (tmp_path / "step-6" / "try-try1" / "manifest.json").write_text("damaged")
    persist(after_failure, lambda: None)
    assert storage.read_manifest(files_at(tmp_path), 6).attempt == f"{AFTER_FAILURE}2"


def after_failure(folder: Path, slot: Slot, mark: Mark) -> Persistence:
    """Saving in a process that has loaded a slot after a failure."""
    resume = MemoryResume(mark.round, mark.step, mark.world_size, slot.path, persist={mark.rank: slot.path})
    here = Surroundings(0, 1, "", "a", round=2, resume=resume)
    return Persistence(files_at(folder), here, None, SaveTroubles())


def test_what_training_goes_on_from_after_a_failure_is_written_to_storage_too_after_a_while(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = Mark(1, 6, 0, 1)
    saving = after_failure(tmp_path, saved(state(6), mark), mark)
    monkeypatch.setattr(saving, "_ended", Coming(clock, math.inf))
    saving.persist_resumed()
    assert clock.now >= persistence_module.AFTER_FAILURE_SECONDS
    assert storage.read_manifest(files_at(tmp_path), 6).attempt == f"{AFTER_FAILURE}2"
    saving.close()


def test_no_process_writes_into_a_slot_that_is_written_to_storage_after_a_failure_until_that_has_ended(
    tmp_path: Path, gate: Gate
) -> None:
    slot, mark = Slot.create("dlr-slot", 1 << 20), Mark(1, 6, 0, 1)
    of_process = Slot.open(slot.path)
    saving = after_failure(tmp_path, slot, mark)
    gate.close()
    saving.persist_resumed()
    assert not of_process.lock(shared=False)
    saving.close()
    gate.open()
    assert of_process.lock(shared=False)


def test_what_an_earlier_start_of_the_same_name_left_is_not_taken_for_a_part_of_a_new_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `torchrun --master-port 29500` gives it: rank 1 of the start before had written its part of step 3."""
    for name, value in (
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "node-0"),
        ("MASTER_PORT", "29500"),
    ):
        monkeypatch.setenv(name, value)
    attempt = look_around().attempt
    mark = Mark(0, 3, 1, 2)
    earlier = replace(request(saved(state(3), mark), mark, tmp_path), attempt=attempt)
    working = tmp_path / storage.try_folder(3, attempt)
    (working / "notes").mkdir(parents=True)
    (working / "notes" / "gave-up-0").touch()
    with pytest.raises(SaveError):
        persist(earlier, lambda: None)
    assert (working / "notes" / "plan-1").exists()
    others = tmp_path / storage.try_folder(3, "other")
    others.mkdir()
    checkpointer = Checkpointer(tmp_path, state(0), every=1, persist_every=None)
    assert checkpointer.load() is None
    assert not working.exists() and others.exists()
    checkpointer.close()


@pytest.mark.real
def test_a_saver_that_was_killed_is_started_again(tmp_path: Path) -> None:
    saver, mark = Saver(), Mark(1, 4, 0, 1)
    saver.start()
    assert saver._process is not None
    os.kill(saver._process.pid, signal.SIGKILL)
    saver._process.wait()
    read = threading.Event()
    assert saver.save(request(saved(state(4), mark), mark, tmp_path), read.set) is None
    assert read.is_set() and steps_in(tmp_path) == [4]
    saver.close()


@pytest.mark.real
def test_a_saver_that_has_nothing_to_do_is_not_waited_for() -> None:
    """It may have just been started, and import torch for long on a busy machine."""
    saver = Saver()
    saver.start()
    process = saver._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    saver.close()
    assert process.returncode == -signal.SIGKILL


def test_another_kind_of_optimizer_is_a_mismatch_and_another_release_of_it_is_none() -> None:
    """torch loads it without a word, and its first step ends with a KeyError."""
    model = torch.nn.Linear(2, 2)
    made = {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}
    slot = saved(made, mark := Mark(1, 1, 0, 1))
    made["optimizer"] = torch.optim.SGD(model.parameters(), momentum=0.9)
    with (
        own_slot(slot.path, mark) as own,
        pytest.raises(
            MismatchError,
            match=r"optimizer is another kind of optimizer .* has amsgrad, and only SGD has dampening",
        ),
    ):
        restore(made, own.values, own.rng, own.parts, own.fill)
    newer = torch.optim.AdamW(model.parameters())
    newer.param_groups[0]["new"] = True
    made["optimizer"] = newer
    with own_slot(slot.path, mark) as own:
        restore(made, own.values, own.rng, own.parts, own.fill)


@pytest.mark.real
def test_a_checkpointer_that_is_closed_leaves_no_files_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = [private_slot(capture(state(1))) for _ in range(3)]
    told = {"round": 1, "slots": [slot.path for slot in slots], "resume": None}
    (tmp_path / "file").write_text(json.dumps(told))
    savers.server()  # which all tests have in common
    gc.collect()
    for given in ("", str(tmp_path / "file")):
        monkeypatch.setenv("DLR_CHECKPOINT_FILE", given)
        before = len(list(Path("/proc/self/fd").iterdir()))
        checkpointer = Checkpointer(tmp_path / f"path{len(given)}", state(1), every=1, persist_every=1)
        checkpointer.step(1)
        checkpointer.close()
        del checkpointer
        gc.collect()
        assert len(list(Path("/proc/self/fd").iterdir())) == before
        assert steps_in(tmp_path / f"path{len(given)}") == [1], "closed only after it was saved"


@pytest.mark.real
def test_slots_of_another_world_are_read_from_other_pods_and_verified() -> None:
    torch.manual_seed(1)
    pool = Pool(3 << 18, 3)
    for rank, slot in enumerate(pool.slots):
        write(slot, state(9), Mark(2, 9, rank, 3))
    key = bytes(range(32))
    listener = Listener("127.0.0.1", key)
    server = SlotServer(pool, listener, lambda *_: False, lambda _: [])
    address = f"tcp://{server.address}"
    shards = {0: address, 1: pool.slots[1].path, 2: address}
    source = in_slots(MemoryResume(2, 9, 3, None, shards, key=key), 1)
    loaded = state(0)
    restore(loaded, source.values, source.rng, source.parts, source.fill)
    assert_whole(loaded, 9)
    with pytest.raises(OSError, match="it is not here"):
        in_slots(MemoryResume(2, 8, 3, None, dict.fromkeys(range(3), address), key=key), 0)

    damaged = pool.slots[0]
    entry = max(damaged.header().entries, key=lambda entry: entry.nbytes)
    damaged.bytes(entry.offset, entry.offset + 1)[0] ^= 4
    source = in_slots(MemoryResume(2, 9, 3, None, dict.fromkeys(range(3), address), key=key), 0)
    with pytest.raises(DamagedError, match=f"{entry.name} is not what was written"):
        restore(state(0), source.values, source.rng, source.parts, source.fill)
    assert damaged.commit_word is CommitWord.DAMAGED, "its owner knows, and names it no more"
    with pytest.raises(OSError, match="it is not here"):
        in_slots(MemoryResume(2, 9, 3, None, dict.fromkeys(range(3), address), key=key), 0)
    server.close()
    listener.close()
    pool.close()


def test_load_waits_for_storage_that_is_away_and_not_for_a_path_that_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([OSError(errno.ESTALE, "Stale file handle"), OSError(errno.EIO, "Input/output error"), []])

    def list_or_fail(_files: Files) -> list[int]:
        if isinstance(answer := next(answers), OSError):
            raise answer
        return answer

    monkeypatch.setattr(choosing, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(storage, "steps_in", list_or_fail)
    assert choose(files_at(tmp_path), here()) is None
    answers = iter([OSError(errno.EACCES, "Permission denied")])
    with pytest.raises(StorageError, match=r"cannot be listed: .*Permission denied"):
        choose(files_at(tmp_path), here())


def test_a_step_that_is_written_again_is_there_and_whole_at_each_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 3)
    files, seen = files_at(tmp_path), []

    def observe(act: Callable[..., None]) -> Callable[..., None]:
        def acted(*arguments: object, **options: bool) -> None:
            act(*arguments, **options)
            manifest = storage.read_manifest(files, 3)
            storage.verify(files, manifest, manifest.files)
            seen.append(manifest.attempt)

        return acted

    for act in ("write", "remove"):
        monkeypatch.setattr(LocalFiles, act, observe(getattr(LocalFiles, act)))
    save(tmp_path, 3, round=2)
    assert seen.count("try1") >= 3 and seen[-1] == "try2" and seen == sorted(seen)
    assert [entry.name for entry in (tmp_path / "step-3").glob("try-*")] == ["try-try2"]


@pytest.mark.real
def test_a_newer_checkpoint_whose_files_hang_holds_up_no_resume_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 5)
    save(tmp_path, 9)
    answers, begun, wait = threading.Event(), Queue[Callable[[], None]](), choosing.wait
    waits = iter(["listing", "a part", "a part", "a part", "nothing", "too much"])

    def read(files: Files, place: str, note_read: Callable[[], None]) -> storage.File:
        begun.put(note_read)
        answers.wait(300)
        raise OSError("the mount was ended")

    def in_time(futures: list[Future[object]], seconds: float) -> object:
        """End as such a wait does, in which storage answers with this; while parts come, it does not hang."""
        if (came := next(waits)) == "listing":
            return wait(futures, 300)
        if came == "a part":
            begun.put(note_read := begun.get(timeout=300))
            note_read()
        return wait(futures, 0)

    monkeypatch.setattr(choosing, "wait", in_time)
    monkeypatch.setattr(storage, "describe", read)
    try:
        assert choosing.choose(files_at(tmp_path), here(), 4) is None
    finally:
        answers.set()
    assert next(waits) == "too much"
    assert "step-9: it cannot be read: storage has not answered for 10 s; training goes on" in caplog.text
    assert "step-5" not in caplog.text
