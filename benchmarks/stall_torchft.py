"""Replica group of torchft, as in its own example: Manager, DistributedDataParallel and Optimizer.

It runs in an interpreter with torchft (`benchmarks/stall.py --torchft`), so it imports nothing of dlr.
"""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

FOLDER, GROUP = Path(os.environ["FOLDER"]), int(os.environ["REPLICA_GROUP_ID"])
STEP_SECONDS, WIDTH = float(os.environ["STEP_SECONDS"]), int(os.environ["WIDTH"])


def main() -> None:
    torch.set_num_threads(1)
    plain = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH))
    inner = torch.optim.AdamW(plain.parameters(), lr=1e-3)

    def state_dict() -> dict[str, object]:
        return {"model": plain.state_dict(), "optimizer": inner.state_dict()}

    def load_state_dict(state: dict[str, dict[str, object]]) -> None:
        plain.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=2,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"group_{GROUP}",
        timeout=timedelta(seconds=30),
    )
    model = DistributedDataParallel(manager, plain)
    optimizer = Optimizer(manager, inner)
    log = (FOLDER / f"{GROUP}-0-{os.getpid()}").open("a", buffering=1)
    target = torch.eye(WIDTH)
    while True:
        step = manager.current_step()
        generator = torch.Generator().manual_seed(step * 100 + GROUP * 10)
        inputs = torch.randn(8, WIDTH, generator=generator)
        optimizer.zero_grad()
        time.sleep(STEP_SECONDS)
        loss = (model(inputs) - inputs @ target).square().mean()
        loss.backward()
        optimizer.step()
        if manager.current_step() > step:
            line = {"group": GROUP, "rank": 0, "pid": os.getpid(), "step": step, "time": time.monotonic()}
            log.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
