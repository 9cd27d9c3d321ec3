"""`dlr run`: torchrun for the Pods of an ElasticJob.

All of torchrun's flags, read by torchrun's own parser. What differs is where the world comes from (the job's
status, so the rendezvous flags have no say), and that a failure restarts in place by default.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import SignalException, Std
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import config_from_args, get_args_parser

from agent import signals, standalone
from agent.checkpoints.holder import CheckpointMemory
from agent.environment import Environment, InvalidEnvironmentError, grace_of_processes
from agent.facts.error_file import write_error_file
from agent.facts.world import ExitReason
from agent.logs import log_to_stderr
from agent.monitor import open_files
from agent.monitor.oom import OomWatch
from agent.rendezvous.handler import BACKEND, DlrRendezvousHandler, JobEndedError, create_handler
from agent.rendezvous.last_round import prefetch
from agent.report.failed_start import refuse_to_start
from agent.report.progress_monitor import ProgressMonitor
from agent.standalone.cluster import STACKS, LocalCluster
from agent.supervision.elastic_agent import FAILURE_GRACE_SECONDS, DlrElasticAgent
from agent.temporary_directory import ensure_temporary_directory
from agent.torch_compat import elastic
from agent.torch_compat.elastic import UNLIMITED_RESTARTS
from agent.warm.preamble import must_start_cold
from agent.warm.starter import WarmStart
from agent.warm.warm_parent import WarmParent
from crds.agent_report import AgentState
from crds.phases import HANG_TIMEOUT_SECONDS

logger = logging.getLogger(__name__)

EXIT_TERMINATED = 128 + signal.SIGTERM
EXIT_USAGE = 2
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def main(argv: Sequence[str], warm_parent: WarmParent | None = None) -> int:
    """Run the agent of one worker until it is done.

    Args:
        argv: torchrun's flags and ours, the script and its arguments.
        warm_parent: that training processes are forked from, if there is one already.

    Returns:
        The exit code: 0, 143 when stopped, else the failed process's as a shell says it.
    """
    with contextlib.ExitStack() as cleanup:
        if warm_parent is not None:
            cleanup.callback(warm_parent.close)
        return _main(argv, warm_parent, cleanup)


def _main(argv: Sequence[str], warm_parent: WarmParent | None, cleanup: contextlib.ExitStack) -> int:
    try:
        args = parse(argv)
        me = Environment.take(os.environ)
        log_to_stderr()
        open_files.raise_limit()
        ensure_temporary_directory(os.environ)
        signal_names = elastic.signals_to_handle(args)
        signals.handle(signal_names, signals.raise_signal)
        config, entrypoint, entrypoint_args = config_from_args(args)
    except (InvalidEnvironmentError, ValueError, AssertionError, RuntimeError, OSError) as error:
        return refuse_to_start(f"dlr run: {error}", EXIT_USAGE)
    except SignalException as error:
        return 128 + error.sigval
    handler = None
    try:
        warm_start = _warm_start(args, entrypoint, entrypoint_args, warm_parent)
        if warm_start is not None:
            cleanup.callback(warm_start.close)
            warm_start.prepare(os.environ)  # it warms up while this agent joins
        handler = create_handler(_rendezvous_parameters(config, args, me), me, _local_cluster(args, me))
        cleanup.callback(handler.shutdown)
        if me.memory_bytes:
            listener, place = handler.session.listener, handler.session.place
            handler.memory = CheckpointMemory(me, config.nproc_per_node, listener, place)
            cleanup.callback(handler.memory.close)
            handler.session.reporter.follow_section("memory", handler.memory.to_status)
            if not prefetch(handler.session, handler.memory):
                handler.memory.touch()
        spec = worker_spec(config, entrypoint, entrypoint_args, handler)
        agent = _create_agent(config, spec, args, me, warm_start)
        cleanup.callback(agent.kill)
        session = handler.session
        monitor = ProgressMonitor(
            agent.progress_files, session.reporter, session.part, session.checkpoint_is_awaited
        )
        if handler.memory is not None:  # of a replacement: no start waits any more for what touching takes
            monitor.call_at_first_steps(handler.memory.touch)
        session.watcher.call_at_changes(monitor.note_news)
        monitor.start()
        cleanup.callback(monitor.stop)
        if warm_start is not None:  # for a newcomer they stop, so it comes when it can start at once
            warm_start.await_warm(handler.session.watcher.fileno(), handler.session.others_train)
        return _run(agent, handler, config)
    except InvalidEnvironmentError as error:
        return refuse_to_start(f"dlr run: {error}", EXIT_USAGE)
    except SignalException as error:
        return _stopped(handler, 128 + error.sigval)
    finally:
        signals.handle(signal_names, signal.SIG_IGN)  # we are leaving already


def _warm_start(
    args: Any, entrypoint: Any, entrypoint_args: Sequence[str], warm_parent: WarmParent | None
) -> WarmStart | None:
    """Return what training processes are forked by; None if they are to be started as new interpreters."""
    warm = isinstance(entrypoint, str) and not args.no_warm_start
    if warm and not must_start_cold([entrypoint, *entrypoint_args], os.environ):
        return WarmStart(args.preload, warm_parent)
    if warm_parent is not None:
        warm_parent.close()
    return None


def parse(argv: Sequence[str]) -> Any:
    """Read torchrun's arguments, with our defaults below what the user and PET_* say.

    Raises:
        SystemExit: they ask for help.
        ValueError: they cannot be read, or ask for what only torchrun can do.
    """
    parser = get_args_parser()
    parser.prog = "dlr run"
    parser.error = _unreadable(parser)  # type: ignore[method-assign, assignment]
    parser.description = "Runs the training processes of one worker of an ElasticJob."
    _add_our_flags(parser)
    for action in parser._actions:
        if "--standalone" in action.option_strings:
            action.help = "train on this machine alone, without a cluster"
    ours = {
        "max_restarts": UNLIMITED_RESTARTS,
        "rdzv_backend": BACKEND,
        "master_addr": None,
        "master_port": None,
    }
    parser.set_defaults(
        **{name: value for name, value in ours.items() if f"PET_{name.upper()}" not in os.environ}
    )
    args = parser.parse_args(list(argv))
    if args.standalone:
        standalone.check(args.nnodes, os.environ)
        if "PET_MAX_RESTARTS" not in os.environ and args.max_restarts == UNLIMITED_RESTARTS:
            args.max_restarts = standalone.MAX_RESTARTS
    elif args.hang_timeout is not None or args.memory_checkpoint is not None:
        raise ValueError("--hang-timeout and --memory-checkpoint are the ElasticJob's, but for --standalone")
    if args.rdzv_backend != BACKEND:
        logger.warning("--rdzv-backend=%s is ignored: the ElasticJob says who meets whom", args.rdzv_backend)
        args.rdzv_backend = BACKEND
    if args.master_addr not in (None, *LOOPBACK):
        logger.warning(
            "--master-addr=%s is ignored: scripts find each round's master in MASTER_ADDR and MASTER_PORT",
            args.master_addr,
        )
    args.shutdown_timeout = elastic.shutdown_timeout(args, os.environ)
    # These have no say either; torch would warn of what the controller set for stock torchrun.
    args.rdzv_endpoint, args.node_rank = args.rdzv_endpoint or "elasticjob", 0
    args.nnodes = os.path.expandvars(args.nnodes)  # as in `command: [dlr, run, "--nnodes=1:$NODE_NUM"]`
    if args.redirects == "0" and args.tee == "0":
        # Both the Pod's log and a file whose end can be told when it fails. stdout goes straight through.
        args.tee = str(int(Std.ERR))
    return args


def _unreadable(parser: ArgumentParser) -> Callable[[str], NoReturn]:
    """What a parser does with arguments that it cannot read: they are refused like any others."""

    def error(message: str) -> NoReturn:
        parser.print_usage(sys.stderr)
        raise ValueError(message)

    return error


def _add_our_flags(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--no-warm-start",
        action="store_true",
        help="start training processes as new interpreters, not as forks of one that has imported torch",
    )
    parser.add_argument(
        "--preload",
        action="append",
        default=[],
        metavar="MODULE",
        help="import this module too before training processes are forked; may be repeated",
    )
    parser.add_argument(
        "--failure-grace",
        type=float,
        default=FAILURE_GRACE_SECONDS,
        metavar="SECONDS",
        help="from SIGTERM to SIGKILL for processes whose peer has failed (default: %(default)g)",
    )
    parser.add_argument(
        "--hang-timeout",
        type=float,
        metavar="SECONDS",
        help="with --standalone: processes without a step for so long hang "
        f"(default: {HANG_TIMEOUT_SECONDS})",
    )
    parser.add_argument(
        "--memory-checkpoint",
        type=standalone.bytes_of,
        metavar="SIZE",
        help="with --standalone: memory for the checkpoints of dlr.checkpoint, such as 4Gi",
    )


def worker_spec(
    config: LaunchConfig, entrypoint: Any, entrypoint_args: Sequence[str], handler: DlrRendezvousHandler
) -> WorkerSpec:
    return WorkerSpec(
        role=config.role,
        local_world_size=config.nproc_per_node,
        entrypoint=entrypoint,
        args=tuple(entrypoint_args),
        rdzv_handler=handler,
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
        local_addr=config.local_addr,
        **elastic.worker_spec_options(config),
    )


def stop_grace_seconds(termination_grace_seconds: float, shutdown_timeout: int | None) -> float:
    """Return what training processes get: the Pod's grace less a margin, or what --shutdown-timeout says."""
    grace = grace_of_processes(termination_grace_seconds)
    return grace if shutdown_timeout is None else min(grace, float(shutdown_timeout))


def exit_code(process_exit_code: int | None) -> int:
    """Return the exit code as a shell says it: 128 + n for signal n; 1 for processes that we had to end."""
    if process_exit_code is None:
        return 1
    return 128 - process_exit_code if process_exit_code < 0 else process_exit_code


def _local_cluster(args: Any, me: Environment) -> LocalCluster | None:
    if not args.standalone:
        return None
    cluster = LocalCluster(me, args.hang_timeout or HANG_TIMEOUT_SECONDS)
    signal.signal(STACKS, lambda *_: cluster.ask_for_stacks())
    return cluster


def _rendezvous_parameters(config: LaunchConfig, args: Any, me: Environment) -> RendezvousParameters:
    return RendezvousParameters(
        BACKEND,
        "",
        me.owner_name,
        config.min_nodes,
        config.max_nodes,
        config.local_addr,
        **{
            **config.rdzv_configs,
            "local_world_size": config.nproc_per_node,
            "master_port": args.master_port or 0,
        },
    )


def _create_agent(
    config: LaunchConfig, spec: WorkerSpec, args: Any, me: Environment, warm_start: WarmStart | None
) -> DlrElasticAgent:
    assert config.logs_specs is not None
    return DlrElasticAgent(
        spec,
        config.logs_specs,
        stop_grace_seconds=stop_grace_seconds(me.termination_grace_seconds, args.shutdown_timeout),
        failure_grace_seconds=args.failure_grace,
        oom=OomWatch.of_pod(me.pod_uid),
        start_method=config.start_method,
        log_line_prefix_template=config.log_line_prefix_template or "[rank${rank}]: ",
        warm_start=warm_start,
        leases_shards=not args.standalone,
    )


def _run(agent: DlrElasticAgent, handler: DlrRendezvousHandler, config: LaunchConfig) -> int:
    is_good = False
    try:
        result = agent.run()
        is_good = True
    except JobEndedError as ended:
        is_good = ended.reason is ExitReason.JOB_SUCCEEDED
        logger.info("leaving: %s", ended)
        if ended.reason is ExitReason.JOB_SUCCEEDED:
            code = 0
        elif ended.reason is ExitReason.JOB_FAILED and agent.last_failure is not None:
            write_error_file(os.environ, agent.last_failure)
            code = exit_code(agent.last_failure.exit_code)
        else:
            code = EXIT_TERMINATED
        return _stopped(handler, code)
    finally:
        elastic.record_end(agent, config, is_good=is_good)
    if result.is_failed() and agent.last_failure is not None:
        allowed = agent.get_worker_group().spec.max_restarts
        logger.error("no restarts are left: --max-restarts allows %d", allowed)
        write_error_file(os.environ, agent.last_failure)
        return exit_code(agent.last_failure.exit_code)
    return 0


def _stopped(handler: DlrRendezvousHandler | None, code: int) -> int:
    """Report the end, and return the exit code. After a success it is 0: the work is done."""
    if handler is None:
        return code
    if handler.session.reporter.latest.state is AgentState.SUCCEEDED:
        return 0
    handler.session.reporter.report(AgentState.STOPPED)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
