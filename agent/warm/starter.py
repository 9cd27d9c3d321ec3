"""The agent's side of warm start: it keeps a warm parent, and has training processes forked from it."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
import os
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.distributed.elastic.multiprocessing import SubprocessContext
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from agent.warm.script import runs_python
from agent.warm.warm_parent import ForkedProcess, WarmParent, of_all_rounds

logger = logging.getLogger(__name__)

MAX_FAILURES = 3
"""Of parents; from then on processes are spawned as ever."""
WARM_SECONDS = 60.0
"""To wait for a parent at most, where nobody waits for us."""
PR_SET_CHILD_SUBREAPER = 36


class WarmStart:
    """Has processes forked that torch would spawn. For one thread; nothing is lost where it cannot."""

    def __init__(self, modules: Sequence[str] = (), parent: WarmParent | None = None) -> None:
        """With a parent that was started already, if there is one."""
        self._modules = tuple(modules)
        self._parent = parent
        self._failures = 0
        _become_subreaper()

    def prepare(self, env: Mapping[str, str]) -> None:
        """Have a parent ready for processes of this environment, unless too many came to nothing."""
        parent = self._parent
        if parent is not None and (parent.env, parent.modules) != (of_all_rounds(env), self._modules):
            logger.info("renewing the warm parent: it was started for another environment")
            self.close()
        if self._parent is None and self._failures < MAX_FAILURES:
            self._parent = WarmParent.started(env, self._modules)

    def await_warm(self, news: int, worth_it: Callable[[], bool]) -> None:
        """Until there is something to fork from, or that is not worth it: what `news` may change."""
        if self._parent is None:
            return
        parent, poll = self._parent.fileno(), select.poll()
        for descriptor in (news, parent):
            poll.register(descriptor, select.POLLIN)
        deadline = time.monotonic() + WARM_SECONDS
        while worth_it() and time.monotonic() < deadline:
            if parent in dict(poll.poll((deadline - time.monotonic()) * 1000)):
                return

    def start(
        self, argv: Sequence[str], env: Mapping[str, str], redirects: Mapping[int, int]
    ) -> ForkedProcess | None:
        """The process; None if it has to be spawned.

        Args:
            argv: the command, from the interpreter on.
            env: the whole environment.
            redirects: which descriptor of ours it gets as its 1 and 2.
        """
        if not runs_python(argv):
            return None
        self.prepare(env)
        if self._parent is None:
            return None
        try:
            return self._parent.fork(argv, env, redirects)
        except OSError as error:
            self._failures += 1
            logger.warning("the warm parent is of no use, so the process is spawned: %s", error)
            self.close()
            self.prepare(env)  # for the next round
            return None

    def close(self) -> None:
        if self._parent is not None:
            self._parent.close()
            self._parent = None

    @contextlib.contextmanager
    def serving_torch(self) -> Iterator[None]:
        """Meanwhile torch's SubprocessContext has its processes from here: it offers no other way in."""
        torch_multiprocessing: Any = importlib.import_module(SubprocessContext.__module__)
        spawn = torch_multiprocessing.get_subprocess_handler

        def get_handler(*args: Any, **kwargs: Any) -> SubprocessHandler:
            return WarmHandler(self, *args, **kwargs)

        torch_multiprocessing.get_subprocess_handler = get_handler
        try:
            yield
        finally:
            torch_multiprocessing.get_subprocess_handler = spawn


class WarmHandler(SubprocessHandler):
    """torch's handler of one process, which opens its logs and makes its environment."""

    def __init__(self, warm_start: WarmStart, *args: Any, **kwargs: Any) -> None:
        self._warm_start = warm_start
        super().__init__(*args, **kwargs)

    def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Any:
        outputs = {1: self._stdout, 2: self._stderr}
        redirects = {number: file.fileno() for number, file in outputs.items() if file is not None}
        return self._warm_start.start(args, env, redirects) or super()._popen(args, env)


def _become_subreaper() -> None:
    """Whatever our descendants leave behind becomes our child (prctl(2)). Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
