"""`dlr exec`: a command in a worker's Pod that goes on while other workers come and go. It needs no torch.

`dlr run` starts training processes anew with each world, since their collectives have to. What works on its
own, as a command that pulls shards does, needs no peers: it is started once, and every world that the job
forms is joined as it is. When it fails, its Pod does, and the job's failure policy says what follows.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import NoReturn

from agent.environment import Environment, InvalidEnvironmentError, grace_of_processes
from agent.kube.watcher import Watcher
from agent.link import FLUSH_SECONDS, Link
from agent.logs import log_to_stderr
from agent.monitor import accelerators
from agent.rendezvous.world import ExitReason, JobView, Member, Verb, next_action
from agent.report.reporter import Facts, Reporter
from agent.supervision.exit_fd import open_exit_fd
from agent.supervision.orphans import Orphans, adopt
from agent.temporary_directory import ensure_temporary_directory
from crds.protocol import ENV_SHARDS_SOCKET, AgentState

EXIT_USAGE = 2
EXIT_TERMINATED = 128 + signal.SIGTERM
NO_STORE = 0
"""There is no TCPStore: nobody meets here."""
JOB_END_SECONDS = 300.0
"""So long an agent whose command has ended well waits for the job's end while the API server is away."""


def main(argv: Sequence[str]) -> int:
    """Run a command, and return its exit code, 0 when the job has succeeded, or 143 when stopped.

    Args:
        argv: the command and its arguments; `-m MODULE` in front is run by the agent's own Python.
    """
    words = list(argv)[1:] if argv[:1] == ["--"] else list(argv)
    if not words or words == ["-m"] or (words[0].startswith("-") and words[0] != "-m"):
        print("usage: dlr exec [--] COMMAND [ARGS]..., or dlr exec -m MODULE [ARGS]...", file=sys.stderr)
        return EXIT_USAGE
    command = [sys.executable, *words] if words[0] == "-m" else words
    signal.signal(signal.SIGTERM, _leave)  # without a handler, it does not end a container's first process
    try:
        log_to_stderr()
        ensure_temporary_directory(os.environ)
        with contextlib.ExitStack() as cleanup:
            return Execution(Link.start(os.environ, cleanup), cleanup).run(command, os.environ)
    except InvalidEnvironmentError as error:
        print(f"dlr exec: {error}", file=sys.stderr)
        return EXIT_USAGE


def _leave(signum: int, _frame: FrameType | None) -> NoReturn:
    """As long as there is no command to tell: the API server may be away."""
    os._exit(128 + signum)


class Execution:
    """One command, from its start to the end of this agent."""

    def __init__(self, link: Link, cleanup: contextlib.ExitStack) -> None:
        self._me: Environment = link.environment
        self._member = Member(self._me.worker_index, self._me.incarnation)
        self._watcher: Watcher[JobView] = link.watcher
        self._desk, self._api = link.desk, link.api
        self._reporter: Reporter = link.reporter(Facts(NO_STORE, 1, accelerators.detect()), cleanup)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._orphans = Orphans(f"{ENV_SHARDS_SOCKET}={self._desk.path}")
        self._stop_signal: int | None = None

    def run(self, command: Sequence[str], environ: Mapping[str, str]) -> int:
        """Start it, and stay until it has failed, the job has ended, or this Pod is to go."""
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._note_signal)
        signal.signal(signal.SIGCHLD, self._note_child)
        adopt("commands")
        try:
            process = subprocess.Popen(
                command, env={**environ, ENV_SHARDS_SOCKET: self._desk.path}, start_new_session=True
            )
        except OSError as error:
            code = 127 if isinstance(error, FileNotFoundError) else 126  # as a shell says it
            print(f"dlr exec: {command[0]} cannot be started: {error.strerror}", file=sys.stderr)
            return code
        self._orphans.started([process.pid])
        self._reporter.start()
        try:
            code = self._supervise(process)
        finally:
            self._end(process)
            self._reporter.flush(FLUSH_SECONDS)
        return code

    def _note_signal(self, signum: int, _frame: FrameType | None) -> None:
        self._stop_signal = signum
        os.eventfd_write(self._wake_fd, 1)

    def _note_child(self, _signum: int, _frame: FrameType | None) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def _supervise(self, process: subprocess.Popen[bytes]) -> int:
        exit_fd: int | None = open_exit_fd(process.pid)
        while True:
            self._orphans.reap(spared=(process.pid,))
            if self._stop_signal is not None:
                self._end(process)
                self._reporter.report(AgentState.STOPPED)
                return 128 + self._stop_signal
            if exit_fd is not None and (code := process.poll()) is not None:
                os.close(exit_fd)
                exit_fd = None
                if code != 0:
                    self._reporter.report(AgentState.STOPPED)
                    return 128 - code if code < 0 else code
                self._reporter.report(AgentState.SUCCEEDED)
            if (reason := self._follow(has_succeeded=exit_fd is None)) is not None:
                self._end(process)
                if reason is ExitReason.JOB_SUCCEEDED or exit_fd is None:
                    return 0
                self._reporter.report(AgentState.STOPPED)
                return EXIT_TERMINATED
            if exit_fd is None and self._api.silent_seconds() > JOB_END_SECONDS:
                return 0
            self._wait(exit_fd)

    def _follow(self, *, has_succeeded: bool) -> ExitReason | None:
        """Report what the job's world asks for; the reason if it asks this agent to leave."""
        view = self._watcher.take() or JobView()
        last = self._reporter.latest
        action = next_action(view.world, self._member, last.observed_round, last.state, view.phase)
        if action.verb is Verb.EXIT:
            return action.reason
        if action.verb is Verb.START:
            state = AgentState.SUCCEEDED if has_succeeded else AgentState.RUNNING
            self._reporter.report(state, action.round)
        elif action.verb is Verb.STAND_BY:
            self._reporter.report(AgentState.READY, action.round)
        return None

    def _wait(self, exit_fd: int | None) -> None:
        poll = select.poll()
        for fd in (self._watcher.fileno(), self._wake_fd, *(() if exit_fd is None else (exit_fd,))):
            poll.register(fd, select.POLLIN)
        poll.poll(JOB_END_SECONDS * 1000 if exit_fd is None else None)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """SIGTERM, and SIGKILL to all that stems from the command when it has ended, or has no more time."""
        if process.returncode is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(grace_of_processes(self._me.termination_grace_seconds))
        self._orphans.kill()
        process.wait()
