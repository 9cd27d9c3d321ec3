"""Checkpoints where nothing can be renamed: a server that speaks S3, by way of fsspec."""

from __future__ import annotations

import errno
import json
import re
from typing import Any

import pytest

from dlr.checkpoint import Checkpointer, StorageError, choosing, storage
from dlr.checkpoint.choosing import choose
from dlr.checkpoint.files import RemoteFiles, files_at
from dlr.checkpoint.surroundings import Surroundings
from tests.checkpoint.buckets import Bucket
from tests.checkpoint.states import assert_whole, save, set_step, state, steps_in

pytestmark = pytest.mark.real

HERE = Surroundings(0, 1, "", "a")


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


def test_a_store_that_has_too_much_to_do_for_a_while_is_waited_for(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(bucket.url, 1)
    monkeypatch.setattr(choosing, "_LOOK_SECONDS", 0.01)
    files = files_at(bucket.url)
    assert isinstance(files, RemoteFiles)
    for name in ("ls", "info"):
        refusals, call = [OSError(errno.EBUSY, "SlowDown"), RuntimeError("503")], getattr(files._fs, name)

        def answer(*args: Any, refusals: list[Exception] = refusals, call: Any = call, **options: Any) -> Any:
            if refusals:
                raise refusals.pop()
            return call(*args, **options)

        monkeypatch.setattr(files._fs, name, answer)
    assert (found := choose(files, HERE)) is not None and found.step == 1
