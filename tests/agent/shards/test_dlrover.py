"""Scripts that use DLRover's sharding clients, over desks with the controller's own decision behind them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from crds.progress_record import ENV_ROUND
from crds.shard_set import ENV_SHARDS_SOCKET
from dlr.pod import SDK
from dlr.shards import ShardsError
from dlr.shards.dlrover import IndexShardingClient, ShardingClient, set_name
from tests.agent.shards.conftest import Job

pytestmark = pytest.mark.real


def test_epochs_follow_each_other_and_the_last_shard_is_short(alone: Job) -> None:
    client = ShardingClient("test", 16, 2, 100, num_minibatches_per_shard=2)
    shards, epochs = [], []
    while (shard := client.fetch_shard()) is not None:
        shards.append((shard.start, shard.end))
        epochs.append(client.get_current_epoch())
        assert client.report_batch_done(shard.end - shard.start)
    assert shards == [(0, 32), (32, 64), (64, 96), (96, 100)] * 2
    assert epochs == [0] * 4 + [1] * 4
    assert client.get_total_sample_num() == 200


@pytest.mark.parametrize("storage_type", ["table", "text"])
def test_each_epoch_is_shuffled_anew_and_whole(alone: Job, storage_type: str) -> None:
    client = ShardingClient("test", 8, 2, 100, True, num_minibatches_per_shard=1, storage_type=storage_type)
    epochs: list[list[int]] = [[], []]
    while (shard := client.fetch_shard()) is not None:
        epochs[client.get_current_epoch()] += shard.indices or range(shard.start, shard.end)
        client.report_batch_done(shard.end - shard.start)
    assert [sorted(epoch) for epoch in epochs] == [list(range(100))] * 2
    assert len({tuple(epoch) for epoch in [*epochs, range(100)]}) == 3


def test_indices_through_a_loader_that_takes_them_ahead(alone: Job) -> None:
    client = IndexShardingClient("test", 16, 1, 100, num_minibatches_per_shard=2)
    seen = []
    while True:
        try:
            seen.append(client.fetch_sample_index())
        except StopIteration:
            break
        if len(seen) % 16 == 0:
            client.report_batch_done()
    assert seen == list(range(100))
    client.report_batch_done(4)
    assert client.get_current_task() is None and client.fetch_shard() is None and alone.sets[0].is_over
    with pytest.raises(StopIteration):
        client.fetch_sample_index()


def test_who_reports_only_when_the_data_are_over_does_not_wait_for_itself(alone: Job) -> None:
    client = ShardingClient("test", 10, 1, 100, num_minibatches_per_shard=1)
    while client.fetch_shard() is not None:
        pass
    assert alone.sets[0].done == 0
    assert [client.report_batch_done() for _ in range(11)] == [True] * 10 + [False]
    assert client.fetch_shard() is None and alone.sets[0].done == 10


def test_a_shard_that_always_fails_is_named(alone: Job) -> None:
    client = ShardingClient("test", 10, 1, 100, num_minibatches_per_shard=1)
    with pytest.raises(ShardsError, match=r"1 element \(4\) failed more than 3 times, .* no such table"):
        while (shard := client.fetch_shard()) is not None:
            client.report_batch_done(err_msg="no such table" if shard.start == 30 else "")


def test_a_checkpoint_takes_all_workers_back(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def client(worker: int, round_: str) -> ShardingClient:
        monkeypatch.setenv(ENV_SHARDS_SOCKET, job.desks[worker].path)
        monkeypatch.setenv(ENV_ROUND, round_)
        return ShardingClient("test", 10, 1, 200, num_minibatches_per_shard=1)

    job.add(0), job.add(1)
    first, second = client(0, "1"), client(1, "1")
    for _ in range(3):
        first.fetch_shard(), second.fetch_shard()
        first.report_batch_done(), second.report_batch_done()
    job.look()
    saved = first.get_shard_checkpoint()
    undone = {number for start, end in json.loads(saved)["todo"] for number in range(start, end)}
    for _ in range(2):  # after the checkpoint
        first.fetch_shard(), second.fetch_shard()
        first.report_batch_done(), second.report_batch_done()

    again, other = client(0, "2"), client(1, "2")
    assert again.restore_shard_from_checkpoint(saved) and other.restore_shard_from_checkpoint(saved)
    done = []
    while (shard := again.fetch_shard()) is not None:
        done.append(shard.start // 10)
        again.report_batch_done()
        if not other.get_current_task() and (taken := other.fetch_shard()) is not None:
            done.append(taken.start // 10)
        other.report_batch_done()
    assert sorted(done) == sorted(undone) and len(undone) < 20
    assert job.sets[0].restoration == 2 and job.sets[0].done == 20
    first.report_batch_done()  # a process of before counts no more


def test_a_checkpoint_that_is_saved_before_the_job_has_gone_back_is_the_one_that_was_loaded(
    alone: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was done since is not in the model any more; the job still counts it as done."""
    monkeypatch.setenv(ENV_ROUND, "1")
    client = ShardingClient("test", 10, 1, 100, num_minibatches_per_shard=1)
    saved = client.get_shard_checkpoint()
    while client.fetch_shard() is not None:
        client.report_batch_done()
    monkeypatch.setattr(alone, "look", lambda: None)  # the controller is away
    again = ShardingClient("test", 10, 1, 100, num_minibatches_per_shard=1)
    again.restore_shard_from_checkpoint(saved)
    assert json.loads(again.get_shard_checkpoint())["todo"] == [[0, 10]]


@pytest.mark.parametrize(
    ("checkpoint", "sentence"),
    [
        ("no JSON", "no checkpoint that get_shard_checkpoint has given here"),
        ('{"todo": [[0, 64]], "doing": [], "dataset_name": "test"}', "no checkpoint that .*KeyError"),
        (None, "the checkpoint has dataset_size 100, and this process 101"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(alone: Job, checkpoint: str | None, sentence: str) -> None:
    other = ShardingClient("test", 10, 1, 100)
    with pytest.raises(ShardsError, match=sentence):
        ShardingClient("test", 10, 1, 101).restore_shard_from_checkpoint(
            checkpoint or other.get_shard_checkpoint()
        )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"storage_type": "sls"}, "'sls' is a stream of unknown length"),
        ({"dataset_size": -1}, "dataset_size is -1"),
        ({"num_epochs": None}, "num_epochs is None"),
    ],
)
def test_what_has_no_counterpart_is_refused(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(ShardsError, match=sentence):
        ShardingClient(
            **{"dataset_name": "t", "batch_size": 1, "num_epochs": 1, "dataset_size": 9, **arguments}
        )  # type: ignore[arg-type]


def test_any_name_of_a_dataset_becomes_one_of_a_set() -> None:
    names = ["train", "/data/train.csv", "/data/train_csv", "x" * 100, "", "日本"]
    found = [set_name(name) for name in names]
    assert found[0] == "train" and len(set(found)) == len(names)
    assert all(set_name(name) == name for name in found), "each is a name of a set"


def test_without_an_agent_a_process_has_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_SHARDS_SOCKET, raising=False)
    client = ShardingClient("test", 10, 1, 100, num_minibatches_per_shard=1)
    client.fetch_shard(), client.fetch_shard()
    client.report_batch_done()
    saved = client.get_shard_checkpoint()
    again = ShardingClient("test", 10, 1, 100, num_minibatches_per_shard=1)
    again.restore_shard_from_checkpoint(saved)
    starts = []
    while (shard := again.fetch_shard()) is not None:
        starts.append(shard.start)
        again.report_batch_done()
    assert starts == list(range(10, 100, 10))


IMPORTS = """
import dlrover.python.elastic_agent.sharding.client as client
print(client.ShardingClient.__module__)
try:
    import dlrover.python.common.log as log
except ImportError:
    print("no DLRover")
else:
    print(log.WHOSE)
"""


@pytest.mark.parametrize("is_installed", [False, True])
def test_scripts_import_our_client_and_all_else_of_dlrovers(tmp_path: Path, is_installed: bool) -> None:
    if is_installed:
        for package in (
            "dlrover",
            "dlrover/python",
            "dlrover/python/common",
            "dlrover/python/elastic_agent/sharding",
        ):
            (tmp_path / package).mkdir(parents=True, exist_ok=True)
        for folder in [path for path in (tmp_path / "dlrover").rglob("*") if path.is_dir()]:
            (folder / "__init__.py").touch()
        (tmp_path / "dlrover/__init__.py").touch()
        (tmp_path / "dlrover/python/common/log.py").write_text("WHOSE = 'real'\n")
        (tmp_path / "dlrover/python/elastic_agent/sharding/client.py").write_text(
            "raise SystemExit('the real one')\n"
        )
    path = os.pathsep.join([*SDK.dlrover_clients, os.environ.get("PYTHONPATH", ""), str(tmp_path)])
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split("\n")[:2] == ["dlr.shards.dlrover", "real" if is_installed else "no DLRover"], (
        done.stderr
    )
