"""The first warm parent of an agent: a fork of the agent itself, with torch imported and one thread."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Mapping, Sequence

from agent.warm.order import connected
from agent.warm.parent import USUAL, be_parent, set_environment
from agent.warm.warm_parent import ForkedProcess, WarmParent


def import_torch(env: Mapping[str, str]) -> None:
    """As training processes would, with their environment; ours is as it was then. Raises ImportError."""
    ours = dict(os.environ)
    set_environment(env)
    try:
        importlib.import_module(USUAL[0])
    finally:
        set_environment(ours)


def fork_parent(env: Mapping[str, str], modules: Sequence[str]) -> WarmParent | None:
    """A fork of this process, which has imported torch. None in a training process, after its script."""
    control, theirs = connected()
    pid = os.fork()
    if pid:
        theirs.close()
        return WarmParent(ForkedProcess(["dlr-warm-parent"], pid), control, env, modules)
    control.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as a new process has it
    os.setsid()  # Ctrl-C is for the agent, which tells the others
    set_environment(env)
    be_parent(theirs, modules)
    return None
