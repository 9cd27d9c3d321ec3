"""Background saves of torch.distributed.checkpoint, whose collectives belong to the round of their beginning.

They may be between two collectives when a round ends, so closed connections do not end them: they would go on
among those of the next round. Checked in the sources of torch 2.14.
"""

from __future__ import annotations

import sys
import threading

_THREAD = "AsyncCheckpointExecutor"
"""Prefix of the name of a thread that saves; the thread ends with its save."""


def save_under_way() -> str | None:
    """Return what keeps this process from leaving its round alive; None if nothing does."""
    module = sys.modules.get("torch.distributed.checkpoint._async_process_executor")
    if module is not None and getattr(module, "_CHECKPOINT_PROCESS", None) is not None:
        return "dcp.async_save saves by a process of its own, which no process that joins later has"
    if any(thread.name.startswith(_THREAD) for thread in threading.enumerate()):
        return "dcp.async_save was under way"
    return None
