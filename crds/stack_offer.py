"""Stacks of a training process, which its interpreter writes on a signal from the agent."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from collections.abc import Mapping

from crds.progress_record import ENV_STACKS_FILE, ENV_STACKS_SIGNAL


def offer_stacks(environ: Mapping[str, str]) -> None:
    """Register a signal on which the stacks of all Python threads are written, even while C code hangs.

    Does nothing outside of dlr, or if the script uses the signal itself.
    """
    path, number = environ.get(ENV_STACKS_FILE), environ.get(ENV_STACKS_SIGNAL)
    if not path or not number:
        return
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # never a reason to stop training
        if signal.getsignal(int(number)) is signal.SIG_DFL:
            file = open(path, "ab", buffering=0)  # noqa: PTH123, SIM115 (open as long as the process lives)
            faulthandler.register(int(number), file=file, all_threads=True)
            file.write(b"pid %d\n" % os.getpid())  # the agent may have started a wrapper
