"""A training script that keeps a checkpoint of each step in its agent's memory, with nothing but the slots.

It writes `ROUND.RANK` lines into OUT: what it resumes from, and its steps.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

import dlr
from agent.slots.format import Mark, TensorPart, lay_out
from agent.slots.slot import Slot

HEADER = lay_out([TensorPart("weights", "int64", (1024,), 8192)])


def main() -> None:
    out, rank, size = Path(os.environ["OUT"]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    told = json.loads(Path(os.environ["DLR_CHECKPOINT_FILE"]).read_text())
    log = (out / f"{told['round']}.{rank}").open("a", buffering=1)
    print(json.dumps(told), file=log)
    step, resume = 0, told["resume"]
    if resume:
        own = Slot.open(resume["slot"])
        own.verify()
        assert own.mark == Mark(resume["round"], resume["step"], rank, size), own.mark
        step = int(own.tensor(HEADER.entries[0])[0])
        assert step == resume["step"]
    print(f"resumed {step}", file=log)
    if step:
        loaded = {"round": told["round"], "loaded": step, "tier": "memory"}
        Path(told["notice_file"]).write_text(json.dumps(loaded))
    dist.init_process_group("gloo")
    slots = [Slot.open(path) for path in told["slots"]]
    turn = 1
    while not (out / "end").exists():
        dist.barrier()
        step += 1
        slot, turn = slots[turn], (turn + 1) % len(slots)
        slot.begin()
        slot.tensor(HEADER.entries[0]).copy_(torch.full((1024,), step))
        slot.commit(Mark(told["round"], step, rank, size), HEADER)
        slot.sum_up()
        print(f"step {step}", file=log)
        dlr.report(step)
        time.sleep(float(os.environ.get("STEP_SECONDS", "0.02")))


if __name__ == "__main__":
    main()
