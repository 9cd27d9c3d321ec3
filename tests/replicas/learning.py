"""What the processes of a fleet learn from, where a sampler of dlr.data deals to them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from dlr import replicas as dlr_replicas
from dlr.data import ElasticBatchSampler
from tests.replicas.scripts import model_of, optimizer_of


def learn(place: Any, channel: Any, length: int, steps: int, constant_batch: bool, seconds: float) -> None:
    """Training that writes down each step's samples before it is committed, and after it where it is."""
    model = model_of(place.group)
    optimizer = optimizer_of(model)
    sampler = ElasticBatchSampler(
        range(length),
        place.size,
        place.rank,
        global_batch_size=24,
        micro_batch_size=4,
        constant_batch=constant_batch,
    )
    joined = dlr_replicas.join(model, optimizer, state={"data": sampler}, channel=channel)
    committed: dict[int, list[int]] = {}
    joined.call_after_commit(lambda step, groups: committed.__setitem__(step, list(groups)))
    loader = DataLoader(range(length), batch_sampler=sampler, collate_fn=list)  # type: ignore[arg-type]
    batches = sampler.global_batches(loader)
    with (Path(place.folder) / f"log-{place.group}-{place.round}-{place.rank}").open("a") as log:
        for step in joined.steps(steps):
            optimizer.zero_grad()
            learned: list[int] = []
            line = {"group": place.group, "round": place.round, "rank": place.rank, "step": step}
            line |= {"epoch": sampler.epoch}
            for micro in next(batches):
                time.sleep(seconds)
                with micro.accumulate(model):
                    (model(torch.ones(1, 16)).mean() * micro.weight).backward()
                learned += micro.data if micro.weight else []
            log.write(json.dumps(line | {"learned": learned, "begun": list(joined.contributing)}) + "\n")
            log.flush()
            optimizer.step()
            if joined._member.trained:
                line |= {"committed": committed[step], "state": sampler.state_dict()}
                log.write(json.dumps(line) + "\n")
                log.flush()
