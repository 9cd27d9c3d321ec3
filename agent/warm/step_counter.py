"""Counts training steps by torch's global hook for optimizer steps, for scripts that do not report them.

It works in forked processes, which have torch before their script begins. The count goes into the progress
record beside the script's own reports, and the agent decides which of the two it uses (docs/hangs.md).
Neither torch nor the script is changed; `DLR_COUNT_STEPS=0` in the Pod's environment turns it off.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from agent.torch_compat.training import Hook, serve_records, uncompiled
from crds import progress_record as words
from crds.names import ENV_COUNT_STEPS
from crds.stack_offer import offer_stacks

OFF = "0"
LOOKED_AT = 8
"""Number of parameters whose state is searched for the number of the first step."""


def count_steps(environ: Mapping[str, str]) -> None:
    """Count the steps of this process's optimizers, and write its stacks on the agent's signal.

    It does nothing outside of dlr, if `DLR_COUNT_STEPS` is 0, or if the files cannot be used. Steps of
    processes that this one forks are not counted.
    """
    path = environ.get(words.ENV_PROGRESS_FILE)
    if not path or environ.get(ENV_COUNT_STEPS) == OFF:
        return
    try:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        with Path(path).open("r+b") as file:
            record = memoryview(mmap.mmap(file.fileno(), 0))
        handle = register_optimizer_step_post_hook(uncompiled(counting_hook(record)))
    except Exception:  # another torch, or no such file; training goes on without
        return
    os.register_at_fork(after_in_child=handle.remove)
    offer_stacks(environ)
    serve_records(environ)


def counting_hook(record: memoryview) -> Hook:
    """Return a hook that writes the count into a progress record.

    A new step begins when an optimizer steps for the second time. So the two optimizers of a GAN, nested
    ones, or one for each parameter, make one step together; and the count goes on when an optimizer is
    replaced.
    """
    steps, times = record.cast("q"), record.cast("d")
    monotonic, count, stepped = time.monotonic, 0, set[int]()
    alone: int | None = None  # the one optimizer that has stepped in this step

    def hook(optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        nonlocal count, alone
        me = id(optimizer)
        if me != alone:
            if not count:
                before = steps_before(optimizer)
                if before is None:
                    return
                steps[words.START_UNKNOWN], count = int(before == 0), before
                steps[words.COUNTED] = steps[words.FIRST_COUNTED] = count + 1
                times[words.FIRST_COUNTED_AT] = monotonic()
            elif me not in stepped:
                stepped.add(me)
                alone = None
                return
            stepped.clear()
            stepped.add(me)
            alone = me
        count += 1
        steps[words.COUNTED] = count
        times[words.COUNTED_AT] = monotonic()

    return hook


def makes_state(optimizer: Any) -> bool:
    """Whether an optimizer's step only creates its state, into which a checkpoint is loaded next.

    torch.distributed.checkpoint does so with a learning rate of 0 (`_init_optim_state`, in 2.6 to 2.13).
    """
    with contextlib.suppress(Exception):  # a foreign optimizer may have anything there
        rates = [group["lr"] for group in optimizer.param_groups]
        return bool(rates) and all(_is_readable(rate) and float(rate) == 0.0 for rate in rates)
    return False


def steps_before(optimizer: Any) -> int | None:
    """Return the number of steps before this process's first one; None if it is no step (`makes_state`).

    Most optimizers count their steps, and a checkpoint includes their state. The number is 0 for optimizers
    that do not count, such as SGD, and for those that were not loaded.
    """
    from torch.compiler import disable

    return disable(_steps_before)(optimizer)  # type: ignore[no-any-return, no-untyped-call]


def _steps_before(optimizer: Any) -> int | None:
    if makes_state(optimizer):
        return None
    found = [1]
    with contextlib.suppress(Exception):  # a foreign optimizer may have anything there
        for state in islice(optimizer.state.values(), LOOKED_AT):
            step = state.get("step")
            if _is_readable(step):
                found.append(int(step))
    return max(found) - 1


def _is_readable(step: Any) -> bool:
    """Whether a value can be read as a number without a collective, a compilation or a broken capture."""
    import torch

    if type(step) is not torch.Tensor:
        return isinstance(step, (int, float))
    on_gpu = step.is_cuda and not torch.cuda.is_current_stream_capturing()
    return step.numel() == 1 and (step.is_cpu or on_gpu)
