"""Savers that are forks of one process that has imported torch: a second of a core less for each.

The server is that of the agents' tests. Ranks, which are processes of their own, use that of the test process.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

from dlr.checkpoint import persistence
from tests.agent.fork_server import Fork, ForkServer, ask


class ForkedSaver(Fork):
    """A saver, with the methods of `subprocess.Popen` that a `Saver` calls, from several threads."""

    def __init__(self, exits: int, requests: int, answers: int) -> None:
        super().__init__(exits)
        self._polling = threading.Lock()
        self.stdin, self.stdout = os.fdopen(requests, "w"), os.fdopen(answers)

    def poll(self) -> int | None:
        with self._polling:
            return super().poll()


@cache
def server() -> ForkServer:
    """Return the server of this test process, which ends with it."""
    return ForkServer()


def start_saver(control: socket.socket) -> Any:
    """Start a saver as `persistence.start_saver` does, as a fork of the server behind the socket."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}
    request = {
        "module": persistence.PROGRAM,
        "argv": [],
        "env": env,
        "directory": str(Path.cwd()),
        "constants": {},
    }
    (their_requests, requests), (answers, their_answers) = os.pipe(), os.pipe()
    try:
        exits = ask(control, request, {0: their_requests, 1: their_answers, 2: 2})
    finally:
        os.close(their_requests)
        os.close(their_answers)
    saver = ForkedSaver(exits, requests, answers)
    os.setpriority(os.PRIO_PROCESS, saver.pid, os.nice(0) + persistence.NICENESS)
    return saver
