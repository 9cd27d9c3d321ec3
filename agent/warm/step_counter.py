"""Counts training steps where the script does not report them, by torch's global hook for optimizer steps.

For forked processes, which have torch before their script begins. The count goes into the progress record
beside what the script may report itself, and the agent decides which of the two counts (docs/hangs.md).
Nothing of torch or of the script is replaced; `DLR_COUNT_STEPS=0` in the Pod's environment turns it off.
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
"""Parameters whose state is looked at for the number of a first step."""


def count_steps(environ: Mapping[str, str]) -> None:
    """Have the steps of this process's optimizers counted, and its stacks shown on the agent's signal.

    Nothing happens outside of dlr, where `DLR_COUNT_STEPS` is 0, or where the files cannot be used: training
    goes on without. Processes that this one forks are not counted.
    """
    path = environ.get(words.ENV_PROGRESS_FILE)
    if not path or environ.get(ENV_COUNT_STEPS) == OFF:
        return
    try:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        with Path(path).open("r+b") as file:
            record = memoryview(mmap.mmap(file.fileno(), 0))
        handle = register_optimizer_step_post_hook(uncompiled(counting_hook(record)))
    except Exception:  # another torch, or no such file: nothing that may keep a script from training
        return
    os.register_at_fork(after_in_child=handle.remove)
    offer_stacks(environ)
    serve_records(environ)


def counting_hook(record: memoryview) -> Hook:
    """Return a hook that writes the count into a progress record.

    A new step begins when an optimizer steps that has stepped in this one already. So the two optimizers of a
    GAN, one within another, or one for each parameter, make one step together; and the count goes on when
    another optimizer takes the place of the first.
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
    """Whether this is no step, but torch's way to have the optimizer make its state, which is loaded then.

    torch.distributed.checkpoint does so with a learning rate of 0 (`_init_optim_state`, in 2.6 to 2.13).
    """
    with contextlib.suppress(Exception):  # another's optimizer may keep anything there
        rates = [group["lr"] for group in optimizer.param_groups]
        return bool(rates) and all(_is_readable(rate) and float(rate) == 0.0 for rate in rates)
    return False


def steps_before(optimizer: Any) -> int | None:
    """Return how many steps came before this process's first one; None if it is no step (`makes_state`).

    Most optimizers count their steps themselves, and their state is loaded with a checkpoint. It is 0 for one
    that does not, such as SGD, and for one that was not loaded.
    """
    from torch.compiler import disable

    return disable(_steps_before)(optimizer)  # type: ignore[no-any-return, no-untyped-call]


def _steps_before(optimizer: Any) -> int | None:
    if makes_state(optimizer):
        return None
    found = [1]
    with contextlib.suppress(Exception):  # another's optimizer may keep anything there
        for state in islice(optimizer.state.values(), LOOKED_AT):
            step = state.get("step")
            if _is_readable(step):
                found.append(int(step))
    return max(found) - 1


def _is_readable(step: Any) -> bool:
    """Whether it can be read as a number without a collective, a compilation or a broken graph capture."""
    import torch

    if type(step) is not torch.Tensor:
        return isinstance(step, (int, float))
    on_gpu = step.is_cuda and not torch.cuda.is_current_stream_capturing()
    return step.numel() == 1 and (step.is_cpu or on_gpu)
