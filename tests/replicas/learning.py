"""What the processes of a fleet learn from, where dlr.data deals to them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from dlr import replicas as dlr_replicas
from dlr.data import ElasticBatchSampler, ElasticShards
from tests.replicas.scripts import model_of, optimizer_of


def learn(place: Any, channel: Any, length: int, constant_batch: bool, seconds: float) -> None:
    """Training from the batches of a sampler."""
    sampler = ElasticBatchSampler(
        range(length),
        place.size,
        place.rank,
        global_batch_size=24,
        micro_batch_size=4,
        constant_batch=constant_batch,
    )
    loader = DataLoader(range(length), batch_sampler=sampler, collate_fn=list)  # type: ignore[arg-type]
    batches = sampler.global_batches(loader)
    _train(place, channel, sampler, lambda: next(batches), seconds)


def learn_shards(place: Any, channel: Any, length: int, seconds: float) -> None:
    """Training from the parts of a shard set."""
    shards: ElasticShards[int] = ElasticShards("train", length, size=4)
    parts = iter(shards)
    _train(place, channel, shards, lambda: [_Part(next(parts))], seconds)


class _Part:
    """A part, as the only micro-batch of a step."""

    def __init__(self, part: Any) -> None:
        self.data, self.weight = list(part), part.weight

    def accumulate(self, _: nn.Module) -> AbstractContextManager[None]:
        return nullcontext()


def _train(
    place: Any,
    channel: Any,
    data: ElasticBatchSampler | ElasticShards[int],
    batch: Callable[[], Iterable[Any]],
    seconds: float,
) -> None:
    """Train until the folder has a file `end`.

    Write down each step's samples before it is committed, and after it where it is.
    """
    ends = (Path(place.folder) / "end").exists
    model = model_of(place.group)
    optimizer = optimizer_of(model)
    joined = dlr_replicas.join(model, optimizer, state={"data": data}, channel=channel)
    committed: dict[int, list[int]] = {}
    joined.call_after_commit(lambda step, groups: committed.__setitem__(step, list(groups)))
    with (Path(place.folder) / f"log-{place.group}-{place.round}-{place.rank}").open("a") as log:
        for step in joined.steps(until=ends):
            optimizer.zero_grad()
            learned: list[int] = []
            line = {"group": place.group, "round": place.round, "rank": place.rank, "step": step}
            line |= {"epoch": data.epoch}
            for micro in batch():
                time.sleep(seconds)
                with micro.accumulate(model):
                    (model(torch.ones(1, 16)).mean() * micro.weight).backward()
                learned += micro.data if micro.weight else []
            log.write(json.dumps(line | {"learned": learned, "begun": list(joined.contributing)}) + "\n")
            log.flush()
            optimizer.step()
            if joined.has_state:
                line |= {"committed": committed[step], "state": data.state_dict()}
                log.write(json.dumps(line) + "\n")
                log.flush()
