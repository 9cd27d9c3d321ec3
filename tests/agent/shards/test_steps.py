"""Steps that all ranks make together from a shard set, with desks and the controller's decision behind them."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crds.names import ENV_GROUPED_JOB
from crds.progress_record import ENV_ROUND
from crds.shard_set import ENV_SHARDS_SOCKET, SetDefinition
from dlr.data import ElasticShards
from dlr.data import shards as module
from dlr.shards import ShardsError, pull
from dlr.shards.source import LeasedShards
from tests.agent.shards.conftest import Job

pytestmark = pytest.mark.real

WAIT_SECONDS = 300
EPOCHS = 2


class World:
    """The ranks of one round, as threads; each has its worker's desk."""

    def __init__(self, job: Job, round_: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ranks = sorted(job.desks)
        self.step = 0
        self._told: dict[int, tuple[int, int]] = {}
        self._meet = threading.Barrier(len(self.ranks), timeout=WAIT_SECONDS)
        self._paths = {rank: desk.path for rank, desk in job.desks.items()}
        monkeypatch.setenv(ENV_ROUND, str(round_))
        monkeypatch.setattr(module, "source_of", self._source_of)
        monkeypatch.setattr(ElasticShards, "_from_all", lambda _shards, mine: self._from_all(mine))

    def _source_of(self, definition: SetDefinition) -> LeasedShards:
        return LeasedShards(definition, self._paths[me()])

    def _from_all(self, mine: tuple[int, int]) -> list[tuple[int, int]]:
        self._told[me()] = mine
        self._meet.wait()
        found = [self._told[rank] for rank in self.ranks]
        self._meet.wait()
        return found

    def train(self, saved: Mapping[str, Any], every: int, kill_after: int) -> dict[str, Any]:
        """Learn until the end, or for so many steps; the newest checkpoint."""
        kept: dict[int, dict[int, dict[str, Any]]] = {}

        def learn(rank: int) -> None:
            shards: ElasticShards[int] = ElasticShards("train", 40, size=3)
            model = Counter(saved["model"])
            if "shards" in saved:
                shards.load_state_dict(saved["shards"])
            step = 0
            while shards.epoch < EPOCHS:
                for part in shards:
                    learned = part.weight * len(part) > 0
                    everybodys = self._from_all((part.start, part.stop) if learned else (0, 0))
                    model.update(element for start, stop in everybodys for element in range(start, stop))
                    step += 1
                    if step % every == 0:
                        state = {"model": dict(model), "shards": shards.state_dict()}
                        kept.setdefault(step, {})[rank] = state
                    if step == kill_after:
                        shards._source._socket.close()  # type: ignore[union-attr]
                        shards._source._answers.close()  # type: ignore[union-attr]
                        return
            kept.setdefault(step + 1, {})[rank] = {"model": dict(model), "over": True}

        threads = [threading.Thread(target=learn, args=(r,), name=str(r), daemon=True) for r in self.ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()
        whole = [states for _, states in sorted(kept.items()) if len(states) == len(self.ranks)]
        assert all(state == states[self.ranks[0]] for states in whole for state in states.values())
        return whole[-1][self.ranks[0]] if whole else dict(saved)


def me() -> int:
    return int(threading.current_thread().name)


rounds = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 12)), max_size=6)
"""Workers, steps between two checkpoints, and steps until all are killed."""


@settings(max_examples=25, deadline=None)
@given(rounds)
def test_the_model_has_learned_from_each_element_once_an_epoch_through_any_kills(
    lives: list[tuple[int, int, int]],
) -> None:
    job, saved = Job(), dict[str, Any](model={})
    with pytest.MonkeyPatch.context() as monkeypatch:
        for round_, (workers, every, kill_after) in enumerate([*lives, (2, 5, 0)], start=1):
            for worker in range(4):
                if worker < workers and worker not in job.desks:
                    job.add(worker)
                elif worker >= workers and worker in job.desks:
                    job.remove(worker)
            job.show()
            saved = World(job, round_, monkeypatch).train(saved, every, kill_after)
            if "over" in saved:
                break
    for desk in list(job.desks.values()):
        desk.stop()
    assert saved["over"] and saved["model"] == dict.fromkeys(range(40), EPOCHS)


@pytest.fixture
def one_rank(alone: Job, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv(ENV_ROUND, "1")
    return alone


def test_without_an_agent_ranks_have_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_SHARDS_SOCKET, raising=False)
    shards = ElasticShards("train", 10, size=4)
    steps = iter(shards)
    assert [list(next(steps)), list(next(steps))] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    again = ElasticShards("train", 10, size=1)
    again.load_state_dict(shards.state_dict())
    assert [part[0] for part in again] == [8, 9] and again.epoch == 1


def test_in_a_replica_group_a_set_is_pulled_but_does_not_go_back_to_a_checkpoint(
    one_rank: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_GROUPED_JOB, "llm")
    pulled = pull("a", 8)
    assert next(pulled)[0] == 0
    assert pulled._source is not None
    with pytest.raises(ShardsError, match=r"'a': the replica groups of llm share the set"):
        pulled._source.restore(((0, 8),))


def test_in_a_replica_group_a_model_learns_only_from_shards_that_the_groups_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ENV_GROUPED_JOB, "llm")
    with pytest.raises(ShardsError, match=r"'a': .* groups of llm .* state= of dlr.replicas.join"):
        next(iter(ElasticShards("a", 8)))


def test_who_else_pulls_from_the_set_is_found_out(one_rank: Job) -> None:
    shards = ElasticShards("train", 6)
    steps = iter(shards)
    next(steps)
    other = pull("train", 6, retries=0)
    next(other), next(other)
    other.close()
    with pytest.raises(ShardsError, match="something else pulls from a set of this name"):
        list(steps)


def test_a_state_of_other_elements_is_refused(one_rank: Job) -> None:
    state = ElasticShards("train", ["a", "b"]).state_dict()
    with pytest.raises(ShardsError, match="the checkpoint has digest"):
        ElasticShards("train", ["b", "a"]).load_state_dict(state)
    shards = ElasticShards("train", ["a", "b"])
    next(iter(shards))
    with pytest.raises(ShardsError, match="load it before the first step"):
        shards.load_state_dict(state)


def test_what_is_of_no_round_cannot_learn(alone: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_ROUND, raising=False)
    assert ENV_SHARDS_SOCKET in os.environ
    with pytest.raises(ShardsError, match="`dlr exec` starts no rounds"):
        list(ElasticShards("train", 3))
