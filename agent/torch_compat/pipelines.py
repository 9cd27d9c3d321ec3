"""Pipeline schedules (torch.distributed.pipelining) of a process that lives on.

Before the first step of a schedule neighbouring stages exchange the shapes of their tensors. A newcomer does
so too, so all others have to do it again. Checked in the sources of torch 2.14; where another torch has no
such method, the first step fails, and all processes start again (`agent.survival.kept`).
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

_OF_SCHEDULE = ("_internal_losses", "fwd_recv_ops", "bwd_recv_ops", "unshard_ops", "unsharded_stages")
"""Attributes that an aborted step leaves filled, and that the next one expects to be empty."""

_initialized: weakref.WeakSet[Any] = weakref.WeakSet()
"""Schedules that have exchanged shapes since the last reset."""


def reset_schedules() -> None:
    """Make each schedule of this process begin like a new one at its next step, after a step was aborted."""
    module: Any = sys.modules.get("torch.distributed.pipelining.schedules")
    initialize = module and getattr(module._PipelineSchedule, "_initialize_pp_stages", None)
    if initialize is None:
        return
    _initialized.clear()
    if not hasattr(initialize, "__wrapped__"):
        module._PipelineSchedule._initialize_pp_stages = _first_after_reset(initialize)


def _first_after_reset(initialize: Callable[..., tuple[bool, bool]]) -> Callable[..., tuple[bool, bool]]:
    """Return `_initialize_pp_stages`, for which no schedule is initialized before its first call."""

    @functools.wraps(initialize)
    def wrapper(
        schedule: Any,
        stages: list[Any],
        args: Any,
        kwargs: Any,
        target: Any,
        fwd_initialized: bool,
        bwd_initialized: bool,
        **others: Any,
    ) -> tuple[bool, bool]:
        if schedule not in _initialized:
            _initialized.add(schedule)
            for name in _OF_SCHEDULE:
                if hasattr(schedule, name):
                    getattr(schedule, name).clear()
            fwd_initialized = bwd_initialized = False
        return initialize(schedule, stages, args, kwargs, target, fwd_initialized, bwd_initialized, **others)

    return wrapper
