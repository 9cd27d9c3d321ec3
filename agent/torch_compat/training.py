"""What a training process uses of torch beside the script's own calls.

torch is imported in the functions: the parent of the training processes reads this before it has torch. Where
a torch lacks something, the caller gets the ImportError or AttributeError, and does without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Hook = Callable[[Any, Any, Any], None]
"""torch's hook for the steps of optimizers: the optimizer, its arguments and its keywords."""


def is_profiling() -> bool:
    """Tell whether torch.profiler records this process.

    It records for one at a time, and the first to stop has it all. `_profiler_enabled` is in 2.6 to 2.13.
    """
    from torch import autograd

    return autograd._profiler_enabled()  # type: ignore[attr-defined]


def before_another_profile(act: Callable[[], None]) -> Callable[[], None]:
    """Have something done once, before this process begins the next recording by torch.profiler.

    One that is warming up (`schedule(warmup=…)`) has been prepared before, and is prepared anew.
    `_prepare_trace` and `_start_trace` are in 2.6 to 2.13.

    Returns:
        What takes that back.
    """
    from torch.autograd.profiler import profile

    prepare: Callable[[profile], None] = profile._prepare_trace
    start: Callable[[profile], None] = profile._start_trace

    def restore() -> None:
        profile._prepare_trace = prepare  # type: ignore[method-assign]
        profile._start_trace = start  # type: ignore[method-assign]

    def prepare_another(recording: profile) -> None:
        restore()
        act()
        prepare(recording)

    def start_another(recording: profile) -> None:
        prepare_another(recording)
        start(recording)

    profile._prepare_trace = prepare_another  # type: ignore[method-assign]
    profile._start_trace = start_another  # type: ignore[method-assign]
    return restore


def uncompiled(hook: Hook) -> Hook:
    """Have torch.compile call the hook as it is, where the step itself is compiled, and not compile it, too.

    `torch.compiler.disable` does that for all that is called below it, which takes 0.5 µs a call. `skip` is
    in 2.6 to 2.13.
    """
    from torch._dynamo.decorators import skip

    return skip(hook)
