"""torch's rendezvous, where the ElasticJob's status says who meets whom.

`next_rendezvous` blocks until a world newer than the last one includes this agent and all its members have
met. The same handler serves `dlr run` and stock `torchrun --rdzv-backend=dlr`; for the latter it is the
only part of dlr at work, so it reports, renews the Lease and watches the job by itself.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousTimeoutError,
)

from agent import accelerators
from agent.api import ApiClient
from agent.check_report import CheckReport
from agent.checks import ActiveCheck
from agent.environment import Environment
from agent.failure import Failure, failure_of_process
from agent.hang import Habit, habit_of_slot
from agent.heartbeat import Heartbeat
from agent.join import Meeting, MeetingTimeoutError, RoundStores, SupersededError
from agent.report import Facts, Report, Reporter, is_of_this_pod, last_report
from agent.stepping import RoundProgress
from agent.usage import UsageMeter, meter_of_pod
from agent.watcher import Watcher
from agent.world import (
    WAIT,
    Action,
    AgentState,
    ExitReason,
    JobView,
    Member,
    Verb,
    World,
    WorldPhase,
    next_action,
)

logger = logging.getLogger(__name__)

BACKEND = "dlr"
JOIN_TIMEOUT_SECONDS = 600
"""Until a world that stands, but whose members do not come, counts as failed; --rdzv-conf join_timeout=…"""

FLUSH_SECONDS = 5.0


class JobEndedError(RendezvousClosedError):
    """There is nothing left to join."""

    def __init__(self, reason: ExitReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class DlrRendezvousHandler(RendezvousHandler):
    def __init__(
        self,
        run_id: str,
        me: Environment,
        *,
        store: TCPStore,
        watcher: Watcher[JobView],
        reporter: Reporter,
        heartbeat: Heartbeat,
        meter: UsageMeter,
        api: ApiClient,
        habit: Habit,
        join_timeout_seconds: float,
    ) -> None:
        self.environment = me
        self.habit = habit
        self.reporter = reporter
        self.watcher = watcher
        self._run_id = run_id
        self._me = Member(me.worker_index, me.incarnation)
        self._lifetime_store = store
        self._heartbeat = heartbeat
        self._meter = meter
        self._api = api
        self._active_check = ActiveCheck(api, me, reporter)
        self._join_timeout_seconds = join_timeout_seconds
        self._round_stores: RoundStores | None = None
        self._closed = False
        self.world: World | None = None
        """The world last joined."""

    # What torch's agents call.

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """The training processes use the store that rank 0's agent opened for the round."""
        return True

    def get_run_id(self) -> str:
        return self._run_id

    def next_rendezvous(self) -> RendezvousInfo:
        if not self.reporter.is_alive():
            self.reporter.start()  # Ready: only now can this agent keep what that promises
        while True:
            world = self._await_world()
            rank = world.rank_of(self._me)
            assert rank is not None
            logger.info("joining round=%d rank=%d of=%d", world.round, rank, len(world.members))
            meeting = Meeting(world, rank, self.environment.pod_ip, self._join_timeout_seconds)
            try:
                stores = meeting.hold(
                    self.watcher.fileno(),
                    lambda world=world: self._is_newest(world),  # type: ignore[misc]
                )
            except SupersededError:
                logger.info("round=%d was superseded before all had met", world.round)
                continue
            except MeetingTimeoutError as error:
                self.reporter.report(AgentState.READY, world.round)
                raise RendezvousTimeoutError(str(error)) from error
            self._round_stores = stores  # the last round's store ends here: all its processes have ended
            self.world = world
            self.reporter.report(AgentState.RUNNING, world.round)
            return RendezvousInfo(stores.agents, rank, len(world.members), stores.bootstrap)

    def num_nodes_waiting(self) -> int:
        """Above 0 when the world that runs is not the one that should: what torchrun's agent polls."""
        return 0 if self.next_action() == WAIT else 1

    def is_closed(self) -> bool:
        return self._closed or self.next_action().verb is Verb.EXIT

    def set_closed(self) -> None:
        """For this agent only: whether the job has ended is the controller's to say."""
        self._closed = True

    def shutdown(self) -> bool:
        """Say the last thing, and end the threads."""
        if self.reporter.latest.state is AgentState.RUNNING:
            self._report_end_of_torchrun(sys.exc_info()[1])
        self.reporter.flush(FLUSH_SECONDS)
        for part in (self.reporter, self._heartbeat, self._meter, self.watcher):
            part.stop()
        return True

    # What dlr's agent calls besides.

    def next_action(self) -> Action:
        """What the newest view of the job asks of this agent."""
        return self._decide()[0]

    def stand_by(self, round_: int) -> None:
        """Nothing runs here any more, and `round_` is known."""
        self.reporter.report(AgentState.READY, round_)

    def others_train(self) -> bool:
        """Whether a world stands that this agent is not in: nobody waits for it."""
        world = (self.watcher.take() or JobView()).world
        return world is not None and world.phase is WorldPhase.FORMED and world.rank_of(self._me) is None

    def same_members_again(self) -> bool:
        """Whether the newest world is the one last joined once more: somebody's processes failed in it."""
        newest = (self.watcher.view() or JobView()).world
        return (
            newest is not None
            and self.world is not None
            and newest.phase is WorldPhase.FORMED
            and newest.members == self.world.members
        )

    def hang_timeout_seconds(self) -> float:
        """As the job says it now."""
        return (self.watcher.view() or JobView()).hang_timeout_seconds

    def api_silent_seconds(self) -> float:
        return self._api.silent_seconds()

    def _decide(self) -> tuple[Action, JobView]:
        view = self.watcher.take() or JobView()
        report = self.reporter.latest
        action = next_action(view.world, self._me, report.observed_round, report.state, view.phase)
        return action, view

    def _is_newest(self, world: World) -> bool:
        return self.next_action() == Action(Verb.START, world.round)

    def _await_world(self) -> World:
        """Until then this agent is idle, and its node may be tested."""
        poll = select.poll()
        poll.register(self.watcher.fileno(), select.POLLIN)
        try:
            while True:
                action, view = self._decide()
                if self._closed:
                    raise RendezvousClosedError("the rendezvous was closed")
                if action.verb is Verb.EXIT and action.reason is not None:
                    raise JobEndedError(action.reason)
                if action.verb is Verb.START and view.world is not None:
                    return view.world
                if action.verb is Verb.STAND_BY and action.round is not None:
                    self.stand_by(action.round)
                elif self.reporter.latest.state is AgentState.RUNNING:
                    # torchrun's agent stopped what ran: Ready at the round that stands says "I left it".
                    self.stand_by(self.reporter.latest.observed_round)
                self._active_check.follow(view.active_check)
                poll.poll()
        finally:
            self._active_check.leave()  # no probe runs beside training processes

    def _report_end_of_torchrun(self, error: BaseException | None) -> None:
        """torchrun's launcher shuts its handler down with the error in flight; nobody else tells it."""
        if error is None:
            self.reporter.report(AgentState.SUCCEEDED)
            return
        failure = None
        if isinstance(error, ChildFailedError):
            rank, process = error.get_first_failure()
            last = self.reporter.latest
            failure = failure_of_process(
                process,
                sequence=last.failures + 1,
                round_=last.observed_round,
                rank=rank,
                stderr=None,
                time=datetime.now(timezone.utc),
            )
        self.reporter.report(AgentState.STOPPED, failure=failure)


def create_handler(params: RendezvousParameters) -> DlrRendezvousHandler:
    """Connect to the cluster."""
    me = Environment.read(os.environ)
    api = ApiClient.in_cluster(os.environ)
    heartbeat = Heartbeat(api, me)
    heartbeat.start()
    watcher = Watcher(api, "elasticjobs", me.namespace, me.owner_name, parse=JobView.parse, missing=JobView())
    watcher.start()
    store = TCPStore(me.pod_ip, 0, is_master=True, wait_for_workers=False)
    facts = Facts(
        store_port=store.port,
        local_world_size=params.get_as_int("local_world_size") or _local_world_size_of_torchrun(),
        accelerators=accelerators.detect(),
    )
    meter = meter_of_pod(me.pod_uid)
    meter.start()
    predecessor = last_report(api, me)
    view = _first_view(watcher)
    reporter = Reporter(
        api,
        me,
        facts,
        _first_report(predecessor if is_of_this_pod(predecessor, me) else {}, me, view),
        progress_seconds=me.heartbeat_seconds,
        usage=meter.latest,
    )
    return DlrRendezvousHandler(
        params.run_id,
        me,
        store=store,
        watcher=watcher,
        reporter=reporter,
        heartbeat=heartbeat,
        meter=meter,
        api=api,
        habit=habit_of_slot(predecessor, me.worker_index, view.world.members if view.world else ()),
        join_timeout_seconds=params.get_as_int("join_timeout") or JOIN_TIMEOUT_SECONDS,
    )


def _first_view(watcher: Watcher[JobView]) -> JobView:
    poll = select.poll()
    poll.register(watcher.fileno(), select.POLLIN)
    while watcher.view() is None:
        poll.poll()
    return watcher.take() or JobView()


def _first_report(predecessor: Mapping[str, Any], me: Environment, view: JobView) -> Report:
    """Ready, for a world newer than any this Pod may have been in.

    A container that was restarted in its Pod finds itself in a world whose processes died with its
    predecessor. It must not join that round again: the others are in the middle of it. Ready at that round
    says that it was left.
    """
    known_round = int(predecessor.get("observedRound") or 0)
    if view.world is not None and Member(me.worker_index, me.incarnation) in view.world.members:
        known_round = max(known_round, view.world.round)
    failure = predecessor.get("failure")
    return Report(
        AgentState.READY,
        since=datetime.now(timezone.utc),
        observed_round=known_round,
        failure=Failure.from_status(failure) if failure else None,
        rounds=tuple(RoundProgress.from_status(round_) for round_ in predecessor.get("rounds") or ()),
        check=CheckReport.from_status(predecessor.get("check")),
    )


def _local_world_size_of_torchrun() -> int:
    """Stock torchrun does not tell its handler, so look where it looks; a device name counts as 1."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(
        "--nproc-per-node", "--nproc_per_node", default=os.environ.get("PET_NPROC_PER_NODE", "1")
    )
    value = parser.parse_known_args(sys.argv[1:])[0].nproc_per_node
    return int(value) if value.isdigit() else 1
