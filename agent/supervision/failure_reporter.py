"""Reports why the processes of a round failed: their exceptions, their hangs, and faults of their devices."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from agent.facts.failure import TEXT_BYTES, LocalFailure, clip
from agent.membership import WorldMembership
from agent.monitor.hang_guard import HangGuard
from agent.monitor.round_logs import RoundLogsSpecs
from agent.monitor.xid import DeviceWatch
from agent.processes.processes import TrainingProcesses
from agent.report.reporter import Reporter
from agent.supervision import course
from agent.supervision.post_mortem import PostMortem, explains_more
from crds.agent_report import AgentState, FailureCause

logger = logging.getLogger(__name__)

Ranks = Mapping[int, int]
"""Global ranks by local ones; -1 before the first meeting."""


class FailureReporter:
    """Reports failures together with the agent's state.

    Only a failure that explains more replaces a reported one.
    """

    def __init__(
        self,
        membership: WorldMembership,
        reporter: Reporter,
        post_mortem: PostMortem,
        hang_guard: HangGuard,
        device_watch: DeviceWatch,
        logs: RoundLogsSpecs,
    ) -> None:
        self._membership = membership
        self._reporter = reporter
        self._post_mortem = post_mortem
        self._hang_guard = hang_guard
        self._device_watch = device_watch
        self._logs = logs
        self.last_failure: LocalFailure | None = None
        """Reported failure of the last round; None after a success."""

    def report_processes(
        self,
        ranks: Ranks,
        failed: Collection[ProcessFailure],
        state: AgentState,
        processes: TrainingProcesses | None = None,
    ) -> None:
        """Report a state and the failure that explains most, unless a better one has been reported.

        Args:
            processes: all processes of the round; one may have ended well before the others.
        """
        last = self._reporter.latest
        failure = self._post_mortem.describe(failed, ranks, last.observed_round, last.failures + 1)
        if not explains_more(failure, self.last_failure):
            self._reporter.report(state)
            return
        if failure.is_consequence and processes is not None:
            failure = self._describe_early_finish(ranks, processes) or failure
        logger.error(
            "training process failed: rank=%s exit_code=%s message=%s",
            failure.rank,
            failure.exit_code,
            failure.message.partition("\n")[0],
        )
        self._report(failure, state)

    def report_ending_processes(self, ranks: Ranks, processes: TrainingProcesses) -> None:
        """Report processes that are just failing, before they get a signal. It may take a second."""
        if failed := self._post_mortem.failures_before_stop(processes):
            self.report_processes(ranks, failed, self._reporter.latest.state, processes)
        last, early = self.last_failure, None
        if last is not None and last.is_consequence:
            early = self._describe_early_finish(ranks, processes)
        if early is not None:
            self._report(early, self._reporter.latest.state)

    def report_device_fault(self, ranks: Ranks, state: AgentState) -> bool:
        """Report a state and a device's fault, if there is one; return whether there is."""
        fault = self._device_watch.take()
        if fault is None:
            return False
        last = self._reporter.latest
        failure = self._post_mortem.describe_device_fault(
            fault, ranks, last.observed_round, last.failures + 1
        )
        self._report(failure, state)
        return True

    def report_who_was_waited_for(
        self, ranks: Ranks, processes: TrainingProcesses, state: AgentState
    ) -> bool:
        """Report where the living processes are, if a collective of the failed ones has timed out.

        Processes that are just losing these peers get time to end; one of them may have ended first.
        """
        if timed_out := self._post_mortem.timed_out(processes):
            processes.await_ends(timed_out, course.ENDING_SECONDS)
            if failed := self._post_mortem.new_failures(processes):
                self.report_processes(ranks, failed, state, processes)
        last = self.last_failure
        if last is None or last.cause is not FailureCause.TIMED_OUT:
            return False
        processes.await_ends(processes.alive(), course.ENDING_SECONDS)
        limit_seconds = self._membership.view.hang_timeout_seconds
        hangs = self._hang_guard.may_hang(limit_seconds, asked=True)
        return hangs and self.report_hang(processes, state)

    def report_hang(self, processes: TrainingProcesses, state: AgentState, *, hangs: bool = True) -> bool:
        """Report a state and the stacks of the processes whose scripts run.

        Args:
            hangs: False if they are healthy, and the job asks for their stacks.

        Returns:
            False, with nothing reported, if there are none any more, or if a hang has just ended.
        """
        last = self.last_failure
        failure = self._hang_guard.describe(
            self._post_mortem.with_scripts(processes),
            self._logs.latest.stderrs,
            self._reporter.latest.failures + 1,
            self._membership.view.hang_timeout_seconds,
            hangs=hangs,
        )
        if failure is None or (state is AgentState.FAILED and failure.cause is None):
            return False
        if last is not None and last.cause is FailureCause.TIMED_OUT:
            place, _, rest = failure.message.partition("\n")
            waited = f"Rank {last.rank} has waited for it: " + last.message.partition("\n")[0]
            failure = replace(failure, message=clip(f"{place}\n{waited}\n{rest}", TEXT_BYTES))
        logger.error(
            "training hangs: %s" if failure.cause else "training of others hangs; here it %s", failure.message
        )
        self._report(failure, state)
        return True

    def report_early_finish(self, ranks: Ranks, processes: TrainingProcesses, state: AgentState) -> bool:
        """Report a process that ended well before the others; return whether there is one."""
        early = self._describe_early_finish(ranks, processes)
        if early is not None:
            self._report(early, state)
        return early is not None

    def _describe_early_finish(self, ranks: Ranks, processes: TrainingProcesses) -> LocalFailure | None:
        """Describe a process that ended well before the others; None if a planned change ends the round."""
        if self._membership.standing.is_ended_by_plan:
            return None
        last = self._reporter.latest
        codes = self._post_mortem.exit_codes(processes)
        return self._post_mortem.describe_early_finish(codes, ranks, last.observed_round, last.failures + 1)

    def _report(self, failure: LocalFailure, state: AgentState) -> None:
        self.last_failure = failure
        self._reporter.report(state, failure=failure)
