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
from torch.distributed.elastic.multiprocessing import LogsDest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousTimeoutError

from agent import signals
from agent.facts.failure import Failure
from agent.facts.world import Action, ExitReason, Verb
from agent.kube.api import Api
from agent.membership import Membership
from agent.monitor import open_files
from agent.monitor.hang import LOOK_SECONDS
from agent.monitor.hang_guard import HangGuard, Started
from agent.monitor.oom import OomWatch
from agent.monitor.round_logs import RoundLogsSpecs
from agent.monitor.stepping import Start
from agent.monitor.xid import DeviceWatch
from agent.processes.orphans import Orphans, adopt
from agent.processes.processes import TrainingProcesses, abandon_start
from agent.rendezvous.handler import JobEndedError
from agent.report.reporter import Reporter
from agent.supervision.asked import Asked
from agent.supervision.ending import GoodEnds, await_job_end, stop_for_next_round, stop_when_judged
from agent.supervision.failure_reporter import FailureReporter
from agent.supervision.leaving import Outcome
from agent.supervision.post_mortem import PostMortem, process_failure
from agent.supervision.process_env import ProcessEnvironment, restart_counts
from agent.supervision.starting import Starting, WorldMovedOnError
from agent.supervision.votes import Votes
from agent.torch_compat.elastic import (
    UNLIMITED_RESTARTS,
    LocalElasticAgent,
    LogsAndEnvironment,
    return_value_fds,
)
from agent.warm.warm_parent import WarmStart
from crds.agent_report import AgentState

logger = logging.getLogger(__name__)

ENDING_SECONDS = 1.0
"""What processes get to end by themselves in a world that broke and has no successor yet: one that has just
left the others takes so long to shut Python down, and its exit code 0 explains why they failed."""


class DlrElasticAgent(LocalElasticAgent):
    """Runs the training processes of one node, round after round.

    Args:
        spec: of the processes, with a DlrRendezvousHandler.
        environment: what completes their environment.
        votes: by which its processes leave.
        guard: watches its processes for hangs.
        asked: what answers requests for stacks, and for a profile.
        oom: tells whether the kernel has killed a process for memory.
        stop_grace_seconds: from SIGTERM to SIGKILL for processes that stop.
        failure_grace_seconds: the same for processes whose peer has failed.
        start_method: of torch, for functions.
        warm_start: what forks the processes; None if they are spawned.

    Raises:
        JobEndedError: from `run`, when the job ended, or goes on without this agent.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs: RoundLogsSpecs,
        environment: ProcessEnvironment,
        *,
        api: Api,
        membership: Membership,
        reporter: Reporter,
        votes: Votes,
        good_ends: GoodEnds,
        guard: HangGuard,
        asked: tuple[Asked[Any], Asked[Any]],
        oom: OomWatch,
        stop_grace_seconds: float,
        failure_grace_seconds: float,
        start_method: str,
        log_line_prefix_template: str | None,
        warm_start: WarmStart | None,
    ) -> None:
        super().__init__(
            spec,
            LogsAndEnvironment(logs, self._complete_environments),
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
        self._asked_stacks, self._asked_profile = asked
        self._stop_grace_seconds = stop_grace_seconds
        self._failure_grace_seconds = failure_grace_seconds
        self._processes: TrainingProcesses | None = None
        """The processes of the round that runs, or ran last."""
        self._shutdown_at: float | None = None
        """When the grace of the last shutdown began."""
        self._orphans = Orphans(
            environment.progress.marker, warm_start.sessions if warm_start is not None else tuple
        )
        self._starting = Starting(membership, warm_start, self._orphans)
        adopt("training processes")
        self._post_mortem = PostMortem(logs, environment.progress, oom)
        self._device_watch = DeviceWatch()
        self._device_watch.start()
        self._failures = FailureReporter(
            membership, reporter, self._post_mortem, guard, self._device_watch, logs
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
            elif await_job_end(self._membership, self._api, self._orphans):
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
            self._membership.stand_by()
            return None
        except RendezvousTimeoutError as error:
            return self._failed_to_start(group, 1, str(error))
        except OSError as error:
            code = 127 if error.errno == errno.ENOENT else 126  # as a shell says it
            return self._failed_to_start(group, code, f"the processes cannot be started: {error}")

    def _supervise(self, group: WorkerGroup) -> RunResult | None:
        """Watch the processes until they end. Return None if the world did, when they have been stopped."""
        processes, membership = self._processes, self._membership
        if processes is None:
            return None
        while True:
            self._orphans.reap(spared=processes.pids.values())
            poll = select.poll()
            ours = (membership.fileno(), self._device_watch.fileno(), *self._votes.fds())
            for fd in (*ours, *processes.exit_fds(), *return_value_fds(self._pcontext)):
                poll.register(fd, select.POLLIN)
            poll.poll(LOOK_SECONDS * 1000)
            action, view = membership.look()
            broken = action.verb is not Verb.WAIT
            self._hang_guard.look()
            self._asked_stacks.look(view.asks_for_stacks, processes, self._report_soon)
            self._asked_profile.look(view.asks_for_profile, processes, self._report_soon)
            result = None if broken else self._check_devices(group, processes)
            result = result or self._check_processes(group, processes, broken=broken)
            hangs = self._hang_guard.hangs(view.hang_timeout_seconds)
            if result is None and not broken and hangs and not self._works_alone(processes):
                result = self._stop_hung_processes(processes)
            if result is not None:
                if result.is_failed():  # the driver may tell why a moment later than the process
                    self._failures.report_device_fault(_global_ranks(group), self._reporter.latest.state)
                return result
            begun_at = time.monotonic()
            outcome = self._vote(processes, action, begun_at)
            if outcome in (Outcome.LEFT, Outcome.STOPPED):
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
                stop_for_next_round(membership, processes, stop_grace_seconds, self._failure_grace_seconds)
                raise JobEndedError(action.reason or ExitReason.REPLACED)
            logger.info("stopping the processes: action=%s round=%s", action.verb.value, action.round)
            if membership.standing.asks_where_it_hangs:
                stop_when_judged(membership, processes, self._failure_grace_seconds)
            else:
                stop_for_next_round(membership, processes, stop_grace_seconds, self._failure_grace_seconds)
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
            self._membership.stand_by()
        return None

    # The processes.

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._starting.await_warm_parent()
        self._post_mortem.begin()
        self._pcontext = None
        try:
            with self._starting.by_us():
                pids: dict[int, Any] = super()._start_workers(worker_group)
            signals.take_back()
            open_files.give_back(pids.values())
            assert self._pcontext is not None
            self._processes = TrainingProcesses(self._pcontext, self._orphans)
            self._votes.begin(self._environment.progress.records)
        except BaseException:
            abandon_start(self._pcontext, self._orphans)
            self._pcontext = self._processes = None
            raise
        if worker_group.group_rank == 0:
            open_files.warn_if_too_few(worker_group.workers[0].world_size, worker_group.group_world_size or 0)
        self._hang_guard.begin(Started(self._membership.round, _global_ranks(worker_group)))
        return pids

    def _complete_environments(self, envs: dict[int, dict[str, str]], logs: LogsDest) -> None:
        """Add to torch's variables what a process shares with this agent."""
        ranks = [int(envs[local_rank]["RANK"]) for local_rank in range(len(envs))]
        view, round_ = self._membership.view, self._membership.round
        start = Start(round_, int(envs[0]["WORLD_SIZE"]), leads=0 in ranks, of_new_job=not view.has_trained)
        failures_per_hour = view.failures_per_hour(datetime.now(timezone.utc))
        ours = self._environment.of_start(start, ranks, logs, failures_per_hour)
        for local_rank, env in envs.items():
            env.update({**restart_counts(env, round_), **ours[local_rank]})

    def _report_soon(self) -> None:
        self._reporter.progress(within_seconds=0.0)

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
            self._reporter.note_result(self._environment.progress.result(ranks))
            self._reporter.report(AgentState.SUCCEEDED)
            self._good_ends.note_own()  # last: it waits for rank 0's agent, whose node may be gone
        return result

    def _await_good_end(
        self, group: WorkerGroup, processes: TrainingProcesses, action: Action
    ) -> RunResult | None:
        """Return a result if all processes end well just now, although the others cannot go on."""
        standing = self._membership.standing
        dead_peers = action.verb is Verb.STAND_BY and standing.peers_are_dead
        if not dead_peers or standing.asks_where_it_hangs:
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
        if len(processes.pids) == 1 and self._good_ends.is_alone:
            return False
        if len(alive) > 1 or any(processes.exit_codes.values()) or not self._good_ends.are_all_others():
            return False
        if any(stack.in_collective for stack in self._hang_guard.stacks_of(alive)()):
            return False
        self._hang_guard.note_life()
        return True

    def _stop_hung_processes(self, processes: TrainingProcesses) -> RunResult | None:
        """Report where they hang, and stop them; None if they have just ended."""
        if not processes.alive() or not self._failures.report_hang(processes, AgentState.FAILED):
            return None
        stop_when_judged(self._membership, processes, self._failure_grace_seconds)
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
                outcome = self._votes.stop(processes, begun_at)
            if outcome is Outcome.FAILED:
                self._report_failed_leaving(processes)
            self._votes.end()
            processes.stop(death_sig, self._stop_grace_seconds - (time.monotonic() - begun_at))
            processes.join(timeout_seconds=1.0)
        begun_at = self._shutdown_at = self._shutdown_at or time.monotonic()
        with signals.deferred():  # nor is it to end what the peer still copies
            self._votes.hand_over(self._stop_grace_seconds - (time.monotonic() - begun_at))
        self._pcontext = None  # The processes have closed it.
        super()._shutdown()  # It ends torch's watchdog and health check.

    def _report_failed_leaving(self, processes: TrainingProcesses) -> None:
        """Report why there is no checkpoint of the step that all left after; nobody else can."""
        self._post_mortem.excuse(self._votes.have_left(processes))
        ranks = _global_ranks(self._worker_group)
        if failed := self._post_mortem.new_failures(processes):
            self._failures.report_processes(ranks, failed, self._reporter.latest.state, processes)

    def kill(self) -> None:
        """Leave nothing behind. To be called at the very end, whatever happened before."""
        self._votes.end()
        if self._processes is not None:
            self._processes.kill()
        self._orphans.kill()
        self._device_watch.stop()


def _global_ranks(group: WorkerGroup) -> dict[int, int]:
    """Return the global ranks by local ones; -1 before the first meeting."""
    return {worker.local_rank: worker.global_rank for worker in group.workers}
