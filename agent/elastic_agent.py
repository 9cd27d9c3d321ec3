"""torch's LocalElasticAgent, driven by events.

Where torch's agent sleeps for `monitor_interval`, looks at its processes and asks its rendezvous for news,
this one waits in a single `poll` for the end of any process and for any change of the ElasticJob. And a
failure does not end it: it says what failed, and waits for the next round.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import select
import signal
from collections.abc import Collection
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import (
    DEFAULT_ROLE,
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsSpecs, PContext
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousTimeoutError

from agent.failure import Failure
from agent.hang import LOOK_SECONDS
from agent.hang_guard import HangGuard, Started
from agent.oom import OomWatch
from agent.post_mortem import PostMortem, is_better, process_failure
from agent.processes import TrainingProcesses
from agent.progress import ProgressFiles, TrackedLogsSpecs
from agent.rendezvous import DlrRendezvousHandler, JobEndedError
from agent.stacks import StackLogsSpecs
from agent.warm.starter import WarmStart
from agent.world import Action, AgentState, ExitReason, Verb
from agent.xid import DeviceWatch

logger = logging.getLogger(__name__)

BROKEN_GRACE_SECONDS = 1.0
"""For processes whose peer is dead. Its collectives will never end, and a process that sits in one cannot run
its Python signal handler, so to wait for a checkpoint is to wait for nothing; but one that is just computing
gets the chance to close its files."""

HURRY_GRACE_SECONDS = 5.0
"""In all, once the next world is formed and its other members wait for this one."""

EXIT_BARRIER_SECONDS = 300.0
"""How long a finished agent waits for the job's end while the API server is away. As torch's exit barrier."""

UNLIMITED_RESTARTS = 2**31 - 1
"""The job's `restartCount` counts, for all its workers together; an agent counts only if it is told to."""


class DlrElasticAgent(LocalElasticAgent):
    """Runs the training processes of one node, round after round.

    Raises:
        JobEndedError: from `run`, when the job ended, or goes on without this agent.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs,
        *,
        stop_grace_seconds: float,
        oom: OomWatch,
        start_method: str = "spawn",
        log_line_prefix_template: str | None = None,
        exit_barrier_seconds: float = EXIT_BARRIER_SECONDS,
        warm_start: WarmStart | None = None,
    ) -> None:
        assert isinstance(spec.rdzv_handler, DlrRendezvousHandler)
        self.progress_files = ProgressFiles()
        stack_files = StackLogsSpecs(logs_specs)
        self._tracked_logs = TrackedLogsSpecs(stack_files, self.progress_files)
        super().__init__(
            spec,
            self._tracked_logs,
            start_method=start_method,
            exit_barrier_timeout=exit_barrier_seconds,
            log_line_prefix_template=log_line_prefix_template,
        )
        self._rendezvous_handler: DlrRendezvousHandler = spec.rdzv_handler
        self._stop_grace_seconds = stop_grace_seconds
        self._exit_barrier_seconds = exit_barrier_seconds
        self._warm_start = warm_start
        self._processes: TrainingProcesses | None = None
        self._hang_guard = HangGuard(self.progress_files, stack_files, spec.rdzv_handler.habit)
        self._post_mortem = PostMortem(self._tracked_logs, self.progress_files, oom)
        self._device_watch = DeviceWatch()
        self._device_watch.start()
        self.last_failure: Failure | None = None
        """Of this agent's own processes, in its last round; None after a success."""

    # The rounds.

    def _invoke_run(self, role: str = DEFAULT_ROLE) -> RunResult:
        group = self._worker_group
        while True:
            result = self._start_round(group) or self._supervise(group)
            if result is None:
                continue  # the world moved on
            group.state = result.state
            if result.is_failed():
                if self._remaining_restarts == 0:
                    return result
                if group.spec.max_restarts != UNLIMITED_RESTARTS:
                    self._remaining_restarts -= 1
            elif self._await_job_end():
                return result

    def _start_round(self, group: WorkerGroup) -> RunResult | None:
        """Join the next world and start its processes; a result only if that failed."""
        try:
            self._initialize_workers(group)
            self.last_failure = None
            return None
        except DistError as error:
            # A member died between the meeting and torch's exchange of ranks: the next round is on its way.
            logger.warning("the other agents are gone: %s", str(error).partition("\n")[0])
            self._rendezvous_handler.stand_by(self._rendezvous_handler.reporter.latest.observed_round)
            return None
        except RendezvousTimeoutError as error:
            return self._failed_to_start(group, 1, str(error))
        except OSError as error:
            code = 127 if error.errno == errno.ENOENT else 126  # as a shell says it
            return self._failed_to_start(group, code, f"the processes cannot be started: {error}")

    def _supervise(self, group: WorkerGroup) -> RunResult | None:
        """Until the processes end, or the world does (None, with nothing left running)."""
        processes, handler = self._processes, self._rendezvous_handler
        if processes is None:
            return None
        while True:
            poll = select.poll()
            ours = (handler.watcher.fileno(), self._device_watch.fileno())
            for fd in (*ours, *processes.exit_fds(), *_return_value_fds(self._pcontext)):
                poll.register(fd, select.POLLIN)
            poll.poll(LOOK_SECONDS * 1000)
            action = handler.next_action()
            broken = action.verb is not Verb.WAIT
            self._hang_guard.look()
            result = None if broken else self._look_at_devices(group, processes)
            result = result or self._look_at_processes(group, processes, broken=broken)
            if result is None and not broken and self._hang_guard.hangs(handler.hang_timeout_seconds()):
                result = self._hung(processes)
            if result is not None:
                if result.is_failed():  # the driver may tell why a moment later than the process
                    self._tell_of_devices(group, handler.reporter.latest.state)
                return result
            if not broken:
                continue
            self._say_what_broke_it(group, processes, action)
            if action.verb is Verb.EXIT:
                self._stop_for_next_round(processes)
                raise JobEndedError(action.reason or ExitReason.REPLACED)
            logger.info("stopping the processes: action=%s round=%s", action.verb.value, action.round)
            self._stop_for_next_round(processes)
            group.state = WorkerState.STOPPED
            return None

    def _await_job_end(self) -> bool:
        """After success: True when the job has ended, False when a newer round wants this agent again."""
        handler = self._rendezvous_handler
        poll = select.poll()
        poll.register(handler.watcher.fileno(), select.POLLIN)
        while True:
            action = handler.next_action()
            if action.verb is Verb.EXIT:
                return True
            if action.verb is Verb.START:
                return False
            patience_seconds = self._exit_barrier_seconds - handler.api_silent_seconds()
            if patience_seconds <= 0:
                logger.warning("the API server is away, and this agent has finished: leaving")
                return True
            poll.poll(patience_seconds * 1000 + 1)

    # The processes.

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._post_mortem.begin()
        with self._warm_start.serving_torch() if self._warm_start else contextlib.nullcontext():
            pids: dict[int, Any] = super()._start_workers(worker_group)
        assert self._pcontext is not None
        self._processes = TrainingProcesses(self._pcontext)
        round_ = self._rendezvous_handler.reporter.latest.observed_round
        self._hang_guard.begin(Started(round_, _global_ranks(worker_group)))
        return pids

    def _look_at_devices(self, group: WorkerGroup, processes: TrainingProcesses) -> RunResult | None:
        """A result if one has a fault."""
        if not self._tell_of_devices(group, AgentState.FAILED):
            return None
        processes.stop(signal.SIGTERM, BROKEN_GRACE_SECONDS)
        return RunResult(state=WorkerState.FAILED)

    def _tell_of_devices(self, group: WorkerGroup, state: AgentState) -> bool:
        """Say a state, and the fault of a device, if there is one."""
        fault = self._device_watch.take()
        if fault is None:
            return False
        reporter = self._rendezvous_handler.reporter
        last = reporter.latest
        self.last_failure = self._post_mortem.of_device(
            fault, _global_ranks(group), last.observed_round, last.failures + 1
        )
        reporter.report(state, failure=self.last_failure)
        return True

    def _look_at_processes(
        self, group: WorkerGroup, processes: TrainingProcesses, *, broken: bool
    ) -> RunResult | None:
        """A result if one failed, or if all have ended; in a world that is `broken`, failures wait."""
        failed = self._post_mortem.failures(processes)
        if failed and broken:
            return None
        if failed and not callable(group.spec.entrypoint):
            return self._failed(group, processes, failed)
        if not processes.all_exited and not _return_value_fds(self._pcontext):
            return None
        result: RunResult = self._monitor_workers(group)
        if result.state is WorkerState.HEALTHY:
            return None
        processes.release()
        self._processes = None
        if result.is_failed():
            self._tell(group, list(result.failures.values()), AgentState.FAILED)
        else:
            self._rendezvous_handler.reporter.report(AgentState.SUCCEEDED)
        return result

    def _failed(
        self, group: WorkerGroup, processes: TrainingProcesses, failed: Collection[ProcessFailure]
    ) -> RunResult:
        """Tell first, then stop the others: the controller forms the next round meanwhile."""
        self._tell(group, failed, AgentState.FAILED)
        self._tell_of_last_failures(group, processes)
        processes.stop(signal.SIGTERM, BROKEN_GRACE_SECONDS)
        return RunResult(
            state=WorkerState.FAILED,
            failures={group.workers[failure.local_rank].global_rank: failure for failure in failed},
        )

    def _hung(self, processes: TrainingProcesses) -> RunResult | None:
        if not processes.alive():
            return None  # they have just ended
        self._tell_hang(processes, AgentState.FAILED)
        processes.stop(signal.SIGTERM, BROKEN_GRACE_SECONDS)
        return RunResult(state=WorkerState.FAILED)

    def _say_what_broke_it(self, group: WorkerGroup, processes: TrainingProcesses, action: Action) -> None:
        """In a world that is broken already: others may have failed, or waited, because of our processes.

        The controller judges who was first, by what all have told of the round.
        """
        self._tell_of_devices(group, self._rendezvous_handler.reporter.latest.state)
        self._tell_of_last_failures(group, processes)
        if action.verb is Verb.EXIT or self.last_failure is not None or not processes.alive():
            return
        if self._hang_guard.may_hang(self._rendezvous_handler.hang_timeout_seconds()):
            self._tell_hang(processes, self._rendezvous_handler.reporter.latest.state)

    def _tell_of_last_failures(self, group: WorkerGroup, processes: TrainingProcesses) -> None:
        if failed := self._post_mortem.last_failures(processes):
            self._tell(group, failed, self._rendezvous_handler.reporter.latest.state)

    def _tell(self, group: WorkerGroup, failed: Collection[ProcessFailure], state: AgentState) -> None:
        """Say a state, and the failure, unless a better reason was told in this round."""
        reporter = self._rendezvous_handler.reporter
        last = reporter.latest
        failure = self._post_mortem.described(
            failed, _global_ranks(group), last.observed_round, last.failures + 1
        )
        if not is_better(failure, self.last_failure):
            reporter.report(state)
            return
        self.last_failure = failure
        logger.error(
            "training process failed: rank=%s exit_code=%s message=%s",
            failure.rank,
            failure.exit_code,
            failure.message.partition("\n")[0],
        )
        reporter.report(state, failure=failure)

    def _tell_hang(self, processes: TrainingProcesses, state: AgentState) -> None:
        handler = self._rendezvous_handler
        failure = self._hang_guard.describe(
            processes.alive(),
            self._tracked_logs.latest.stderrs,
            handler.reporter.latest.failures + 1,
            handler.hang_timeout_seconds(),
        )
        logger.error("training hangs: %s", failure.message)
        self.last_failure = failure
        handler.reporter.report(state, failure=failure)

    def _failed_to_start(self, group: WorkerGroup, exit_code: int, message: str) -> RunResult:
        failure = process_failure(0, 0, exit_code, "")
        failure.error_file_data = {"message": {"message": message}}
        self._tell(group, [failure], AgentState.FAILED)
        return RunResult(state=WorkerState.FAILED, failures={group.workers[0].global_rank: failure})

    def _stop_for_next_round(self, processes: TrainingProcesses) -> None:
        """With time for a checkpoint, as long as nobody waits for us."""
        handler = self._rendezvous_handler
        if handler.same_members_again():
            processes.stop(signal.SIGTERM, BROKEN_GRACE_SECONDS)
            return
        formed_already = handler.next_action().verb is Verb.START

        def hurry_after_seconds() -> float | None:
            return HURRY_GRACE_SECONDS if handler.next_action().verb is Verb.START else None

        processes.stop(
            signal.SIGTERM,
            self._stop_grace_seconds,
            # A change that was formed at once is a planned one: all members are well, and get their time.
            wake_fd=None if formed_already else handler.watcher.fileno(),
            hurry_after_seconds=hurry_after_seconds,
        )

    def _stop_workers(self, worker_group: WorkerGroup, is_restart: bool = False) -> None:
        self._shutdown()

    def _shutdown(
        self,
        death_sig: signal.Signals = signal.SIGTERM,
        timeout: float | None = None,
        is_restart: bool = False,
    ) -> None:
        """What torch's `run` does at its end. The grace is the Pod's, not torch's 30 s."""
        processes = self._processes
        if processes is not None:
            processes.stop(death_sig, self._stop_grace_seconds)
            processes.join(timeout_seconds=1.0)
        self._pcontext = None  # theirs, and closed
        super()._shutdown()  # torch's watchdog and health check

    def kill(self) -> None:
        """At the very end, whatever happened before: leave nothing behind."""
        if self._processes is not None:
            self._processes.kill()
        self._device_watch.stop()
        self.progress_files.remove()


def _return_value_fds(pcontext: PContext | None) -> list[int]:
    """A process that runs a function (--run-path) sends its return value, and ends when that was taken."""
    queues = getattr(pcontext, "_ret_vals", {})
    return [queue._reader.fileno() for queue in queues.values()]


def _global_ranks(group: WorkerGroup) -> dict[int, int]:
    """By local rank; -1 before the first meeting."""
    return {worker.local_rank: worker.global_rank for worker in group.workers}
