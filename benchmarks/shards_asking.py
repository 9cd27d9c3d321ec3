"""Run by benchmarks/shards_latency.py in each worker: it is done with a lease at once, and awaits the next.

At each tick of the clock that all workers share, it takes the lease that came meanwhile, is done with it in
the same moment, and measures how long the next one takes. A lease is asked for as soon as all of the last one
is taken, so that all of them ask with the tick.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import dlr.shards

OUT = Path(os.environ["OUT"])
ME = int(os.environ["DLR_WORKER_INDEX"])
TICK_SECONDS = 0.2
SIZE = 2**53 - 1
"""Of a set: it is over after some 130 leases."""


def ask(phase: str, sets: int) -> None:
    took = []
    for number in range(sets):
        with dlr.shards.pull(f"{phase}-{number}", SIZE, size=SIZE) as parts:
            while next(parts, None) is not None:
                began = time.perf_counter()
                if next(parts, None) is None:
                    break
                took.append(time.perf_counter() - began)
                time.sleep(TICK_SECONDS - time.time() % TICK_SECONDS)
    (OUT / f"{phase}-{ME}").write_text("".join(f"{seconds}\n" for seconds in took))


def main() -> None:
    over = OUT / "one-is-over"
    if ME == 0:
        ask("one", int(os.environ["SETS"]))
        over.touch()
    while not over.exists():
        time.sleep(TICK_SECONDS)
    ask("all", int(os.environ["SETS"]))


if __name__ == "__main__":
    main()
