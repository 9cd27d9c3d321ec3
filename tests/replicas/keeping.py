"""What the processes of a fleet train where they have checkpoints in storage."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from crds import names
from dlr import replicas as dlr_replicas
from dlr.checkpoint import Checkpointer
from tests.replicas.scripts import digest, exact_step, model_of, optimizer_of, scheduler_of

PERSIST_EVERY = 10


def train(place: Any, channel: Any) -> None:
    """Train until the end of the test; write a line for each step that is committed."""
    os.environ |= {
        names.ENV_NAMESPACE: "default",
        names.ENV_GROUPED_JOB: "job",
        names.ENV_JOB_NAME: f"job-group-{place.group}",
        names.ENV_GROUP_INDEX: str(place.group),
    }
    folder = Path(place.folder)

    model = model_of(place.group * 100 + place.round)
    optimizer = optimizer_of(model)
    scheduler = scheduler_of(optimizer)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    checkpointer = Checkpointer(folder / "checkpoints", state, persist_every=PERSIST_EVERY)
    joined = dlr_replicas.join(model, optimizer, checkpoint=checkpointer, channel=channel)
    log = (folder / f"log-{place.group}-{place.round}-{place.rank}").open("a")
    for step in joined.steps():
        optimizer.zero_grad()
        time.sleep(0.01)
        exact_step(model, step, place.group)
        optimizer.step()
        scheduler.step()
        line = {"group": place.group, "round": place.round, "rank": place.rank, "step": step}
        line |= {"digest": digest(model), "rates": scheduler.last_epoch, "trained": joined.has_state}
        log.write(json.dumps(line) + "\n")
        log.flush()
        checkpointer.step(step + 1)
