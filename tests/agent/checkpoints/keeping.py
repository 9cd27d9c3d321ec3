"""A training script that keeps a checkpoint of each step in its agent's memory, with nothing but the slots.

It writes `ROUND.RANK` lines into OUT: what it resumes from, and its steps. On a file `hold-STEP` it waits.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import dlr
from agent.slots.format import Mark, Part, lay_out
from agent.slots.slot import DamagedError, Slot
from agent.slots.wire import fetch

HEADER = lay_out([Part("weights", "int64", (1024,), 8192)])


def main() -> None:
    out, rank, size = Path(os.environ["OUT"]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    told = json.loads(Path(os.environ["DLR_CHECKPOINT_FILE"]).read_text())
    log = (out / f"{told['round']}.{rank}").open("a", buffering=1)
    print(json.dumps(told), file=log)
    step, resume = 0, told["resume"]
    if resume and resume["slot"]:
        own = Slot.open(resume["slot"])
        try:
            own.verify()
        except DamagedError as error:
            own.damaged()
            sys.exit(f"dlr.checkpoint.DamagedCheckpointError: {error}")
        assert own.mark == Mark(resume["round"], resume["step"], rank, size), own.mark
        step = int(own.tensor(HEADER.entries[0])[0])
        assert step == resume["step"]
    elif resume:
        wanted = {int(r): at for r, at in resume["shards"].items()}
        assert sorted(wanted) == list(range(resume["world_size"]))
        key = bytes.fromhex(resume["key"])
        steps = {
            read(at, key, Mark(resume["round"], resume["step"], r, len(wanted))) for r, at in wanted.items()
        }
        (step,) = steps
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
        while (out / f"hold-{step}").exists():
            time.sleep(0.01)
        time.sleep(float(os.environ.get("STEP_SECONDS", "0.02")))


def read(at: str, key: bytes, mark: Mark) -> int:
    if at.startswith("tcp://"):
        slot = Slot(mmap.mmap(-1, 1 << 20))
        fetch(at.removeprefix("tcp://"), key, mark, slot)
    else:
        slot = Slot.open(at)
        slot.verify()
        assert slot.mark == mark
    return int(slot.tensor(HEADER.entries[0])[0])


if __name__ == "__main__":
    main()
