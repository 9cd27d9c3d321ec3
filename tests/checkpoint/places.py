"""Two ranks where little is allowed: run by a test as another user, with a read-only root and a small /dev/shm.

FOLDER    writable, and nothing else is. When FOLDER/ready is there, FOLDER/trains/path is to be made
          read-only, and FOLDER/sealed to say so.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

from agent.slots.pool import Pool
from tests.checkpoint.worlds import Slots, lines, run, start

SLOT_BYTES = 48 << 20
"""Six of them are larger than /dev/shm by far."""


def main(folder: Path) -> None:
    assert os.geteuid() != 0 and not os.access("/", os.W_OK)
    assert shutil.disk_usage("/dev/shm").total <= 64 << 20
    pool = Pool(3 * SLOT_BYTES, 3)
    assert all(slot.size >= SLOT_BYTES - 4096 for slot in pool.slots)
    pool.close()
    trains = folder / "trains"
    trains.mkdir()
    slots = Slots(SLOT_BYTES)
    for rank in range(2):
        for number in range(3):
            slots.slot(rank, number).whole().zero_()
    run(trains, 2, "--steps", "2", "--model", "ddp", "--persist", "2", slots=slots, round=1)
    run(trains, 2, "--steps", "3", "--model", "ddp", slots=slots, round=2)
    assert [line["start"] for line in lines(trains) if "start" in line] == [0, 2]
    assert not list(Path("/dev/shm").iterdir()), "nothing of ours needs it"
    reads(folder, trains)


def reads(folder: Path, trains: Path) -> None:
    """Storage that can only be read: it is loaded from, and a save says why it is not there."""
    (folder / "ready").touch()
    while not (folder / "sealed").exists():
        time.sleep(0.05)
    (processes,) = start(trains, 1, "--steps", "4", "--model", "plain", "--persist", "2", round=3)
    processes.join(300)
    errors = (trains / "err.3.0").read_text()
    assert processes.exitcode == 0, errors
    assert [line["start"] for line in lines(trains) if "start" in line][-1] == 2
    assert f"step 4 is not saved to {trains}/path: [Errno 30] Read-only file system" in errors, errors


if __name__ == "__main__":
    main(Path(sys.argv[1]))
