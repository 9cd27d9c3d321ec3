"""`dlr exec`: a command in a worker's Pod that needs no torch, and is not restarted with each world.

A command that works on its own, for example by pulling shards, needs no peers: it is started once, and goes
on in every world that the job forms. When it fails, its Pod does, and the job's failure policy applies.
`agent/terms.py` decides what restarts a command; if its failure may be the consequence of others', the agent
first waits for news of these.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import NoReturn

from agent import signals
from agent.environment import (
    Environment,
    InvalidEnvironmentError,
    ensure_temporary_directory,
    grace_of_processes,
)
from agent.facts.world import (
    AgentVerb,
    ExitReason,
    WorldView,
    next_action,
)
from agent.kube.watcher import Watcher
from agent.link import FLUSH_SECONDS, Link
from agent.logs import log_to_stderr
from agent.monitor import accelerators
from agent.processes.orphans import Orphans, adopt, open_exit_fd
from agent.processes.scripts import above_scripts, await_ends, send
from agent.report import launch_mark
from agent.report.failed_start import refuse_to_start
from agent.report.report import AgentFacts
from agent.report.reporter import Reporter
from agent.terms import CommandSlot, Terms, may_follow, terms_of
from controller.errors import ApiError
from crds.agent_report import AgentState
from crds.names import ENV_CLUSTER_VERSION, ENV_TF_CONFIG, ENV_TF_CONFIG_KEPT
from crds.shard_set import ENV_SHARDS_SOCKET

logger = logging.getLogger(__name__)

EXIT_USAGE = 2
EXIT_TERMINATED = 128 + signal.SIGTERM
STOP_SIGNALS = {signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signals.NOTICE}
"""Handled signals beside SIGTERM, as in `dlr run`."""
EXIT_KILLED = 128 + signal.SIGKILL
NO_STORE = 0
"""Port of an agent without a store."""
JOB_END_SECONDS = 300.0
"""Time that an agent whose command ended well waits for the job's end while the API server is away."""
BROKEN_GRACE_SECONDS = 5.0
"""Longest grace of a command whose round is broken, since it may hang for its dead peers."""
PATIENCE_SECONDS = 10.0
"""Time after a command's failure for news of others that explains it."""
EACH_ROUND = "--each-round"
USAGE = (
    f"usage: dlr exec [{EACH_ROUND}] [--] COMMAND [ARGS]..., or dlr exec [{EACH_ROUND}] -m MODULE [ARGS]..."
)
HELP = f"""{USAGE}

Runs a command in a worker's Pod once, whatever the world; its exit code is the Pod's.

options:
  {EACH_ROUND}  start the command again with each round
  -m MODULE     run a module with the agent's own Python
  -h, --help    show this message and exit"""

NO_ROUNDS = (
    f"dlr exec: {EACH_ROUND} needs a job that forms a world, and one with parameter servers has none: leave "
    "it out of the command; that of the chief is restarted anyway when a server changes"
)
ABANDON_SECONDS = 30.0
"""Time after SIGKILL until a process is given up, as it hangs in the kernel (as in `dlr run`)."""


def main(argv: Sequence[str]) -> int:
    """Run a command, and return its exit code, 0 when the job has succeeded, or 143 when stopped.

    Args:
        argv: the command and its arguments. The agent's own Python runs `-m MODULE`; `--each-round` before
            the command restarts it with each round.
    """
    words = list(argv)
    each_round = words[:1] == [EACH_ROUND]
    words = words[1:] if each_round else words
    if words[:1] in (["-h"], ["--help"]):
        print(HELP)
        raise SystemExit(0)
    words = words[1:] if words[:1] == ["--"] else words
    if fault := _fault(words):
        return refuse_to_start(f"dlr exec: {fault}; {USAGE}", EXIT_USAGE)
    if each_round and ENV_CLUSTER_VERSION in os.environ:
        return refuse_to_start(NO_ROUNDS, EXIT_USAGE)
    command = [sys.executable, *words] if words[0] == "-m" else words
    signal.signal(signal.SIGTERM, _leave)  # without a handler, a container's first process ignores it
    try:
        log_to_stderr()
        ensure_temporary_directory(os.environ)
        with contextlib.ExitStack() as cleanup:
            link = Link.start(Environment.take(os.environ), os.environ, cleanup)
            cleanup.enter_context(link.watcher.woken_by_signals())
            return Execution(link, command, os.environ, cleanup, each_round=each_round).run()
    except InvalidEnvironmentError as error:
        return refuse_to_start(f"dlr exec: {error}", EXIT_USAGE)


def _fault(words: Sequence[str]) -> str:
    """Return what is wrong with a command, or an empty string."""
    if not words:
        return "there is no command to run"
    if words == ["-m"]:
        return "-m needs a module"
    return f"there is no option {words[0]}" if words[0].startswith("-") and words[0] != "-m" else ""


def _leave(signum: int, _frame: FrameType | None) -> NoReturn:
    """Exit at once, while there is no command yet to pass the signal to: the API server may be away."""
    os._exit(128 + signum)


class ReservedPort:
    """A free port at which the commands of the next round can meet, if this worker has rank 0.

    It is reserved until `release`, right before the command starts that binds it.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET)
        self._socket.bind(("", 0))
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Leave the port to the command. May be called again."""
        self._socket.close()


class Execution:
    """One command, from its first start to the end of this agent."""

    def __init__(
        self,
        link: Link,
        words: Sequence[str],
        environ: Mapping[str, str],
        cleanup: contextlib.ExitStack,
        *,
        each_round: bool,
    ) -> None:
        self._me: Environment = link.environment
        member = self._me.member
        in_cluster = ENV_CLUSTER_VERSION in environ
        self._slot = CommandSlot(self._me.replica_type, member, in_cluster, each_round)
        self._kept = (ENV_TF_CONFIG,) if ENV_TF_CONFIG_KEPT in environ else ()
        self._watcher: Watcher[WorldView] = link.watcher
        self._view = link.first_view
        self._desk, self._api = link.desk, link.api
        self._port = ReservedPort() if self._slot.each_round else None
        port = NO_STORE if self._port is None else self._port.number
        self._reporter: Reporter = link.reporter(AgentFacts(port, 1, accelerators.detect()), cleanup)
        mark = f"{ENV_SHARDS_SOCKET}={self._desk.path}"
        self._command = Command(words, {**environ, ENV_SHARDS_SOCKET: self._desk.path}, mark)
        self._started: Terms | None = None
        """Terms of its current or last start."""
        self._has_succeeded = False
        self._failed: tuple[int, float] | None = None
        """Exit code of a failure, and the end of the time (monotonic) in which others may explain it."""
        self._stop_signal: int | None = None

    def run(self) -> int:
        """Start it, and stay until it has failed, the job has ended, or this Pod stops."""
        for signum in {signal.SIGTERM, *(STOP_SIGNALS - signals.ignored)}:
            signal.signal(signum, self._note_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a signal with a handler ends `_wait`
        adopt("commands")
        try:
            if self._slot == CommandSlot(self._slot.type, self._slot.member):
                self._start(Terms(key=None))  # independently of the job's worlds
            self._reporter.start()
            return self._supervise()
        except CannotStartError as error:
            print(f"dlr exec: {error}", file=sys.stderr)
            launch_mark.explain(os.environ, f"dlr exec: {error}")
            return error.exit_code
        finally:
            self._end()
            self._reporter.flush(FLUSH_SECONDS)

    def _note_signal(self, signum: int, _frame: FrameType | None) -> None:
        self._stop_signal = signal.SIGTERM if signum == signals.NOTICE else signum

    def _supervise(self) -> int:
        while True:
            self._view = self._watcher.take() or self._view
            self._command.reap()
            if self._stop_signal is not None:
                return self._left(128 + self._stop_signal)
            self._note_end()
            if (reason := self._follow()) is not None:
                if reason is ExitReason.JOB_SUCCEEDED or self._has_succeeded:
                    self._end()
                    return 0
                return self._left(EXIT_TERMINATED)
            if self._has_succeeded and self._api.silent_seconds() > JOB_END_SECONDS:
                return 0
            self._keep_to_terms()
            if self._failed is not None and self._is_its_own_failure(until=self._failed[1]):
                return self._left(self._failed[0])
            self._wait()

    def _left(self, code: int) -> int:
        self._end()
        self._reporter.report(AgentState.STOPPED)
        return code

    def _note_end(self) -> None:
        """Check whether the command has ended, and note the result."""
        code = self._command.poll()
        if code is None:
            return
        if code == 0:
            self._has_succeeded = True
            self._reporter.report(AgentState.SUCCEEDED)
            return
        patience_seconds = PATIENCE_SECONDS if self._slot.follows and code != EXIT_KILLED else 0.0
        # Nothing is logged, so that the end of the Pod's log is the command's own error.
        self._failed = code, time.monotonic() + patience_seconds

    def _is_its_own_failure(self, until: float) -> bool:
        started = self._started or Terms(key=None)
        if time.monotonic() < until or may_follow(self._view, started, self._slot):
            return False
        if not self._slot.follows:
            return True
        view = self._view
        with contextlib.suppress(ApiError):
            view = self._watcher.read()  # this agent may have been suspended in the meantime
        return not may_follow(view, started, self._slot)

    def _follow(self) -> ExitReason | None:
        """Follow the job's world with reports; return the reason if this agent has to leave."""
        view, last = self._view, self._reporter.latest
        action = next_action(view.world, self._slot.member, last.observed_round, last.state, view.phase)
        if action.verb is AgentVerb.EXIT:
            return action.reason
        if self._slot.in_cluster:
            return None
        if action.verb is AgentVerb.START and not self._slot.each_round:
            state = AgentState.SUCCEEDED if self._has_succeeded else AgentState.RUNNING
            self._reporter.report(state, action.round)
        elif action.verb is AgentVerb.STAND_BY:
            if self._port is not None:
                self._end()
                self._port.release()
                self._port = ReservedPort()  # another program may have the last one by now
                self._reporter.note_store_port(self._port.number)
            self._reporter.report(AgentState.READY, action.round)
        return None

    def _keep_to_terms(self) -> None:
        """Start the command if there are terms for it, and restart it if they have changed."""
        if self._slot.in_cluster and self._has_succeeded:
            return
        terms = terms_of(self._view, self._slot)
        if terms is None or (self._started is not None and terms.key == self._started.key):
            return
        if self._started is not None:
            ended = f", which ended with exit code {self._failed[0]}," if self._failed else ""
            logger.info("the command%s is restarted, for %d", ended, terms.round)
            self._end()
        self._start(terms)

    def _start(self, terms: Terms) -> None:
        kept = {name: value for name, value in terms.variables.items() if name not in self._kept}
        if self._port is not None:
            self._port.release()
        self._command.start(kept)
        self._started, self._failed, self._has_succeeded = terms, None, False
        if terms.key is not None:
            self._reporter.report(AgentState.RUNNING, terms.round)

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._watcher.fileno(), select.POLLIN)
        if (exit_fd := self._command.exit_fd) is not None:
            poll.register(exit_fd, select.POLLIN)
        waits = [JOB_END_SECONDS] if self._has_succeeded else []
        if self._failed is not None:
            waits.append(max(self._failed[1] - time.monotonic(), 1.0))
        if self._slot.in_cluster:  # its usage is compared with that of its siblings
            usage_seconds = 3 * self._me.heartbeat_seconds
            self._reporter.progress(within_seconds=usage_seconds)
            waits.append(usage_seconds)
        poll.poll(min(waits) * 1000 if waits else None)

    def _end(self) -> None:
        """End the command within the grace; a shorter one if its round is broken, since it may hang."""
        grace_seconds = grace_of_processes(self._me.termination_grace_seconds)
        world = self._view.world
        round_ = self._started.round if self._started is not None else 0
        if self._slot.each_round and world is not None and world.broken_round >= round_ > 0:
            grace_seconds = min(grace_seconds, BROKEN_GRACE_SECONDS)
        self._command.end(grace_seconds)


class CannotStartError(Exception):
    """The command cannot be started; the message is one sentence for the user."""

    def __init__(self, word: str, error: OSError) -> None:
        super().__init__(f"{word} cannot be started: {error.strerror}")
        self.exit_code = 127 if isinstance(error, FileNotFoundError) else 126
        """As a shell has it."""


class Command:
    """The processes of a command, over all its starts.

    Args:
        environ: environment of each start, to which `start` adds.
        mark: `NAME=value` of a variable that distinguishes its processes from others.
    """

    def __init__(self, words: Sequence[str], environ: Mapping[str, str], mark: str) -> None:
        self._words, self._environ = words, environ
        self._orphans = Orphans(mark)
        self._process: subprocess.Popen[bytes] | None = None
        self._exit_fd: int | None = None

    @property
    def exit_fd(self) -> int | None:
        """Descriptor that is readable when it has ended; None if it does not run."""
        return self._exit_fd

    def start(self, variables: Mapping[str, str]) -> None:
        """Start it with further environment variables.

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
        """Collect ended processes that it has left behind."""
        self._orphans.reap(spared=() if self._process is None else (self._process.pid,))

    def poll(self) -> int | None:
        """Return its exit code, only once; 128 and more for a signal, as in a shell."""
        if self._exit_fd is None or self._process is None or (code := self._process.poll()) is None:
            return None
        self._close()
        return 128 - code if code < 0 else code

    def end(self, grace_seconds: float) -> None:
        """Send SIGTERM, and SIGKILL to all descendants when it has ended or the grace is over.

        A shell ends at once, so its scripts get the signal and the grace too.
        """
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            deadline = time.monotonic() + grace_seconds
            _, *below = above_scripts([process.pid])
            process.terminate()
            send(below, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(grace_seconds)
            await_ends(below, deadline)
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
