"""What counting costs a step: torch's hook with our function, with an empty one, and without any.

    python -m benchmarks.step_hook

Prints nanoseconds for one call of `optimizer.step()` of an optimizer with nothing to do, so that next to
nothing but torch's own bookkeeping is in it, and for a call of the hook alone: CPU time, the best of ROUNDS.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from agent.torch_compat.training import uncompiled
from agent.warm.step_counter import counting_hook
from crds.progress_record import PROGRESS_FORMAT

ROUNDS, CALLS = 20, 50_000


class Idle(torch.optim.Optimizer):
    """Its steps do nothing."""

    def __init__(self) -> None:
        super().__init__([torch.nn.Parameter(torch.zeros(1))], {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        pass


def nothing(_optimizer: Any, _arguments: Any, _keywords: Any) -> None:
    """The bare hook."""


def best_nanoseconds(call: Callable[[], object]) -> float:
    return min(_seconds(call) for _ in range(ROUNDS)) / CALLS * 1e9


def _seconds(call: Callable[[], object]) -> float:
    started_at = time.thread_time()
    for _ in range(CALLS):
        call()
    return time.thread_time() - started_at


def main() -> None:
    record = memoryview(bytearray(struct.calcsize(PROGRESS_FORMAT)))
    ours = uncompiled(counting_hook(record))
    optimizer = Idle()
    alone = best_nanoseconds(lambda: ours(optimizer, (), {})) - best_nanoseconds(
        lambda: nothing(optimizer, (), {})
    )
    steps = {"no hook": best_nanoseconds(optimizer.step)}
    for name, hook in (("an empty hook", nothing), ("ours", ours)):
        handle = register_optimizer_step_post_hook(hook)
        steps[name] = best_nanoseconds(optimizer.step)
        handle.remove()
    for name, nanoseconds in steps.items():
        print(f"a step with {name}: {nanoseconds:,.0f} ns")
    print(f"ours, beyond an empty hook: {steps['ours'] - steps['an empty hook']:,.0f} ns a step")
    print(f"ours, called alone, beyond an empty function: {alone:,.0f} ns")


if __name__ == "__main__":
    main()
