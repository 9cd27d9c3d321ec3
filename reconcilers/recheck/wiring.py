"""The controller of checks after repair, and the changes that trigger it."""

from __future__ import annotations

from collections.abc import Iterable

from controller.builder import ControllerBuilder
from controller.manager import Manager
from controller.reconciler import Request
from controller.resources import NODES, Object
from reconcilers.observed.options import CordonMode, CordonOptions
from reconcilers.predicates import change_of
from reconcilers.recheck.reconciler import (
    BY_NODE,
    UNFINISHED,
    RecheckReconciler,
    check_keys,
    recheck_view,
)
from reconcilers.runtime.kinds import NODECHECKS
from reconcilers.runtime.tools import Tools

WORKERS = 1
"""One, since two looks at once could choose the same partners."""


def add(manager: Manager, tools: Tools, options: CordonOptions) -> None:
    """Register the controller if dlr cordons nodes."""
    if options.mode is not CordonMode.ENFORCE:
        return
    cache = manager.cache
    cache.add_index(NODECHECKS, BY_NODE, check_keys)

    def cordoned_node(check: Object) -> Iterable[Request]:
        return [Request(None, key) for key in check_keys(check) if key != UNFINISHED]

    (
        ControllerBuilder(manager, "recheck")
        .for_(NODES, predicate=change_of(recheck_view))
        .watches(NODECHECKS, cordoned_node)
        .with_workers(WORKERS)
        .build(RecheckReconciler(tools, options.namespace))
    )
