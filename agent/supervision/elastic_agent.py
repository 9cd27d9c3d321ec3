"""torch's LocalElasticAgent, driven by events.

Where torch's agent sleeps for `monitor_interval`, looks at its processes and asks its rendezvous for news,
this one waits in a single `poll` for the end of any process and for any change of the ElasticJob. And a
failure does not end it: it reports what failed, and waits for the next round.
"""

from __future__ import annotations

import errno
import logging
import select
import signal
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from torch.distributed import DistError, Store  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import (
    DEFAULT_ROLE,
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing import LogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousTimeoutError

from agent import signals
from agent.facts.failure import Failure
from agent.facts.result import result_of_rank_0
from agent.facts.world import (
    Action,
    ExitReason,
    Verb,
    World,
)
from agent.monitor import open_files
from agent.monitor.hang import LOOK_SECONDS
from agent.monitor.hang_guard import HangGuard, Started
from agent.monitor.oom import OomWatch
from agent.monitor.progress import ProgressFiles
from agent.monitor.round_logs import RoundLogsSpecs
from agent.monitor.stacks import StackFiles
from agent.monitor.xid import DeviceWatch
from agent.processes.orphans import Orphans, adopt
from agent.processes.processes import TrainingProcesses, abandon_start
from agent.rendezvous.handler import DlrRendezvousHandler, JobEndedError
from agent.supervision.asked_profile import AskedProfile
from agent.supervision.asked_stacks import AskedStacks
from agent.supervision.exit_barrier import await_job_end
from agent.supervision.failure_reporter import FailureReporter
from agent.supervision.leaving import Outcome, Votes
from agent.supervision.others_end import OthersEnd
from agent.supervision.post_mortem import PostMortem, process_failure
from agent.supervision.saved_notes import SavedNotes
from agent.supervision.starting import Starting, WorldMovedOnError
from agent.supervision.stopping import stop_for_next_round, stop_when_judged
from agent.torch_compat.elastic import UNLIMITED_RESTARTS, LocalElasticAgent, return_value_fds
from agent.warm.starter import WarmStart
from crds.protocol import AgentState

logger = logging.getLogger(__name__)

FAILURE_GRACE_SECONDS = 1.0
"""What processes get whose peer is dead, unless `--failure-grace` says otherwise. Their collectives never
end, and a process that sits in one cannot run its Python signal handler, so most would wait for nothing; one
that is just computing gets the chance to close its files."""

ENDING_SECONDS = 1.0
"""What processes get to end by themselves in a world that broke and has no successor yet: one that has just
left the others takes so long to shut Python down, and its exit code 0 explains why they failed."""


class DlrElasticAgent(LocalElasticAgent):
    """Runs the training processes of one node, round after round.

    Args:
        leases_shards: whether a controller leases shards; else each process pulls its own share, by rank.

    Raises:
        JobEndedError: from `run`, when the job ended, or goes on without this agent.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs,
        *,
        stop_grace_seconds: float,
        failure_grace_seconds: float = FAILURE_GRACE_SECONDS,
        oom: OomWatch,
        start_method: str = "spawn",
        log_line_prefix_template: str | None = None,
        warm_start: WarmStart | None = None,
        leases_shards: bool = True,
    ) -> None:
        assert isinstance(spec.rdzv_handler, DlrRendezvousHandler)
        session = spec.rdzv_handler.session
        self.progress_files = ProgressFiles(told=session.tells_steps, trouble=session.reporter.latest.trouble)
        stack_files = StackFiles(self.progress_files.directory / "stacks")
        logs = RoundLogsSpecs(
            logs_specs,
            lambda: self._session.reporter.latest.observed_round,
            self.progress_files,
            stack_files,
            self._tell_checkpoints if spec.rdzv_handler.memory is not None else None,
            desk=session.desk.path if leases_shards else "",
        )
        super().__init__(
            spec,
            logs,
            start_method=start_method,
            log_line_prefix_template=log_line_prefix_template,
        )
        self._session = spec.rdzv_handler.session
        self._memory = spec.rdzv_handler.memory
        failure_grace_seconds = min(failure_grace_seconds, stop_grace_seconds)
        self._votes = Votes(self._session, self._memory, stop_grace_seconds, failure_grace_seconds)
        self._saved_notes = SavedNotes(self.progress_files, session)
        self._others_end = OthersEnd()
        spec.rdzv_handler.on_meeting = self._meet
        self._stop_grace_seconds = stop_grace_seconds
        self._failure_grace_seconds = failure_grace_seconds
        self._processes: TrainingProcesses | None = None
        """The processes of the round that runs, or ran last."""
        self._shutdown_at: float | None = None
        """When the grace of the last shutdown began."""
        self._orphans = Orphans(
            self.progress_files.marker, warm_start.sessions if warm_start is not None else tuple
        )
        self._starting = Starting(session, warm_start, self._orphans)
        adopt("training processes")
        self._hang_guard = HangGuard(self.progress_files, stack_files, self._session.step_reporting)
        self._asked_stacks = AskedStacks(self._session, self._hang_guard)
        self._asked_profile = AskedProfile(self._session, self._hang_guard)
        self._post_mortem = PostMortem(logs, self.progress_files, oom)
        self._device_watch = DeviceWatch()
        self._device_watch.start()
        self._failures = FailureReporter(
            self._session, self._post_mortem, self._hang_guard, self._device_watch, logs
        )

    @property
    def last_failure(self) -> Failure | None:
        """The failure of this agent's own processes in its last round; None after a success."""
        return self._failures.last_failure

    # The rounds.

    def _invoke_run(self, role: str = DEFAULT_ROLE) -> RunResult:
        group = self._worker_group
        while True:
            result = self._start_round(group) or self._supervise(group)
            self._votes.end()
            if result is None:
                continue  # the world moved on
            group.state = result.state
            if result.is_failed():
                if self._remaining_restarts == 0:
                    return result
                if group.spec.max_restarts != UNLIMITED_RESTARTS:
                    self._remaining_restarts -= 1
            elif await_job_end(self._session, self._orphans):
                return result

    def _start_round(self, group: WorkerGroup) -> RunResult | None:
        """Join the next world and start its processes. Return a result only if that failed."""
        self._processes = None
        try:
            self._initialize_workers(group)
            self._failures.last_failure = None
            return None
        except WorldMovedOnError:
            return None
        except DistError as error:
            # A member died between the meeting and torch's exchange of ranks: the next round is on its way.
            logger.warning("the other agents are gone: %s", str(error).partition("\n")[0])
            self._session.stand_by(self._session.reporter.latest.observed_round)
            return None
        except RendezvousTimeoutError as error:
            return self._failed_to_start(group, 1, str(error))
        except OSError as error:
            code = 127 if error.errno == errno.ENOENT else 126  # as a shell says it
            return self._failed_to_start(group, code, f"the processes cannot be started: {error}")

    def _supervise(self, group: WorkerGroup) -> RunResult | None:
        """Watch the processes until they end. Return None if the world did, when they have been stopped."""
        processes, session = self._processes, self._session
        if processes is None:
            return None
        while True:
            poll = select.poll()
            ours = (session.watcher.fileno(), self._device_watch.fileno(), *self._votes.fds())
            for fd in (*ours, *processes.exit_fds(), *return_value_fds(self._pcontext)):
                poll.register(fd, select.POLLIN)
            poll.poll(LOOK_SECONDS * 1000)
            self._orphans.reap(spared=processes.pids.values())
            action = session.next_action()
            broken = action.verb is not Verb.WAIT
            self._hang_guard.look()
            self._asked_stacks.look(processes)
            self._asked_profile.look(processes)
            result = None if broken else self._check_devices(group, processes)
            result = result or self._check_processes(group, processes, broken=broken)
            hangs = self._hang_guard.hangs(session.hang_timeout_seconds())
            if result is None and not broken and hangs and not self._works_alone(processes):
                result = self._stop_hung_processes(processes)
            if result is not None:
                if result.is_failed():  # the driver may tell why a moment later than the process
                    self._failures.report_device_fault(_global_ranks(group), session.reporter.latest.state)
                return result
            begun_at = time.monotonic()
            if (outcome := self._vote(processes, action, begun_at)) is not Outcome.OFF:
                return self._leave_round(group, processes, action, outcome)
            if not broken:
                continue
            self._votes.end()
            stop_grace_seconds = self._stop_grace_seconds - (time.monotonic() - begun_at)
            if (result := self._await_good_end(group, processes, action)) is not None:
                return result
            self._failures.report_what_broke_the_world(
                _global_ranks(group), processes, leaving=action.verb is Verb.EXIT
            )
            if action.verb is Verb.EXIT:
                stop_for_next_round(session, processes, stop_grace_seconds, self._failure_grace_seconds)
                raise JobEndedError(action.reason or ExitReason.REPLACED)
            logger.info("stopping the processes: action=%s round=%s", action.verb.value, action.round)
            if session.asks_where_it_hangs():
                stop_when_judged(session, processes, self._failure_grace_seconds)
            else:
                stop_for_next_round(session, processes, stop_grace_seconds, self._failure_grace_seconds)
            group.state = WorkerState.STOPPED
            self._processes = None
            return None

    def _vote(self, processes: TrainingProcesses, action: Action, begun_at: float) -> Outcome:
        """Leave by vote for a planned change, or because another agent asks."""
        outcome = self._votes.follow(processes, action, begun_at)
        self._post_mortem.excuse(self._votes.have_left(processes))
        return outcome

    def _leave_round(
        self, group: WorkerGroup, processes: TrainingProcesses, action: Action, outcome: Outcome
    ) -> RunResult | None:
        """Go on after the processes have left. Return a result only if training came to its end instead."""
        if outcome is Outcome.LEFT and not self._votes.have_left(processes):
            return self._check_processes(group, processes, broken=False)
        processes.kill()
        group.state = WorkerState.STOPPED
        self._processes = None
        if action.verb is Verb.EXIT:
            raise JobEndedError(action.reason or ExitReason.REPLACED)
        if action.verb is Verb.WAIT:
            self._session.stand_by(self._session.reporter.latest.observed_round)
        return None

    def _meet(self, store: Store, world: World) -> None:
        """Take note of a round whose members have met."""
        rank = world.members.index(self._session.member)
        self._votes.meet(world)
        self._saved_notes.meet(store, rank)
        self._others_end.meet(store, rank, len(world.members))

    # The processes.

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._starting.await_warm_parent()
        self._post_mortem.begin()
        self._pcontext = None
        try:
            self._saved_notes.hand_on()
            with self._starting.by_us():
                pids: dict[int, Any] = super()._start_workers(worker_group)
            signals.take_back()
            open_files.give_back(pids.values())
            assert self._pcontext is not None
            self._processes = TrainingProcesses(self._pcontext, self._orphans)
            self._votes.begin(self.progress_files.records)
        except BaseException:
            abandon_start(self._pcontext, self._orphans)
            self._pcontext = self._processes = None
            raise
        if worker_group.group_rank == 0:
            open_files.warn_if_too_few(worker_group.workers[0].world_size, worker_group.group_world_size or 0)
        round_ = self._session.reporter.latest.observed_round
        self._hang_guard.begin(Started(round_, _global_ranks(worker_group)))
        return pids

    def _tell_checkpoints(self, directory: Path, ranks: Sequence[int]) -> list[dict[str, str]]:
        assert self._memory is not None
        return self._memory.write_files(directory, ranks, self._session.failures_per_hour())

    def _check_devices(self, group: WorkerGroup, processes: TrainingProcesses) -> RunResult | None:
        """Return a result if a device has a fault."""
        if not self._failures.report_device_fault(_global_ranks(group), AgentState.FAILED):
            return None
        processes.stop(signal.SIGTERM, self._failure_grace_seconds)
        return RunResult(state=WorkerState.FAILED)

    def _check_processes(
        self, group: WorkerGroup, processes: TrainingProcesses, *, broken: bool
    ) -> RunResult | None:
        """Return a result if a process failed, or if all have ended; in a `broken` world failures wait."""
        failed = self._post_mortem.new_failures(processes)
        if failed and broken:
            return None
        if failed and not callable(group.spec.entrypoint):
            return self._stop_failed_processes(group, processes, failed)
        if not processes.all_exited and not return_value_fds(self._pcontext):
            return None
        result: RunResult = self._monitor_workers(group)
        if result.state is WorkerState.HEALTHY:
            return None
        processes.release()
        self._processes = None
        if result.is_failed():
            self._orphans.kill()
            failures = list(result.failures.values())
            ranks = _global_ranks(group)
            self._failures.report_processes(ranks, failures, AgentState.FAILED, processes)
        else:
            ranks = _global_ranks(group)
            self._session.reporter.note_result(result_of_rank_0(self.progress_files.records, ranks))
            self._session.reporter.report(AgentState.SUCCEEDED)
            self._others_end.say_ended()
        return result

    def _await_good_end(
        self, group: WorkerGroup, processes: TrainingProcesses, action: Action
    ) -> RunResult | None:
        """Return a result if all processes end well just now, although the others cannot go on."""
        session = self._session
        dead_peers = action.verb is Verb.STAND_BY and session.peers_are_dead()
        if not dead_peers or session.asks_where_it_hangs():
            return None
        processes.await_ends(processes.alive().keys(), ENDING_SECONDS)
        return self._check_processes(group, processes, broken=True)

    def _stop_failed_processes(
        self, group: WorkerGroup, processes: TrainingProcesses, failed: Collection[ProcessFailure]
    ) -> RunResult:
        """Report first, and then stop the others: the controller forms the next round meanwhile."""
        self._failures.report_processes(_global_ranks(group), failed, AgentState.FAILED, processes)
        self._failures.report_ending_processes(_global_ranks(group), processes)
        processes.stop(signal.SIGTERM, self._failure_grace_seconds)
        return RunResult(
            state=WorkerState.FAILED,
            failures={group.workers[failure.local_rank].global_rank: failure for failure in failed},
        )

    def _works_alone(self, processes: TrainingProcesses) -> bool:
        """Whether one process is left of several, and waits for nobody: it may export for hours."""
        alive = processes.alive()
        if len(processes.pids) == 1 and self._others_end.are_none:
            return False
        if len(alive) > 1 or any(processes.exit_codes.values()) or not self._others_end.all_have_ended():
            return False
        if any(stack.in_collective for stack in self._hang_guard.stacks_of(alive)()):
            return False
        self._hang_guard.note_life()
        return True

    def _stop_hung_processes(self, processes: TrainingProcesses) -> RunResult | None:
        """Report where they hang, and stop them; None if they have just ended."""
        if not processes.alive() or not self._failures.report_hang(processes, AgentState.FAILED):
            return None
        stop_when_judged(self._session, processes, self._failure_grace_seconds)
        return RunResult(state=WorkerState.FAILED)

    def _failed_to_start(self, group: WorkerGroup, exit_code: int, message: str) -> RunResult:
        failure = process_failure(0, 0, exit_code, "")
        failure.error_file_data = {"message": {"message": message}}
        self._failures.report_processes(_global_ranks(group), [failure], AgentState.FAILED)
        return RunResult(state=WorkerState.FAILED, failures={group.workers[0].global_rank: failure})

    def _stop_workers(self, worker_group: WorkerGroup, is_restart: bool = False) -> None:
        self._shutdown()

    def _shutdown(
        self,
        death_sig: signal.Signals = signal.SIGTERM,
        timeout: float | None = None,
        is_restart: bool = False,
    ) -> None:
        """End the processes, as torch's `run` does at its end. The grace is the Pod's, not torch's 30 s."""
        processes = self._processes
        if processes is not None:
            begun_at = self._shutdown_at = self._shutdown_at or time.monotonic()
            with signals.deferred():  # a second signal is to end no process that saves
                self._votes.stop(processes, begun_at)
            self._votes.end()
            processes.stop(death_sig, self._stop_grace_seconds - (time.monotonic() - begun_at))
            processes.join(timeout_seconds=1.0)
        begun_at = self._shutdown_at = self._shutdown_at or time.monotonic()
        with signals.deferred():  # nor is it to end what the peer still copies
            self._votes.hand_over(self._stop_grace_seconds - (time.monotonic() - begun_at))
        self._pcontext = None  # The processes have closed it.
        super()._shutdown()  # It ends torch's watchdog and health check.

    def kill(self) -> None:
        """Leave nothing behind. To be called at the very end, whatever happened before."""
        self._votes.end()
        if self._processes is not None:
            self._processes.kill()
        self._orphans.kill()
        self._device_watch.stop()
        self.progress_files.remove()


def _global_ranks(group: WorkerGroup) -> dict[int, int]:
    """Return the global ranks by local ones; -1 before the first meeting."""
    return {worker.local_rank: worker.global_rank for worker in group.workers}
