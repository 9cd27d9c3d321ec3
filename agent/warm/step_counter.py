"""Counts training steps where the script does not report them: by torch's hook for the steps of optimizers.

For forked processes, which have torch before their script begins. The count goes into the progress record
beside what the script may report itself, and the agent decides which of the two counts (docs/hangs.md).
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from crds.names import ENV_COUNT_STEPS
from crds.protocol import (
    COUNTED,
    COUNTED_AT,
    ENV_PROGRESS_FILE,
    ENV_STACKS_FILE,
    ENV_STACKS_SIGNAL,
    FIRST_COUNTED,
    FIRST_COUNTED_AT,
)

Hook = Callable[[Any, Any, Any], None]

OFF = "0"
LOOKED_AT = 8
"""Parameters whose state is looked at for the number of a first step."""


def count_steps(environ: Mapping[str, str]) -> None:
    """Have the steps of this process's optimizers counted, and its stacks shown on the agent's signal.

    Nothing happens outside of dlr, where `DLR_COUNT_STEPS` is 0, or where the files cannot be used: training
    goes on without. Processes that this one forks are not counted.
    """
    path = environ.get(ENV_PROGRESS_FILE)
    if not path or environ.get(ENV_COUNT_STEPS) == OFF:
        return
    try:
        from torch.compiler import disable
        from torch.optim.optimizer import register_optimizer_step_post_hook

        with Path(path).open("r+b") as file:
            hook = counting_hook(memoryview(mmap.mmap(file.fileno(), 0)))
        # disable: where the step itself is compiled, the hook is called as it is, and not compiled with it.
        handle = register_optimizer_step_post_hook(disable(hook))  # type: ignore[no-untyped-call]
    except Exception:  # another torch, or no such file: nothing that may keep a script from training
        return
    os.register_at_fork(after_in_child=handle.remove)
    _offer_stacks(environ)


def counting_hook(record: memoryview) -> Hook:
    """Return a hook that writes the count into a progress record.

    A new step begins when an optimizer steps that has stepped in this one already. So the two optimizers of a
    GAN, one within another, or one for each parameter, make one step together; and the count goes on when
    another optimizer takes the place of the first.

    Raises:
        ValueError: the record is too short.
    """
    steps, times = record.cast("q"), record.cast("d")
    if len(steps) <= FIRST_COUNTED_AT:
        raise ValueError(f"a progress record of {len(record)} bytes has no place for counted steps")
    monotonic, count, stepped = time.monotonic, 0, set[int]()

    def hook(optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        nonlocal count
        if not count and makes_state(optimizer):
            return
        me = id(optimizer)
        if count and me not in stepped:
            stepped.add(me)
            return
        stepped.clear()
        stepped.add(me)
        now = monotonic()
        if count:
            count += 1
        else:
            count = first_step(optimizer)
            steps[FIRST_COUNTED], times[FIRST_COUNTED_AT] = count, now
        steps[COUNTED], times[COUNTED_AT] = count, now

    return hook


def makes_state(optimizer: Any) -> bool:
    """Whether this is no step, but torch's way to have the optimizer make its state, which is loaded then.

    torch.distributed.checkpoint does so with a learning rate of 0 (`_init_optim_state`, in 2.6 to 2.13).
    """
    with contextlib.suppress(Exception):  # another's optimizer may keep anything there
        rates = [group["lr"] for group in optimizer.param_groups]
        return bool(rates) and all(_is_readable(rate) and float(rate) == 0.0 for rate in rates)
    return False


def first_step(optimizer: Any) -> int:
    """Return the number of a step that is this process's first.

    Most optimizers count their steps themselves, and their state is loaded with a checkpoint: then the number
    goes on from there. SGD does not, and begins with 1.
    """
    found = [1]
    with contextlib.suppress(Exception):  # another's optimizer may keep anything there
        for state in islice(optimizer.state.values(), LOOKED_AT):
            step = state.get("step")
            if _is_readable(step):
                found.append(int(step))
    return max(found)


def _is_readable(step: Any) -> bool:
    """Whether it can be read as a number without a collective, a compilation or a broken graph capture."""
    import torch

    if type(step) is not torch.Tensor:
        return isinstance(step, (int, float))
    on_gpu = step.is_cuda and not torch.cuda.is_current_stream_capturing()
    return step.numel() == 1 and (step.is_cpu or on_gpu)


def _offer_stacks(environ: Mapping[str, str]) -> None:
    """Do what `dlr.report_step` does at its first call (dlr/progress.py)."""
    path, number = environ.get(ENV_STACKS_FILE), environ.get(ENV_STACKS_SIGNAL)
    if not path or not number:
        return
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        file = Path(path).open("ab", buffering=0)  # noqa: SIM115 (open as long as the process lives)
        faulthandler.register(int(number), file=file, all_threads=True)
        file.write(b"pid %d\n" % os.getpid())
