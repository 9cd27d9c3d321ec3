"""What `dlr.report` costs a step, by how many numbers it tells.

    python -m benchmarks.report_numbers

Prints nanoseconds of CPU time for one call, the best of ROUNDS.
"""

from __future__ import annotations

import os
import struct
import tempfile
import time
from collections.abc import Callable

from crds.progress_record import ENV_PROGRESS_FILE, NUMBERS_FORMAT, PROGRESS_FORMAT

ROUNDS, CALLS = 20, 50_000


def best_nanoseconds(call: Callable[[int], object]) -> float:
    return min(_seconds(call) for _ in range(ROUNDS)) / CALLS * 1e9


def _seconds(call: Callable[[int], object]) -> float:
    started_at = time.thread_time()
    for step in range(CALLS):
        call(step)
    return time.thread_time() - started_at


def main() -> None:
    with tempfile.NamedTemporaryFile() as record:
        record.write(bytes(struct.calcsize(PROGRESS_FORMAT) + struct.calcsize(NUMBERS_FORMAT)))
        record.flush()
        os.environ[ENV_PROGRESS_FILE] = record.name
        import dlr  # it opens the file at the first call

        three = {"lr": 3e-4, "grad_norm": 1.5, "tokens": 8_192}
        seven = three | {"aux": 0.1, "mfu": 0.4, "entropy": 2.0, "reward": 1.0}
        print(f"the step alone: {best_nanoseconds(dlr.report):,.0f} ns")
        for numbers in ({}, three, seven):
            cost = best_nanoseconds(lambda step, told=numbers: dlr.report(step, loss=2.5, **told))  # type: ignore[misc]
            print(f"with a loss and {len(numbers)} more numbers: {cost:,.0f} ns")


if __name__ == "__main__":
    main()
