"""The command of `dlr exec`: one process, with all that stems from it."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
from collections.abc import Mapping, Sequence

from agent.processes.exit_fd import open_exit_fd
from agent.processes.orphans import Orphans

logger = logging.getLogger(__name__)

ABANDON_SECONDS = 30.0
"""What outlives SIGKILL for so long sits in the kernel, and is waited for no longer (as in `dlr run`)."""


class CannotStartError(Exception):
    """The message is one sentence for a person."""

    def __init__(self, word: str, error: OSError) -> None:
        super().__init__(f"{word} cannot be started: {error.strerror}")
        self.exit_code = 127 if isinstance(error, FileNotFoundError) else 126
        """As a shell has it."""


class Command:
    def __init__(self, words: Sequence[str], environ: Mapping[str, str], mark: str) -> None:
        """
        Args:
            words: the command line.
            environ: what it has in its environment in any case.
            mark: `NAME=value` of a variable that tells its processes from others.
        """
        self._words, self._environ = words, environ
        self._orphans = Orphans(mark)
        self._process: subprocess.Popen[bytes] | None = None
        self._exit_fd: int | None = None

    @property
    def exit_fd(self) -> int | None:
        """Readable when it has ended; None while there is none."""
        return self._exit_fd

    def start(self, variables: Mapping[str, str]) -> None:
        """
        Raises:
            CannotStartError: there is no such program, or it may not be run.
        """
        environ = {**self._environ, **variables}
        try:
            self._process = subprocess.Popen(self._words, env=environ, start_new_session=True)
        except OSError as error:
            raise CannotStartError(self._words[0], error) from error
        self._orphans.started([self._process.pid])
        self._exit_fd = open_exit_fd(self._process.pid)

    def reap(self) -> None:
        """Collect what it has left behind, and what has ended."""
        self._orphans.reap(spared=() if self._process is None else (self._process.pid,))

    def poll(self) -> int | None:
        """Its exit code, once; 128 and more for a signal, as a shell says it."""
        if self._exit_fd is None or self._process is None or (code := self._process.poll()) is None:
            return None
        self._close()
        return 128 - code if code < 0 else code

    def end(self, grace_seconds: float) -> None:
        """SIGTERM, and SIGKILL to all that stems from the command when it has ended, or has no more time."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(grace_seconds)
        self._orphans.kill()
        try:
            process.wait(ABANDON_SECONDS)
        except subprocess.TimeoutExpired:
            logger.error("the command (process %d) outlives SIGKILL, and is given up", process.pid)
        self._close()

    def _close(self) -> None:
        if self._exit_fd is not None:
            os.close(self._exit_fd)
            self._exit_fd = None
