"""Profiles a training process by torch.profiler, on a signal of its agent.

For forked processes. Python runs a signal's handler in the main thread, which is the one to be profiled, and
nothing is done in any step. What is recorded are operators, and kernels where there is a GPU. A process ends
by itself what it has begun, whatever becomes of its agent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agent.torch_compat.training import before_another_profile, is_profiling
from crds import progress_record as words

SCRIPTS_OWN = "the script profiles itself at this time; ask again when it has ended, or for py-spy's"


def offer(environ: Mapping[str, str]) -> None:
    """Have this process profiled when its agent wants it to; nothing happens outside of dlr."""
    path, number = environ.get(words.ENV_STACKS_FILE), environ.get(words.ENV_STACKS_SIGNAL)
    if not path or not number:
        return
    with contextlib.suppress(OSError, ValueError):  # not the main thread, or no such signal
        signum = words.profile_signal(int(number))
        if signal.getsignal(signum) is signal.SIG_DFL:
            signal.signal(signum, Profiler(Path(path).parent))


class Profiler:
    """A signal's handler: it begins, and when the time is over its own signal has it end.

    Args:
        folder: says for how many seconds; there the result goes, as a compressed file of Chrome's trace
            format, or why there is none.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: Any = None
        self._until = 0.0
        self._restore: Callable[[], None] = lambda: None
        self._works = False
        """Python calls a handler within itself, when another signal comes."""

    def __call__(self, signum: int, _frame: Any) -> None:
        if self._works:
            return
        self._works = True
        try:
            if self._running is None:
                self._begin(signum)
            elif time.monotonic() >= self._until:
                self._end()
        except Exception as error:  # whatever it is, training goes on
            running, self._running = self._running, None
            if running is not None:
                with contextlib.suppress(Exception):
                    running.stop()
            self._fail(f"torch.profiler says {type(error).__name__}: {error}")
        finally:
            self._works = False

    def _begin(self, signum: int) -> None:
        from torch import cuda
        from torch.profiler import ProfilerActivity, profile

        request = self._folder / words.PROFILE_SECONDS
        try:
            seconds = float(request.read_text())
        except FileNotFoundError:
            return  # the signal at the end of one that has given way
        request.unlink()
        if is_profiling():
            self._fail(SCRIPTS_OWN)
            return

        activities = [ProfilerActivity.CPU]
        if cuda.is_available() and cuda.is_initialized():  # type: ignore[no-untyped-call]
            activities.append(ProfilerActivity.CUDA)
        profiler = profile(activities=activities)
        profiler.start()
        self._running, self._until = profiler, time.monotonic() + seconds
        self._restore = before_another_profile(self._give_way)
        timer = threading.Timer(seconds, os.kill, (os.getpid(), signum))
        timer.daemon = True
        timer.start()

    def _end(self) -> None:
        running, self._running = self._running, None
        self._restore()
        running.stop()
        made = self._folder / f"new.{words.PROFILE_FILE}"
        running.export_chrome_trace(str(made))
        made.rename(self._folder / words.PROFILE_FILE)

    def _give_way(self) -> None:
        """The script begins a profile of its own: it gets it whole, and who asked gets the reason."""
        running, self._running = self._running, None
        if running is not None:
            running.stop()
            self._fail(SCRIPTS_OWN)

    def _fail(self, why: str) -> None:
        said = self._folder / f"new.{words.PROFILE_ERROR}"
        with contextlib.suppress(OSError):
            said.write_text(why)
            said.rename(self._folder / words.PROFILE_ERROR)
