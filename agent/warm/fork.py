"""The first warm parent of an agent: a fork of the agent itself, with torch imported and one thread."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Mapping, Sequence

from agent.warm.messages import socket_pair
from agent.warm.parent import USUAL_MODULES, run_parent, set_environment
from agent.warm.warm_parent import ForkedProcess, WarmParent


def import_torch(env: Mapping[str, str]) -> None:
    """Import torch with the environment of training processes, and restore ours.

    Raises:
        ImportError: there is no torch, or it cannot be loaded.
    """
    ours = dict(os.environ)
    set_environment(env)
    try:
        importlib.import_module(USUAL_MODULES[0])
    finally:
        set_environment(ours)


def fork_parent(env: Mapping[str, str], modules: Sequence[str]) -> WarmParent | None:
    """Fork this process, which has imported torch. Return None in a training process, after its script."""
    control, theirs = socket_pair()
    pid = os.fork()
    if pid:
        theirs.close()
        return WarmParent(ForkedProcess(["dlr-warm-parent"], pid), control, env, modules)
    control.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as a new process has it
    os.setsid()  # Ctrl-C is for the agent, which stops the others.
    set_environment(env)
    run_parent(theirs, modules)
    return None
