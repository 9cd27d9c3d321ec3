"""The agent's side of warm start: it keeps a warm parent, and has that fork the training processes."""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable, Mapping, Sequence

from agent.processes.orphans import become_subreaper
from agent.warm import Preloads
from agent.warm.script import runs_python
from agent.warm.warm_parent import ForkedProcess, WarmParent, without_round_variables

logger = logging.getLogger(__name__)

MAX_FAILURES = 3
"""After so many parents that came to nothing, processes are spawned for good."""
WARM_SECONDS = 60.0
"""How long a worker that nobody waits for gives its parent to become ready."""


class WarmStart:
    """Has processes forked that torch would spawn. Where it cannot, they are spawned. Not thread-safe."""

    def __init__(self, preloads: Preloads, parent: WarmParent | None = None) -> None:
        """Become a subreaper, as whose children processes can be forked by another one.

        Args:
            preloads: what the parent imports beside torch's modules.
            parent: one that was started already.

        Raises:
            OSError: this process cannot become a subreaper.
        """
        self._preloads = preloads
        self._parent = parent
        self._failures = 0
        become_subreaper()

    def sessions(self) -> tuple[int, ...]:
        """The ids of sessions that belong to no round: the parent's."""
        return () if self._parent is None else (self._parent.session,)

    def prepare(self, env: Mapping[str, str]) -> None:
        """Start a parent for processes of this environment, unless there is one or too many have failed."""
        parent, wanted = self._parent, (without_round_variables(env), self._preloads)
        if parent is not None and (parent.env, parent.preloads) != wanted:
            logger.info("renewing the warm parent: it was started for another environment")
            self.close()
        if self._parent is None and self._failures < MAX_FAILURES:
            self._parent = WarmParent.started(env, self._preloads)

    def await_warm(
        self, news: int, worth_it: Callable[[], bool], limit_seconds: float = WARM_SECONDS
    ) -> None:
        """Wait until the parent can fork, or cannot ever, or waiting is not worth it any more.

        Args:
            news: a descriptor that becomes readable when `worth_it` may have changed.
            worth_it: asked at first, and at news.
            limit_seconds: how long to wait at most.
        """
        if self._parent is None or self._is_decided(self._parent):
            return
        parent, poll = self._parent.fileno(), select.poll()
        for descriptor in (news, parent):
            poll.register(descriptor, select.POLLIN)
        deadline = time.monotonic() + limit_seconds
        while worth_it() and (left_seconds := deadline - time.monotonic()) > 0:
            if parent in dict(poll.poll(left_seconds * 1000)):
                return

    def start(
        self, argv: Sequence[str], env: Mapping[str, str], redirects: Mapping[int, int]
    ) -> ForkedProcess | None:
        """Fork a process. Return None if it has to be spawned.

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
            if not self._parent.is_ready():
                logger.info("the warm parent is not ready yet, so the process is spawned")
                return None
            return self._parent.fork(argv, env, redirects)
        except OSError as error:
            self._failures += 1
            logger.warning("the warm parent is of no use, so the process is spawned: %s", error)
            self.close()
            self.prepare(env)  # for the next round
            return None

    @staticmethod
    def _is_decided(parent: WarmParent) -> bool:
        try:
            return parent.is_ready()
        except OSError:
            return True  # `start` asks again, and says why.

    def close(self) -> None:
        if self._parent is not None:
            self._parent.close()
            self._parent = None
