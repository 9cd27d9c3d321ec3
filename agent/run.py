"""`dlr run`: torchrun for the Pods of an ElasticJob.

Unlike torchrun it takes the world from the job's ElasticWorld, so that the rendezvous flags have no effect,
and by default restarts in place after a failure.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.launcher.api import LaunchConfig

from agent import signals
from agent.arguments import LaunchArguments
from agent.checkpoints.holder import CheckpointHolder
from agent.connection.listener import Listener
from agent.environment import Environment, InvalidEnvironmentError, ensure_temporary_directory, listen
from agent.facts.arrival import Arrival
from agent.facts.world import AgentWorld, ExitReason, Member
from agent.kube.api import AgentApi
from agent.link import Link
from agent.logs import log_to_stderr
from agent.membership import WorldMembership
from agent.monitor import accelerators, open_files
from agent.monitor.hang import step_reporting_of_slot
from agent.monitor.hang_guard import HangGuard
from agent.monitor.oom import OomWatch
from agent.monitor.progress import ProgressFiles
from agent.monitor.round_logs import RoundLogsSpecs
from agent.monitor.stacks import StackFiles
from agent.network import SocketInterfaces
from agent.node_check.duties import NodeCheckFollower
from agent.peers.watcher import PeerWatcher
from agent.processes.orphans import Orphans
from agent.rendezvous.handler import DlrRendezvousHandler, JobEndedError
from agent.rendezvous.meeting import prefetch
from agent.replicas.desk import ReplicasDesk
from agent.report.elasticworker import PodLocation, section_of
from agent.report.failed_start import refuse_to_start
from agent.report.progress_monitor import ProgressMonitor, TrainingProgress
from agent.report.report import AgentFacts
from agent.report.reporter import Reporter
from agent.standalone.cluster import STACKS, LocalCluster
from agent.supervision.elastic_agent import DlrElasticAgent
from agent.supervision.ending import GoodEnds
from agent.supervision.lingering import Lingering
from agent.supervision.process_env import ProcessEnvironment
from agent.supervision.stacks_desk import StacksDesk
from agent.supervision.starting import Starting
from agent.supervision.votes import Votes
from agent.survival.desk import WorldDesk
from agent.survival.kept import KeptProcesses, why_none_lives_on
from agent.survival.spares import Spares
from agent.torch_compat import elastic
from agent.warm import Preloads
from agent.warm.preamble import must_start_cold
from agent.warm.warm_parent import WarmParent, WarmStart
from crds.agent_report import AgentState, CheckpointMemory
from crds.phases import HANG_TIMEOUT_SECONDS

logger = logging.getLogger(__name__)

EXIT_TERMINATED = 128 + signal.SIGTERM
EXIT_USAGE = 2


def main(argv: Sequence[str], preloads: Preloads | None = None, warm_parent: WarmParent | None = None) -> int:
    """Run the agent of one worker until it is done.

    Args:
        argv: torchrun's flags and ours, the script and its arguments.
        preloads: modules that a warm parent imports.
        warm_parent: a warm parent that is already started, if any.

    Returns:
        The exit code: 0, 143 when stopped, else that of the failed process as in a shell.
    """
    with contextlib.ExitStack() as cleanup:
        if warm_parent is not None:
            cleanup.callback(warm_parent.close)
        return _main(argv, preloads or Preloads(), warm_parent, cleanup)


def _main(
    argv: Sequence[str], preloads: Preloads, warm_parent: WarmParent | None, cleanup: contextlib.ExitStack
) -> int:
    try:
        log_to_stderr()
        ensure_temporary_directory(os.environ)  # torch creates a folder for logs when it reads the flags
        launch = LaunchArguments.read(argv)
        open_files.raise_limit()
        signal_names = elastic.signals_to_handle(launch.args)
        signals.handle(signal_names, signals.raise_signal)
    except (InvalidEnvironmentError, ValueError, AssertionError, RuntimeError, OSError) as error:
        return refuse_to_start(f"dlr run: {error}", EXIT_USAGE)
    except SignalException as error:
        return 128 + error.sigval
    built: Built | None = None
    try:
        warm_start = _warm_start(launch, preloads, warm_parent)
        if warm_start is not None:
            cleanup.callback(warm_start.close)
            warm_start.prepare(os.environ)  # the parent gets ready while this agent joins
        built = build(launch, warm_start, cleanup)
        if warm_start is not None:  # a world stops for a newcomer, which waits until it is warm
            warm_start.await_warm(built.membership.fileno(), built.others_train)
        return _run(built, launch.config)
    except InvalidEnvironmentError as error:
        return refuse_to_start(f"dlr run: {error}", EXIT_USAGE)
    except SignalException as error:
        return _stopped(built, 128 + error.sigval)
    finally:
        signals.handle(signal_names, signal.SIG_IGN)  # it is leaving already


@dataclass(frozen=True)
class Built:
    """The agent, and the parts that report its end."""

    agent: DlrElasticAgent
    membership: WorldMembership
    reporter: Reporter

    def others_train(self) -> bool:
        """Read the news of the job; return whether the newest world is formed without this agent."""
        self.membership.look()
        return self.membership.standing.others_train


def build(launch: LaunchArguments, warm_start: WarmStart | None, cleanup: contextlib.ExitStack) -> Built:
    """Connect to the cluster, and build the agent.

    Raises:
        InvalidEnvironmentError: the environment names no API server, or there is no memory for checkpoints.
    """
    me, config = launch.me, launch.config
    listener, store = listen(me, cleanup)
    link = Link.start(me, os.environ, cleanup, _local_cluster(launch))
    cleanup.enter_context(link.watcher.woken_by_signals())
    world = link.first_view.world
    memory = _memory(launch, listener, link, cleanup) if me.memory_bytes else None
    files = ProgressFiles(
        script_reports=link.slot_reports_steps, trouble=link.first_report.checkpoint_trouble
    )
    cleanup.callback(files.remove)
    stacks = StackFiles(files.directory / "stacks")
    members = world.members if world else ()
    replicas = ReplicasDesk.start(me, link.groups, store, cleanup) if link.groups is not None else None
    guard = HangGuard(files, stacks, step_reporting_of_slot(link.predecessor, me.worker_index, members))
    stacks_desk = StacksDesk(guard, link.first_view.asks_for_stacks)
    interfaces, arrival = SocketInterfaces(os.environ), Arrival(files.group_times)
    peers = PeerWatcher(me.member, listener.host, listener.port, me.key)
    cleanup.callback(peers.close)
    progress, lingering = TrainingProgress(files, link.first_report, link.usage), Lingering(files, stacks)
    orphans = Orphans(files.marker, warm_start.sessions if warm_start is not None else tuple)
    kept = _kept(me, warm_start, memory, orphans, files, cleanup)
    reporter = link.reporter(
        AgentFacts(listener.port, config.nproc_per_node, accelerators.detect()),
        cleanup,
        figures=progress.figures,
        sections={
            "network": interfaces.to_status,
            "asked_stacks": stacks_desk.to_status,
            "lived_on": kept.to_status,
            "lingers": lingering.to_status,
            "silent_peers": peers.to_status,
            "start": arrival.to_status,
            **({"replicas": replicas.to_status} if replicas is not None else {}),
            **({"memory": memory.to_status} if memory is not None else {}),
        },
    )
    peers.serve(lambda: reporter.progress(within_seconds=0.0))
    if replicas is not None:
        replicas.serve(lambda: reporter.progress(within_seconds=0.0))
    membership = WorldMembership(me.member, link.watcher, reporter, arrival)
    grace_seconds, failure_grace_seconds = launch.stop_grace_seconds, launch.failure_grace_seconds
    votes = Votes(membership, reporter, listener, memory, kept, grace_seconds, failure_grace_seconds)
    good_ends = GoodEnds()
    checks = NodeCheckFollower(link.api, me, reporter, lambda: kept.stop(failure_grace_seconds))
    handler = DlrRendezvousHandler(
        *(me, membership, reporter, checks, store, interfaces),
        join_timeout_seconds=launch.join_timeout_seconds,
        memory=memory,
        on_meeting=partial(_note_meeting, me.member, votes, good_ends, peers),
    )
    cleanup.callback(handler.shutdown)
    assert config.logs_specs is not None
    agent = DlrElasticAgent(
        launch.worker_spec(handler),
        RoundLogsSpecs(config.logs_specs, lambda: membership.round),
        ProcessEnvironment(files, stacks, memory, "" if launch.args.standalone else link.desk.path, replicas),
        api=link.api,
        membership=membership,
        reporter=reporter,
        votes=votes,
        good_ends=good_ends,
        guard=guard,
        lingering=lingering,
        stacks_desk=stacks_desk,
        oom=OomWatch.of_pod(me.pod_uid),
        stop_grace_seconds=grace_seconds,
        failure_grace_seconds=failure_grace_seconds,
        start_method=config.start_method,
        log_line_prefix_template=config.log_line_prefix_template,
        orphans=orphans,
        starting=Starting(membership, warm_start, orphans, kept, names_ranks=launch.args.names_ranks),
        kept=kept,
    )
    cleanup.callback(agent.kill)
    _start_monitor(progress, reporter, link, memory, cleanup)
    return Built(agent, membership, reporter)


def _kept(
    me: Environment,
    warm_start: WarmStart | None,
    memory: CheckpointHolder | None,
    orphans: Orphans,
    files: ProgressFiles,
    cleanup: contextlib.ExitStack,
) -> KeptProcesses:
    """Return the keeper of processes that live on; it keeps none without checkpoints in memory.

    Args:
        warm_start: forks the processes; None if none can live on.
    """
    why = why_none_lives_on(
        forks=warm_start is not None, has_memory=memory is not None, torch_version=torch.__version__
    )
    if warm_start is None or why:
        if me.spare_processes:
            logger.warning("spareProcesses has no effect: %s", why)
        return KeptProcesses(None, memory, orphans)
    try:
        desk = WorldDesk()
    except OSError as error:
        logger.warning("no process lives on when a peer dies: a socket cannot be bound: %s", error)
        return KeptProcesses(None, memory, orphans)
    cleanup.callback(desk.close)
    spares = Spares(desk, warm_start, orphans, files.directory) if me.spare_processes else None
    return KeptProcesses(desk, memory, orphans, spares, lambda: files.has_step)


def _start_monitor(
    progress: TrainingProgress,
    reporter: Reporter,
    link: Link,
    memory: CheckpointHolder | None,
    cleanup: contextlib.ExitStack,
) -> None:
    # The memory of a replacement is allocated only after its first step, which that must not delay.
    touch = memory.touch if memory is not None else lambda: None
    monitor = ProgressMonitor(progress, reporter, lambda: link.view.awaits_checkpoint, touch)
    monitor.start()
    cleanup.callback(monitor.stop)


def _note_meeting(
    member: Member, votes: Votes, good_ends: GoodEnds, peers: PeerWatcher, agents: Store, met: AgentWorld
) -> None:
    votes.meet(met)
    good_ends.meet(agents, met.members.index(member), met)
    peers.meet(agents, met)


def _memory(
    launch: LaunchArguments, listener: Listener, link: Link, cleanup: contextlib.ExitStack
) -> CheckpointHolder:
    """Return the memory for checkpoints, and begin to allocate it, or to fill it from a peer."""
    place = PodLocation(link.api, launch.me, lambda: link.view.topology_levels)
    before = section_of(link.predecessor, "memory", CheckpointMemory) or CheckpointMemory()
    # Another rank may not have finished the last save.
    step_before = None if before.step is None else before.step - (before.every or 0)
    memory = CheckpointHolder(launch.me, launch.config.nproc_per_node, listener, place, step_before)
    cleanup.callback(memory.close)
    if not prefetch(link.first_view.world, launch.me, memory):
        memory.touch()
    return memory


def _warm_start(
    launch: LaunchArguments, preloads: Preloads, warm_parent: WarmParent | None
) -> WarmStart | None:
    """Return a WarmStart for training processes; None if they are started as new interpreters."""
    args, entrypoint = launch.args, launch.entrypoint
    warm = isinstance(entrypoint, str) and not args.no_warm_start
    if warm and not must_start_cold([entrypoint, *launch.entrypoint_args], os.environ):
        try:
            return WarmStart(replace(preloads, users=tuple(args.preload)), warm_parent)
        except OSError as error:  # a sandbox, in which forked processes would not become our children
            logger.warning("training processes are started as new interpreters: prctl: %s", error)
    if warm_parent is not None:
        warm_parent.close()
    return None


def exit_code(process_exit_code: int | None) -> int:
    """Return the exit code as in a shell: 128 + n for signal n; 1 for processes that we had to end."""
    if process_exit_code is None:
        return 1
    return 128 - process_exit_code if process_exit_code < 0 else process_exit_code


def _local_cluster(launch: LaunchArguments) -> AgentApi | None:
    """Return the replacement of a cluster for `--standalone`; None without the flag."""
    if not launch.args.standalone:
        return None
    cluster = LocalCluster(launch.me, launch.args.hang_timeout or HANG_TIMEOUT_SECONDS)
    signal.signal(STACKS, lambda *_: cluster.ask_for_stacks())
    return cluster


def _run(built: Built, config: LaunchConfig) -> int:
    agent, is_good = built.agent, False
    try:
        result = agent.run()
        is_good = True
    except JobEndedError as ended:
        is_good = ended.reason is ExitReason.JOB_SUCCEEDED
        logger.info("leaving: %s", ended)
        if ended.reason is ExitReason.JOB_SUCCEEDED:
            code = 0
        elif ended.reason is ExitReason.JOB_FAILED and agent.last_failure is not None:
            code = exit_code(agent.last_failure.exit_code)
        else:
            code = EXIT_TERMINATED
        return _stopped(built, code)
    finally:
        elastic.record_end(agent, config, is_good=is_good)
    if result.is_failed() and agent.last_failure is not None:
        allowed = agent.get_worker_group().spec.max_restarts
        logger.error("no restarts are left: --max-restarts allows %d", allowed)
        return exit_code(agent.last_failure.exit_code)
    return 0


def _stopped(built: Built | None, code: int) -> int:
    """Report the end, and return the exit code, which is 0 after a success."""
    if built is None:
        return code
    if built.reporter.latest.state is AgentState.SUCCEEDED:
        return 0
    built.reporter.report(AgentState.STOPPED)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
