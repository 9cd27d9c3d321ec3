"""torch's LocalElasticAgent, driven by events.

torch's agent sleeps for `monitor_interval`, then looks at its processes and asks its rendezvous for news.
This one waits in a single `poll` for the end of any process and for any change of the ElasticJob. A failure
does not end it: it reports the failure, and waits for the next round.
"""

from __future__ import annotations

import errno
import logging
import select
import signal
import time
from collections.abc import Collection
from datetime import datetime, timezone
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import (
    DEFAULT_ROLE,
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousTimeoutError

from agent import signals
from agent.facts.failure import LocalFailure
from agent.facts.world import AgentVerb, ExitReason, NextAction
from agent.kube.api import AgentApi
from agent.membership import WorldMembership
from agent.monitor import open_files
from agent.monitor.hang_guard import HangGuard, RoundProcesses
from agent.monitor.oom import OomWatch
from agent.monitor.round_logs import RoundLogsSpecs
from agent.monitor.xid import DeviceWatch
from agent.processes.orphans import Orphans, adopt
from agent.processes.processes import TrainingProcesses, abandon_start
from agent.rendezvous.handler import JobEndedError
from agent.report.reporter import Reporter
from agent.supervision import course
from agent.supervision.ending import GoodEnds
from agent.supervision.failure_reporter import FailureReporter
from agent.supervision.last_save import save_last
from agent.supervision.leaving import VoteOutcome
from agent.supervision.lingering import Lingering
from agent.supervision.post_mortem import PostMortem, failure_by
from agent.supervision.process_env import ProcessEnvironment
from agent.supervision.stacks_desk import StacksDesk
from agent.supervision.starting import Starting, WorldMovedOnError
from agent.supervision.votes import Votes
from agent.survival.kept import KeptProcesses
from agent.torch_compat.elastic import (
    UNLIMITED_RESTARTS,
    LocalElasticAgent,
    LogsAndEnvironment,
    end_watchdog,
    return_value_fds,
    started_process,
)
from agent.warm.warm_parent import ForkedProcess
from crds.agent_report import AgentState

logger = logging.getLogger(__name__)


class DlrElasticAgent(LocalElasticAgent):
    """Runs the training processes of one node, round after round.

    Args:
        spec: specification of the processes, with a DlrRendezvousHandler.
        environment: completes their environment.
        votes: has its processes leave together with those of other agents.
        guard: watches its processes for hangs.
        lingering: watches the processes whose scripts have ended.
        stacks_desk: answers requests for stacks.
        oom: detects that the kernel has killed a process for memory.
        stop_grace_seconds: time between SIGTERM and SIGKILL for processes that stop.
        failure_grace_seconds: the same for processes whose peer has failed.
        start_method: torch's start method, for functions.
        orphans: ends the processes that training processes leave behind.
        starting: starts the processes.
        kept: the processes that live on into the next round.

    Raises:
        JobEndedError: from `run`, when the job ended, or goes on without this agent.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs: RoundLogsSpecs,
        environment: ProcessEnvironment,
        *,
        api: AgentApi,
        membership: WorldMembership,
        reporter: Reporter,
        votes: Votes,
        good_ends: GoodEnds,
        guard: HangGuard,
        lingering: Lingering,
        stacks_desk: StacksDesk,
        oom: OomWatch,
        stop_grace_seconds: float,
        failure_grace_seconds: float,
        start_method: str,
        log_line_prefix_template: str | None,
        orphans: Orphans,
        starting: Starting,
        kept: KeptProcesses,
    ) -> None:
        super().__init__(
            spec,
            LogsAndEnvironment(logs, lambda envs, files: environment.complete(envs, files, membership, kept)),
            start_method=start_method,
            log_line_prefix_template=log_line_prefix_template,
        )
        self._environment = environment
        self._api = api
        self._membership = membership
        self._reporter = reporter
        self._votes = votes
        self._good_ends = good_ends
        self._hang_guard = guard
        self._lingering = lingering
        self._stacks_desk = stacks_desk
        self._stop_grace_seconds, self._failure_grace_seconds = stop_grace_seconds, failure_grace_seconds
        self._course = course.AgentRounds(
            stops_at_first_failure=not callable(spec.entrypoint),
            restarts=None if spec.max_restarts == UNLIMITED_RESTARTS else spec.max_restarts,
            stop_grace_seconds=stop_grace_seconds,
            failure_grace_seconds=failure_grace_seconds,
        )
        self._processes: TrainingProcesses | None = None
        """The processes of the round that runs, or ran last."""
        self._exits_seen = 0
        """Number of its processes that had ended at the last look."""
        self._ended: TrainingProcesses | None = None
        """Processes of the last round whose results torch has collected."""
        self._result = RunResult(state=WorkerState.FAILED)
        """Return value of torch's `run` if this round is the last."""
        self._shutdown_at: float | None = None
        """Start of the grace period of the shutdown."""
        self._orphans, self._starting, self._kept = orphans, starting, kept
        adopt("training processes")
        self._post_mortem = PostMortem(logs, environment.progress, oom)
        self._device_watch = DeviceWatch()
        self._device_watch.start()
        self._failures = FailureReporter(
            membership, reporter, self._post_mortem, guard, self._device_watch, logs
        )

    @property
    def last_failure(self) -> LocalFailure | None:
        """The failure of this agent's own processes in its last round; None after a success."""
        return self._failures.last_failure

    # The rounds.

    def _invoke_run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Carry out the orders of `course`, one after the other."""
        rounds = self._course.rounds()
        answer: Any = None
        try:
            while True:
                answer = self._carry_out(rounds.send(answer))
        except StopIteration as stop:
            end = stop.value
        if isinstance(end, ExitReason):
            raise JobEndedError(end)
        if end is course.RoundEnd.UNHEARD:
            logger.warning("the API server is away, and this agent has finished: leaving")
        self._worker_group.state = self._result.state
        return self._result

    def _carry_out(self, order: course.Order) -> Any:
        """Carry out an order, and return its answer."""
        match order:
            case course.StartRound():
                if (left := self._course.restarts_left) is not None:
                    self._remaining_restarts = left  # torch passes it on in the processes' environment
                return self._start_round(self._worker_group)
            case course.AwaitChange(seconds):
                self._await_change(seconds)
                return self._see(answers=True)
            case course.AwaitEnds(seconds):
                processes = self._running()
                processes.await_ends(processes.alive().keys(), seconds)
                return self._see()
            case course.AwaitNews(seconds):
                return self._await_news(seconds)
            case course.CollectEnds():
                return self._collect_ends(self._worker_group)
            case course.WorksAlone():
                return self._works_alone(self._running())
            case course.ReportFailure(subject, state):
                return self._report_failure(subject, state)
            case course.LeaveByVote(action, begun_at):
                return self._vote(self._running(), action, begun_at)
        self._act(order)
        return None

    def _act(self, order: course.Order) -> None:
        """Carry out an order that has no answer."""
        match order:
            case course.ReportSuccess():
                self._reporter.note_result(self._environment.progress.result(self._ranks))
                self._reporter.report(AgentState.SUCCEEDED)
            case course.NoteGoodEnd():
                self._good_ends.note_own()
            case course.EndVotes():
                self._votes.end()
            case course.StopProcesses(grace):
                self._membership.arrival.note_end(datetime.now(timezone.utc))
                self._stop(self._running(), grace)
            case course.KeepProcesses(grace_seconds):
                self._membership.arrival.note_end(datetime.now(timezone.utc))
                self._kept.keep(self._membership.round, self._running(), grace_seconds)
            case course.Kill():
                self._running().kill()
            case course.StandBy():
                self._membership.stand_by()
            case course.EndLeftovers():
                self._orphans.kill()

    def _start_round(self, group: WorkerGroup) -> course.RoundStart:
        """Join the next world and start its processes."""
        self._processes, self._result = None, RunResult(state=WorkerState.FAILED)
        self._exits_seen = 0
        try:
            self._initialize_workers(group)
            self._failures.last_failure = None
            return course.RoundStart.STARTED
        except WorldMovedOnError:
            return course.RoundStart.MOVED_ON
        except DistError as error:
            # A member died between the meeting and torch's exchange of ranks: the next round is on its way.
            logger.warning("the other agents are gone: %s", str(error).partition("\n")[0])
            self._membership.stand_by()
            return course.RoundStart.MOVED_ON
        except RendezvousTimeoutError as error:
            return self._failed_to_start(group, 1, str(error))
        except OSError as error:
            code = 127 if error.errno == errno.ENOENT else 126  # as a shell has it
            return self._failed_to_start(group, code, f"the processes cannot be started: {error}")

    def _failed_to_start(self, group: WorkerGroup, exit_code: int, message: str) -> course.RoundStart:
        self._kept.stop(self._failure_grace_seconds)
        failed = self._note_failed([failure_by(message, exit_code)])
        self._failures.report_processes(self._ranks, failed, AgentState.FAILED)
        return course.RoundStart.FAILED

    # The facts.

    def _await_change(self, seconds: float) -> None:
        """Wait at most this long until the world, a vote, a device or a process changes."""
        processes = self._running()
        self._orphans.reap(spared=processes.pids.values())
        poll = select.poll()
        ours = (self._membership.fileno(), self._device_watch.fileno(), *self._votes.fds(), *self._kept.fds())
        for fd in (*ours, *processes.exit_fds(), *return_value_fds(self._pcontext)):
            poll.register(fd, select.POLLIN)
        has_more = len(processes.exit_codes) > self._exits_seen  # their descriptors are not polled any more
        poll.poll(0 if has_more else seconds * 1000)

    def _see(self, *, answers: bool = False) -> course.ProcessesSeen:
        """Return the state of the processes.

        Args:
            answers: also begin to answer a request for stacks.
        """
        processes, guard = self._running(), self._hang_guard
        action, view = self._membership.look()
        guard.look()
        limit_seconds = view.hang_timeout_seconds
        alive, now = processes.alive(), time.monotonic()
        if self._lingering.look(alive, self._ranks, limit_seconds, self._end_after_script, now):
            self._report_soon()
        if answers:
            self._stacks_desk.look(view.asks_for_stacks, processes, self._report_soon)
        failed, standing = self._post_mortem.new_failures(processes), self._membership.standing
        self._exits_seen = len(processes.exit_codes)
        hangs = guard.hangs(limit_seconds) and bool(self._post_mortem.with_scripts(processes))
        self._kept.look(processes, hangs=hangs)
        return course.ProcessesSeen(
            time.monotonic(),
            action,
            standing,
            failed=bool(failed),
            all_ended=processes.all_exited or bool(return_value_fds(self._pcontext)),
            alive=bool(processes.alive()),
            hangs=hangs,
            may_hang=guard.may_hang(limit_seconds, asked=standing.asks_where_it_hangs),
            lives_on=self._kept.lives_on(processes),
            lost=bool(self._kept.lost(processes)),
        )

    def _await_news(self, seconds: float) -> course.JobOrders:
        """Wait at most this long for news of the job, and return it."""
        membership = self._membership
        if seconds > 0:
            poll = select.poll()
            poll.register(membership.fileno(), select.POLLIN)
            poll.poll(seconds * 1000 + 1)
            if self._processes is None:
                self._orphans.reap(spared=())
        action = membership.next_action()
        return course.JobOrders(time.monotonic(), action, membership.standing, self._api.silent_seconds())

    def _works_alone(self, processes: TrainingProcesses) -> bool:
        """Whether one process is left of several and waits for no other: it may export for hours."""
        alive = self._post_mortem.with_scripts(processes)
        if len(processes.pids) == 1 and self._good_ends.is_alone:
            return False
        if len(alive) > 1 or any(processes.exit_codes.values()) or not self._good_ends.are_all_others():
            return False
        if any(stack.in_collective for stack in self._hang_guard.stacks_of(alive)()):
            return False
        self._hang_guard.note_life()
        return True

    # The acts.

    def _report_failure(self, subject: course.FailureSubject, state: AgentState | None) -> bool:
        failures, ranks, processes = self._failures, self._ranks, self._processes
        state = state or self._reporter.latest.state
        if subject is course.FailureSubject.DEVICE:
            return failures.report_device_fault(ranks, state)
        if subject is course.FailureSubject.PROCESSES and processes is None:  # torch has collected them
            failures.report_processes(ranks, list(self._result.failures.values()), state, self._ended)
            return True
        assert processes is not None
        match subject:
            case course.FailureSubject.PROCESSES:
                failed = self._note_failed(self._post_mortem.new_failures(processes))
                failures.report_processes(ranks, failed, state, processes)
            case course.FailureSubject.LOST:
                self._kept.note_failed_round(by_a_peer=True)
                lost, pids = self._kept.lost(processes), processes.pids
                failed = [failure_by(error, 1, rank, pids[rank]) for rank, error in lost.items()]
                failures.report_processes(ranks, self._note_failed(failed), state, processes)
            case course.FailureSubject.ENDING:
                failures.report_ending_processes(ranks, processes)
            case course.FailureSubject.EARLY_FINISH:
                return failures.report_early_finish(ranks, processes, state)
            case course.FailureSubject.WAITED_FOR:
                return failures.report_who_was_waited_for(ranks, processes, state)
            case _:
                hangs = subject is course.FailureSubject.HANG
                is_reported = failures.report_hang(processes, state, hangs=hangs)
                if hangs and is_reported:
                    self._kept.note_failed_round()
                return is_reported
        last = failures.last_failure
        return last is not None and not last.is_consequence

    def _collect_ends(self, group: WorkerGroup) -> course.ProcessesEnd:
        """Have torch collect the processes, if all have ended or returned."""
        result: RunResult = self._monitor_workers(group)
        if result.state not in (WorkerState.SUCCEEDED, WorkerState.FAILED):
            return course.ProcessesEnd.NOT_YET  # an unhealthy process still runs; the guard detects hangs
        self._running().release()
        self._result, self._ended, self._processes = result, self._processes, None
        if not result.is_failed():
            self._kept.stop(self._failure_grace_seconds)
            return course.ProcessesEnd.WELL
        self._orphans.kill()
        return course.ProcessesEnd.FAILED

    def _vote(self, processes: TrainingProcesses, action: NextAction, begun_at: float) -> VoteOutcome:
        """Leave by vote for a planned change, or at another agent's request."""
        outcome = self._votes.follow(processes, action, begun_at)
        left = self._votes.have_left(processes)
        self._post_mortem.excuse(left)
        return VoteOutcome.ENDED if outcome is VoteOutcome.LEFT and not left else outcome

    def _stop(self, processes: TrainingProcesses, grace: course.Grace) -> None:
        membership = self._membership
        action = membership.next_action()
        if action.verb is not AgentVerb.WAIT:
            logger.info("stopping the processes: action=%s round=%s", action.verb.value, action.round)

        def after_news() -> float | None:
            action = membership.next_action()
            return grace.after_news(action, membership.standing)

        wake_fd = None if grace.is_fixed else membership.fileno()
        processes.stop(signal.SIGTERM, grace.seconds, wake_fd=wake_fd, hurry_after_seconds=after_news)

    def _note_failed(self, failed: Collection[ProcessFailure]) -> Collection[ProcessFailure]:
        """Name these failures in the result of torch's `run`, in case this round is the last."""
        workers = self._worker_group.workers
        failures = {workers[failure.local_rank].global_rank: failure for failure in failed}
        self._result = RunResult(state=WorkerState.FAILED, failures=failures)
        return failed

    def _running(self) -> TrainingProcesses:
        assert self._processes is not None
        return self._processes

    @property
    def _ranks(self) -> dict[int, int]:
        return _global_ranks(self._worker_group)

    def _end_after_script(self, local_rank: int, exit_code: int) -> bool:
        process = started_process(self._pcontext, local_rank)
        if not isinstance(process, ForkedProcess):
            return False
        process.ends_as = exit_code
        self._running().end(local_rank, exit_code)
        return True

    # The processes.

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._starting.await_warm_parent()
        self._post_mortem.begin()
        self._lingering.begin()
        self._pcontext = None
        end_watchdog(self)
        self._kept.begin(self._membership.round)
        try:
            with self._starting.by_us():
                pids: dict[int, Any] = super()._start_workers(worker_group)
            signals.take_back()
            open_files.give_back(pids.values())
            assert self._pcontext is not None
            self._processes = TrainingProcesses(self._pcontext, self._orphans)
            self._kept.started(self._processes.pids)
            self._votes.begin(self._environment.progress.records)
            self._membership.arrival.note_start(self._membership.round, datetime.now(timezone.utc))
        except BaseException:
            abandon_start(self._pcontext, self._orphans)
            self._pcontext = self._processes = None
            raise
        if worker_group.group_rank == 0:
            open_files.warn_if_too_few(worker_group.workers[0].world_size, worker_group.group_world_size or 0)
        self._hang_guard.begin(RoundProcesses(self._membership.round, _global_ranks(worker_group)))
        return pids

    def _report_soon(self) -> None:
        self._reporter.progress(within_seconds=0.0)

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
            with signals.deferred():  # a second signal must not end a process that saves
                outcome = self._votes.stop(processes, begun_at)
            if outcome is VoteOutcome.FAILED:
                self._report_failed_leaving(processes)
            self._votes.end()
            processes.stop(death_sig, self._stop_grace_seconds - (time.monotonic() - begun_at))
            processes.join(timeout_seconds=1.0)
        begun_at = self._shutdown_at = self._shutdown_at or time.monotonic()
        self._kept.stop(self._stop_grace_seconds - (time.monotonic() - begun_at))
        with signals.deferred():  # nor interrupt a copy to the peer
            self._votes.hand_over(self._stop_grace_seconds - (time.monotonic() - begun_at))
            self._save_last(self._stop_grace_seconds - (time.monotonic() - begun_at))
        self._pcontext = None  # closed by TrainingProcesses
        super()._shutdown()  # ends torch's watchdog and health check

    def _save_last(self, seconds: float) -> None:
        memory, files = self._environment.memory, self._environment.progress
        if memory is not None:
            save_last(memory, files, self._membership, self._reporter.latest.state, seconds)

    def _report_failed_leaving(self, processes: TrainingProcesses) -> None:
        """Report why the agreed step has no checkpoint; no other agent can."""
        self._post_mortem.excuse(self._votes.have_left(processes))
        ranks = _global_ranks(self._worker_group)
        if failed := self._post_mortem.new_failures(processes):
            self._failures.report_processes(ranks, failed, self._reporter.latest.state, processes)

    def kill(self) -> None:
        """Leave no process behind. Must be called at the very end, whatever happened before."""
        self._votes.end()
        if self._processes is not None:
            self._processes.kill()
        self._kept.stop(0.0)
        self._orphans.kill()
        self._device_watch.stop()


def _global_ranks(group: WorkerGroup) -> dict[int, int]:
    """Return the global ranks by local ones; -1 before the first meeting."""
    return {worker.local_rank: worker.global_rank for worker in group.workers}
