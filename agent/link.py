"""Connection of an agent to the cluster, with or without torch: Lease, watch of the world, usage, shards."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from agent.environment import Environment
from agent.facts.failure import LocalFailure
from agent.facts.world import WorldView
from agent.kube.api import AgentApi, ApiClient
from agent.kube.watcher import Watcher
from agent.monitor.stepping import Figures
from agent.monitor.usage import UsageMeter, meter_of_pod
from agent.replicas.facts import GroupsView
from agent.report.elasticworker import is_of_this_pod, last_report, section_of, sequence_after
from agent.report.heartbeat import LeaseRenewal
from agent.report.report import AgentFacts, ReportBody, Sections
from agent.report.reporter import Reporter
from agent.shards.desk import Desk
from agent.shards.job_sets import shown_of
from crds.agent_report import (
    AgentCheck,
    AgentCheckpointTrouble,
    AgentState,
    RoundProgress,
    Series,
    Slow,
    Usage,
)
from crds.grouping import worker_number
from crds.leases import holder_number
from crds.shard_set import object_name
from crds.wire import from_wire

FLUSH_SECONDS = 5.0
"""Time limit for the last report."""
SIGNAL_SECONDS = 1.0
"""The longest wait that a signal which comes just before it does not end."""


@dataclass(frozen=True)
class Link:
    """Threads that connect an agent to the cluster, from `start` until its `cleanup` ends them."""

    environment: Environment
    api: AgentApi
    watcher: Watcher[WorldView]
    groups: Watcher[GroupsView] | None
    """Watcher of the grouped job's ElasticWorld; None unless this worker's job is a replica group."""
    desk: Desk
    first_view: WorldView
    predecessor: Mapping[str, Any]
    """Last report of an earlier agent of this slot."""
    first_report: ReportBody
    """First report of this agent."""
    _heartbeat: LeaseRenewal
    _meter: UsageMeter

    @classmethod
    def start(
        cls,
        me: Environment,
        environ: Mapping[str, str],
        cleanup: contextlib.ExitStack,
        api: AgentApi | None = None,
    ) -> Link:
        """Connect to the cluster, and wait for the first view of the job.

        Args:
            api: API server to use in place of the one that the environment names.

        Raises:
            InvalidEnvironmentError: the environment names no API server.
        """
        api = api or ApiClient.in_cluster(environ)
        heartbeat = LeaseRenewal(api, me)
        heartbeat.start()
        cleanup.callback(heartbeat.stop)
        number = holder_number(me.replica_type, me.worker_index)
        desk = Desk(worker_number(me.group_index, number) if me.grouped_job else number, me.incarnation)
        cleanup.callback(desk.stop)

        def view_of(world: Mapping[str, Any]) -> WorldView:
            if not me.grouped_job:
                desk.be_of(world)
            return WorldView.parse(world)

        watcher = Watcher(
            api, "elasticworlds", me.namespace, me.owner_name, parse=view_of, missing=WorldView()
        )
        watcher.start()
        cleanup.callback(watcher.stop)
        groups = _groups_watcher(api, me, desk) if me.grouped_job else None
        if groups is not None:
            groups.start()
            cleanup.callback(groups.stop)
        meter = meter_of_pod(me.pod_uid)
        meter.start()
        cleanup.callback(meter.stop)
        predecessor = last_report(api, me)
        view = _first_view(watcher)
        first = first_report(predecessor, me, view, datetime.now(timezone.utc))
        return cls(me, api, watcher, groups, desk, view, predecessor, first, heartbeat, meter)

    @property
    def view(self) -> WorldView:
        """Newest view of the job."""
        return self.watcher.view() or self.first_view

    @property
    def slot_reports_steps(self) -> bool:
        """Whether the script has reported steps itself to an earlier agent of this slot."""
        return any(not each.get("counted") for each in self.predecessor.get("rounds") or ())

    def usage(self) -> Usage | None:
        """Return the newest figures of this Pod's usage; None while there are none."""
        return self._meter.latest()

    def reporter(
        self,
        facts: AgentFacts,
        cleanup: contextlib.ExitStack,
        *,
        figures: Callable[[], Figures] | None = None,
        sections: Sections = {},  # noqa: B006
    ) -> Reporter:
        """Return the agent's reporter, not started yet; from now on processes may pull shards.

        Args:
            cleanup: writes the last report, and ends the reporter.
            figures: returns the figures on progress for each report.
            sections: return further sections of each report.
        """
        me = self.environment
        reporter = Reporter(
            self.api,
            me,
            facts,
            self.first_report,
            progress_seconds=me.heartbeat_seconds,
            sequence=sequence_after(self.predecessor, me),
            figures=figures,
            sections={**sections, "usage": self.usage, "shards": self.desk.to_status},
            on_final_refusal=self._heartbeat.stop,
        )
        cleanup.callback(reporter.stop)
        cleanup.callback(reporter.flush, FLUSH_SECONDS)
        # Unreported parts are repeated if the Pod is lost, so results are reported twice a heartbeat.
        later = me.heartbeat_seconds / 2
        self.desk.serve(lambda soon: reporter.progress(within_seconds=min(soon, later)), self._watch_set)
        return reporter

    def _watch_set(self, number: int) -> Callable[[], None]:
        """Make the desk follow the ShardSet of a number; return a function that ends it."""
        me, desk = self.environment, self.desk
        name = object_name(me.grouped_job or me.owner_name, number)
        watcher: Watcher[Mapping[str, Any] | None] = Watcher(
            self.api, "shardsets", me.namespace, name, parse=shown_of, missing=None
        )
        watcher.call_at_changes(lambda: desk.see(number, watcher.view()))
        watcher.start()
        return watcher.stop


def _groups_watcher(api: AgentApi, me: Environment, desk: Desk) -> Watcher[GroupsView]:
    """Return a watcher of the groups that train together, which share the shard sets of their job."""

    def groups_of(world: Mapping[str, Any]) -> GroupsView:
        desk.be_of(world)
        return GroupsView.parse(world)

    return Watcher(api, "elasticworlds", me.namespace, me.grouped_job, parse=groups_of, missing=GroupsView())


def _first_view(watcher: Watcher[WorldView]) -> WorldView:
    poll = select.poll()
    poll.register(watcher.fileno(), select.POLLIN)
    while (view := watcher.take()) is None:
        poll.poll(SIGNAL_SECONDS * 1000)
    return view


def first_report(
    predecessor: Mapping[str, Any], me: Environment, view: WorldView, now: datetime
) -> ReportBody:
    """Return a first report with state Ready, for a world newer than any this Pod may have been in.

    A container that was restarted in its Pod is a member of a world whose processes here died with its
    predecessor. It must not join that round again, in which the others already are. Ready at that round means
    that it has left it.

    Some reports of an earlier Pod of the slot remain: trouble with checkpoints, until it is over, and the
    job's past.
    """
    trouble = section_of(predecessor, "checkpointTrouble", AgentCheckpointTrouble)
    past = section_of(predecessor, "series", Series)
    slow = section_of(predecessor, "slow", Slow)
    if not is_of_this_pod(predecessor, me):
        predecessor = {}
    observed_round = int(predecessor.get("observedRound") or 0)
    if view.world is not None and me.member in view.world.members:
        observed_round = max(observed_round, view.world.round)
    rounds = tuple(from_wire(RoundProgress, each) for each in predecessor.get("rounds") or ())
    return ReportBody(
        AgentState.READY,
        since=now,
        observed_round=observed_round,
        failure=section_of(predecessor, "failure", LocalFailure),
        rounds=rounds,
        check=section_of(predecessor, "check", AgentCheck),
        checkpoint_trouble=trouble,
        series=past,
        slow=slow,
    )
