"""Keeps the processes of an ending round that live on into the next one.

`keep` takes them from the round's PContext, `hand_over` gives them to the next one's. In between they wait
for their agent, and do not count as orphans.
"""

from __future__ import annotations

import logging
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from agent.checkpoints.holder import CheckpointHolder
from agent.facts.place import Place
from agent.processes.orphans import Orphans
from agent.processes.processes import TrainingProcesses
from agent.signals import deferred
from agent.survival import handles
from agent.survival.desk import NO_STATEMENTS, ProcessStatements, WorldDesk
from agent.survival.handles import ProcessHandle
from agent.survival.newcomers import Newcomers
from agent.survival.spares import Spares
from agent.torch_compat import versions
from agent.torch_compat.elastic import detach_process, started_process
from agent.warm.warm_parent import ROUND_VARIABLES
from crds.agent_report import LivedOn
from crds.names import ENV_JOINS, ENV_WORLD_SOCKET
from crds.progress_record import ENV_ROUND

logger = logging.getLogger(__name__)

FAULTS = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
"""Signals by which a process ends itself."""
LEAVE_SECONDS = 1.0
"""Time limit for a process to leave its collective; if its interpreter is blocked, it is ended after that."""


def why_none_lives_on(*, forks: bool, has_memory: bool, torch_version: str) -> str:
    """Return the reason why all processes start again when one dies; empty if they may live on.

    Args:
        forks: the processes are forked (warm start).
        has_memory: there are checkpoints in memory to resume from.
    """
    if by_torch := versions.why_none_lives_on(torch_version):
        return by_torch
    if not has_memory:
        return "processes live on only with memoryCheckpoint"
    return "" if forks else "processes live on only where they are forked (warm start)"


class KeptProcesses:
    """The processes that live on, round after round. Not thread-safe.

    Args:
        desk: connections to the processes; None if none can live on.
        memory: this agent's checkpoints in memory, which they resume from.
        orphans: ends the processes that others leave behind.
        spares: processes that are started ahead.
        has_stepped: whether a process of the round has made a step.
    """

    def __init__(
        self,
        desk: WorldDesk | None,
        memory: CheckpointHolder | None,
        orphans: Orphans,
        spares: Spares | None = None,
        has_stepped: Callable[[], bool] = bool,
    ) -> None:
        self._desk = desk
        self._memory = memory
        self._orphans = orphans
        self._spares = spares
        self._has_stepped = has_stepped
        orphans.living_on = self.pids
        self._kept: dict[int, ProcessHandle] = {}
        """Processes between two rounds, by local rank."""
        self._joins = False
        """Whether processes live on into the round, so that the others join them."""
        self._lived: set[int] = set()
        """Local ranks whose processes have lived on into the round."""
        self._awaited: dict[int, int] = {}
        """Ids of processes that join others and have not reached their loop yet, by local rank."""
        self._newcomers = Newcomers()
        self._round = 0

    # State of the processes.

    def pids(self) -> list[int]:
        """Return the ids of processes that belong to no round: kept ones and spares."""
        spares = self._spares.pids() if self._spares is not None else []
        return [*(process.pid for process in self._kept.values()), *spares]

    def fds(self) -> list[int]:
        """Return the descriptors that become readable when there is something to look at."""
        return [] if self._desk is None else self._desk.fds()

    def look(self, processes: TrainingProcesses, *, hangs: bool) -> None:
        """Receive messages of the processes, and start spares once all of the round train.

        Args:
            hangs: the limit has passed without a step.
        """
        if self._desk is None:
            return
        self._desk.look()
        codes = processes.exit_codes
        for local_rank, pid in list(self._awaited.items()):
            if self._words(pid).entered:
                del self._awaited[local_rank]
                self._newcomers.reached_loop(local_rank)
            elif hangs or _is_own_end(codes.get(local_rank)):
                del self._awaited[local_rank]
                self._refuse(self._newcomers.failed(local_rank, hangs=hangs))
        ended = {processes.pids[rank] for rank, code in codes.items() if code and _is_own_end(code)}
        if any(self._words(pid).entered for pid in ended):
            self.note_failed_round()
        if self._joins and self._newcomers.failed_rounds and self._has_stepped():
            self._newcomers.round_trained()
        all_train = not codes and all(self._words(pid).entered for pid in processes.pids.values())
        if all_train and not self._joins:
            self._newcomers.allow()
            self._refuse(None)
        if self._spares is not None and not codes:
            self._spares.look(wanted=all_train)

    def note_failed_round(self, *, by_a_peer: bool = False) -> None:
        """Note that a round failed by its script: a process ended by itself, or hangs.

        Args:
            by_a_peer: a collective failed instead, whose peer may have died.
        """
        if self._joins and not self._has_stepped():
            self._refuse(self._newcomers.round_failed(self._round, by_a_peer=by_a_peer))

    def lives_on(self, processes: TrainingProcesses) -> bool:
        """Return whether any process of the round can live on."""
        return any(self._words(pid).lives_on for pid in processes.alive().values())

    def all_live_on(self, processes: TrainingProcesses) -> bool:
        """Return whether all processes of the round can live on."""
        alive = processes.alive()
        return len(alive) == len(processes.pids) and all(self._words(pid).lives_on for pid in alive.values())

    def go_into_any_world(self, processes: TrainingProcesses) -> bool:
        """Return whether no process of the round is bound to its rank and the size of its world."""
        return all(self._words(pid).bound_to is None for pid in processes.alive().values())

    def have_left(self, processes: TrainingProcesses) -> frozenset[int]:
        """Return the local ranks of the processes that have left the round, and live on."""
        if self._desk is not None:
            self._desk.look()
        words = {rank: self._words(pid) for rank, pid in processes.alive().items()}
        return frozenset(
            rank for rank, it in words.items() if it.lives_on and it.lost is None and it.left >= self._round
        )

    def lost(self, processes: TrainingProcesses) -> dict[int, str]:
        """Return the errors by which processes lost this round without a request to leave, by local rank."""
        words = {rank: self._words(pid) for rank, pid in processes.alive().items()}
        return {
            rank: it.lost.error
            for rank, it in words.items()
            if it.lives_on and it.lost is not None and it.lost.round == self._round
        }

    def to_status(self) -> LivedOn | None:
        """Return the section of the agent's report; None if no process has lived on into the round."""
        return LivedOn(self._round, len(self._lived)) if self._lived else None

    # From one round to the next.

    def keep(self, round_: int, processes: TrainingProcesses, grace_seconds: float) -> None:
        """Make the processes that can live on leave the round, and end all others.

        Args:
            grace_seconds: time between SIGTERM and SIGKILL for the others.
        """
        pcontext = processes.pcontext
        able = {rank: pid for rank, pid in processes.alive().items() if self._words(pid).lives_on}
        silent = self._await_leave(round_, able)
        if silent:
            pids = sorted(silent.values())
            logger.warning("processes %s have not left round %d in time: killing them", pids, round_)
        handles.end(started_process(pcontext, rank) for rank in silent)
        with deferred():  # else a signal might leave processes that belong to neither
            for rank in able.keys() - silent.keys():
                self._kept[rank] = detach_process(pcontext, rank)
                processes.let_go(rank)
        self._note_lives()
        processes.stop(signal.SIGTERM, grace_seconds)

    def _await_leave(self, round_: int, able: Mapping[int, int]) -> dict[int, int]:
        """Wait until the processes have left; return those that have not, by local rank."""
        assert self._desk is not None
        for pid in able.values():
            if self._words(pid).left < round_:
                self._desk.leave(pid, round_)
        deadline = time.monotonic() + LEAVE_SECONDS
        while True:
            self._desk.look()
            stays = {
                rank: pid
                for rank, pid in able.items()
                if self._words(pid).left < round_ or not self._words(pid).lives_on
            }
            waited_for = [pid for pid in stays.values() if self._words(pid).lives_on]
            left_seconds = deadline - time.monotonic()
            if not waited_for or left_seconds <= 0:
                return stays
            poll = select.poll()
            for descriptor in self._desk.fds():
                poll.register(descriptor, select.POLLIN)
            poll.poll(left_seconds * 1000)

    def begin(self, round_: int) -> None:
        """Prepare for the start of a round's processes: end the kept ones unless others join them."""
        self._round = round_
        self._joins = self._memory is not None and self._memory.lives_on
        if self._kept and not self._joins:
            logger.info("round=%d: no process lives on, since not all can go on from one checkpoint", round_)
            handles.end(self._kept.values())
            self._kept.clear()
            self._orphans.kill()
            self._note_lives()
        self._lived.clear()
        self._awaited.clear()
        if self._desk is not None:
            self._desk.expect(self.pids())

    def variables(self) -> dict[str, str]:
        """Return the environment variables of the round's processes for living on."""
        if self._desk is None:
            return {}
        return {ENV_WORLD_SOCKET: self._desk.path, ENV_ROUND: str(self._round)}

    def hand_over(
        self, local_rank: int, env: dict[str, str], redirects: Mapping[int, int]
    ) -> ProcessHandle | None:
        """Hand the round to a process that lives on, or to a spare; return None if one has to be started.

        Args:
            env: the whole environment of the process; a variable is added for one that joins others.
            redirects: our descriptors for its stdout (1) and stderr (2).
        """
        if self._desk is None or not self._joins:
            return None
        process = self._kept.pop(local_rank, None)
        if process is not None and process.poll() is None:
            if self._desk.hand_over(process.pid, _of_round(env), redirects):
                self._lived.add(local_rank)
                return process
            handles.end([process])
        env[ENV_JOINS] = "1"
        spare = self._spares.take(local_rank, env) if self._spares is not None else None
        if spare is not None:
            if self._desk.hand_over(spare.pid, _of_round(env), redirects):
                return spare
            handles.end([spare])  # it holds memory, and a device
        return None

    def note_launch(self, local_rank: int, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Note the command and environment of a process of the round."""
        if self._spares is not None:
            self._spares.note_launch(local_rank, argv, env)

    def started(self, pids: Mapping[int, int]) -> None:
        """Note the processes of the round, by local rank."""
        self._note_lives()
        if self._desk is None:
            return
        self._desk.expect([*pids.values(), *self.pids()], self._round)
        if self._joins:
            self._awaited = {rank: pid for rank, pid in pids.items() if rank not in self._lived}
            logger.info("round=%d: %d of %d processes live on", self._round, len(self._lived), len(pids))

    def stop(self, grace_seconds: float) -> None:
        """End all processes that belong to no round, and the processes that they have started.

        What the round's own processes leave running after a good end, such as an upload, goes on.
        """
        spares = self._spares.give_up() if self._spares is not None else []
        processes = [*self._kept.values(), *spares]
        sessions = self._orphans.sessions_below([process.pid for process in processes]) if processes else ()
        handles.end(processes, grace_seconds)
        self._kept.clear()
        self._note_lives()
        if sessions:
            self._orphans.kill(sessions=sessions)

    def _note_lives(self) -> None:
        if self._memory is not None:
            self._memory.lives = len(self._kept)
            self._memory.bound_to = self._place_of_first()

    def _place_of_first(self) -> Place | None:
        """Return the place of this agent's first process in the only world they go on in; None for any."""
        for local_rank, process in self._kept.items():
            if (bound_to := self._words(process.pid).bound_to) is not None:
                return Place(bound_to.rank - local_rank, bound_to.world_size)
        return None

    def _refuse(self, warning: str | None) -> None:
        """Inform the other agents at the next meeting whether newcomers are refused."""
        if self._memory is not None:
            self._memory.no_newcomers = self._newcomers.are_refused
        if warning is not None:
            logger.warning("%s", warning)

    def _words(self, pid: int) -> ProcessStatements:
        return NO_STATEMENTS if self._desk is None else self._desk.words(pid)


def _is_own_end(exit_code: int | None) -> bool:
    """Return whether a process has ended by itself, and not by a signal from outside."""
    return exit_code is not None and (exit_code >= 0 or -exit_code in FAULTS)


def _of_round(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that belong to the round."""
    return {name: value for name, value in env.items() if name.startswith(ROUND_VARIABLES)}
