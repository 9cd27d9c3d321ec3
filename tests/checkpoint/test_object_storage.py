"""Checkpoints where nothing can be renamed: a server that speaks S3, by way of fsspec."""

from __future__ import annotations

import errno
import json
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.slots.slot import Mark
from crds.checkpoint_files import AFTER_FAILURE
from dlr.checkpoint import Checkpointer, StorageError, choosing, storage
from dlr.checkpoint.choosing import choose
from dlr.checkpoint.files import RemoteFiles, files_at
from dlr.checkpoint.saver import persist
from dlr.checkpoint.surroundings import Surroundings
from tests.checkpoint.buckets import Bucket
from tests.checkpoint.states import assert_whole, load_stored, saved, set_step, state, steps_in
from tests.checkpoint.states import request as asked
from tests.checkpoint.worlds import Slots, lines, run

pytestmark = pytest.mark.real

HERE = Surroundings(0, 1, "", "a")


def save(url: str, step: int, job: str = "", keep: int | None = 2, round: int = 1) -> None:
    slot = saved(state(step), mark := Mark(round, step, 0, 1))
    persist(asked(slot, mark, url, keep, job), lambda: None)
    slot.close()


@pytest.mark.named
def test_a_training_saves_keeps_the_newest_and_goes_on(bucket: Bucket) -> None:
    made = state(0)
    checkpointer = Checkpointer(bucket.url, made, persist_every=1, keep=2)
    assert checkpointer.load() is None
    for step in (1, 2, 3):
        set_step(made, step)
        assert checkpointer.step(step) is False
        checkpointer._storage.finish()
    checkpointer.close()
    assert steps_in(bucket.url) == [3, 2]
    names = {re.sub(r"try-\w+", "try", key) for key in bucket.names()}
    files = (".metadata", "try/__0_0.distcp", "try/manifest.json")
    assert names == {f"step-{step}/{file}" for step in (2, 3) for file in files}
    again = Checkpointer(bucket.url, loaded := state(0))
    assert again.find() == again.load() == 3
    assert_whole(loaded, 3)
    again.close()


def test_a_checkpoint_in_memory_is_persisted_by_savers_after_a_failure_and_not_twice(
    bucket: Bucket, tmp_path: Path
) -> None:
    slots = Slots()
    run(tmp_path, 2, "--steps", "3", "--model", "ddp", slots=slots)
    newest = slots.newest()
    assert newest is not None
    written = []
    for attempt in (f"{AFTER_FAILURE}2", f"{AFTER_FAILURE}3"):
        threads = []
        for mark, slot_path in newest.values():
            after = replace(asked(slot_path, mark, bucket.url), attempt=attempt)
            threads.append(threading.Thread(target=persist, args=(after, lambda: None)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        assert steps_in(bucket.url) == [3]
        written.append(bucket.names())
    assert written[0] == written[1]
    run(tmp_path, 2, "--steps", "4", "--model", "ddp", round=2, path=bucket.url)
    assert [line["start"] for line in lines(tmp_path) if "start" in line] == [0, 3]
    slots.close()


@pytest.mark.parametrize("file", [".metadata", "try-try1/__0_0.distcp", "try-try1/manifest.json"])
def test_a_damaged_object_is_found_and_what_is_older_is_used(
    bucket: Bucket, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    save(bucket.url, 1)
    save(bucket.url, 2)
    data = bytearray(bucket.get(f"step-2/{file}"))
    data[len(data) // 2] ^= 4
    bucket.put(f"step-2/{file}", bytes(data))
    assert (found := choose(files_at(bucket.url), HERE)) is not None and found.step == 1
    assert f"a checkpoint in {bucket.url} is damaged, and an older one is used: step-2: " in caplog.text
    load_stored(made := state(0), bucket.url, 1)
    assert_whole(made, 1)


def test_of_two_jobs_with_one_path_the_second_is_refused(bucket: Bucket) -> None:
    files = files_at(bucket.url)
    storage.check_owner(files, "ns/one")
    with pytest.raises(
        StorageError, match=f"{bucket.url} has the checkpoints of job ns/one, and this is job"
    ):
        storage.check_owner(files, "ns/two")
    assert json.loads(bucket.get("dlr-job.json")) == {"job": "ns/one"}
    with pytest.raises(FileExistsError):
        files.write("dlr-job.json", b"{}", exclusive=True)


@pytest.mark.parametrize("error", [OSError(errno.EBUSY, "SlowDown"), TimeoutError(), RuntimeError("503")])
def test_a_store_that_has_too_much_to_do_for_a_while_is_waited_for(
    error: Exception, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(bucket.url, 1)
    monkeypatch.setattr(choosing, "_LOOK_SECONDS", 0.01)
    files = files_at(bucket.url)
    assert isinstance(files, RemoteFiles)
    for name in ("ls", "info"):
        refusals, call = [error] * 2, getattr(files._fs, name)

        def answer(*args: Any, refusals: list[Exception] = refusals, call: Any = call, **options: Any) -> Any:
            if refusals:
                raise refusals.pop()
            return call(*args, **options)

        monkeypatch.setattr(files._fs, name, answer)
    assert (found := choose(files, HERE)) is not None and found.step == 1
