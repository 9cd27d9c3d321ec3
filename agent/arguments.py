"""The command line of `dlr run`: torchrun's flags, by torchrun's own parser, and ours."""

from __future__ import annotations

import logging
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import Std
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import config_from_args, get_args_parser

from agent import standalone
from agent.environment import Environment, grace_of_processes
from agent.rendezvous.handler import JOIN_TIMEOUT_SECONDS
from agent.torch_compat import elastic
from agent.torch_compat.elastic import UNLIMITED_RESTARTS
from crds.dlrover import OUR_BACKEND, options
from crds.phases import HANG_TIMEOUT_SECONDS

logger = logging.getLogger(__name__)

LOOPBACK = ("localhost", "127.0.0.1", "::1")

FAILURE_GRACE_SECONDS = 1.0
"""Default of `--failure-grace`, the grace of processes whose peer is dead. Their collectives never end, and a
process in a collective cannot run its Python signal handler, so most would wait in vain; a process that is
computing gets time to close its files."""


@dataclass(frozen=True)
class LaunchArguments:
    """The parsed command line, with the worker's identity."""

    args: Any
    """torchrun's flags and ours."""
    config: LaunchConfig
    entrypoint: Any
    entrypoint_args: Sequence[str]
    join_timeout_seconds: float
    me: Environment

    @classmethod
    def read(cls, argv: Sequence[str]) -> LaunchArguments:
        """Read the command line and the environment.

        Raises:
            SystemExit: the command line asks for help.
            InvalidEnvironmentError: this is no worker's Pod.
            ValueError, AssertionError, RuntimeError: the arguments are invalid.
        """
        args = parse(argv)
        me = Environment.take(os.environ)
        config, entrypoint, entrypoint_args = config_from_args(args)
        for flag, value in (
            ("--nproc-per-node", config.nproc_per_node),
            ("--monitor-interval", config.monitor_interval),
        ):
            if not value > 0:  # torch's WorkerSpec would assert it, without a word
                raise ValueError(f"{flag} is {value}, and must be above 0")
        if args.standalone and not args.module:
            standalone.check_script(args.training_script, is_program=args.no_python)
        settings = RendezvousParameters(
            OUR_BACKEND, "", me.owner_name, config.min_nodes, config.max_nodes, **config.rdzv_configs
        )
        join_timeout_seconds = settings.get_as_int("join_timeout") or JOIN_TIMEOUT_SECONDS
        return cls(args, config, entrypoint, entrypoint_args, join_timeout_seconds, me)

    @property
    def stop_grace_seconds(self) -> float:
        """Time of training processes between SIGTERM and SIGKILL."""
        return stop_grace_seconds(self.me.termination_grace_seconds, self.args.shutdown_timeout)

    @property
    def failure_grace_seconds(self) -> float:
        """The same for processes whose peer has failed."""
        return min(float(self.args.failure_grace), self.stop_grace_seconds)

    def worker_spec(self, handler: RendezvousHandler) -> WorkerSpec:
        """Return the specification of the processes for torch's agent."""
        config = self.config
        return WorkerSpec(
            role=config.role,
            local_world_size=config.nproc_per_node,
            entrypoint=self.entrypoint,
            args=tuple(self.entrypoint_args),
            rdzv_handler=handler,
            max_restarts=config.max_restarts,
            monitor_interval=config.monitor_interval,
            local_addr=config.local_addr,
            **elastic.worker_spec_options(config),
        )


def parse(argv: Sequence[str]) -> Any:
    """Parse torchrun's arguments, with our defaults below those of the user and of PET_* variables.

    Raises:
        SystemExit: they ask for help.
        ValueError: they cannot be parsed, or need a feature of torchrun alone.
    """
    parser = launch_parser()
    defaults = {
        "max_restarts": UNLIMITED_RESTARTS,
        "rdzv_backend": OUR_BACKEND,
        "master_addr": None,
        "master_port": None,
    }
    parser.set_defaults(
        **{name: value for name, value in defaults.items() if f"PET_{name.upper()}" not in os.environ}
    )
    # Arguments after the script are the script's; torch's parser would take them for its own flags.
    found = options(argv)
    front = sum(len(option.words) for option in found)
    end = front + (2 if argv[front : front + 1] == ["--"] else 1)
    args = parser.parse_args([*(word for option in found for word in option.in_full), *argv[front:end]])
    args.training_script_args = list(argv[end:])
    if args.standalone:
        standalone.check(args.nnodes, os.environ)
        if "PET_MAX_RESTARTS" not in os.environ and args.max_restarts == UNLIMITED_RESTARTS:
            args.max_restarts = standalone.MAX_RESTARTS
    elif args.hang_timeout is not None or args.memory_checkpoint is not None:
        raise ValueError("--hang-timeout and --memory-checkpoint are the ElasticJob's, but for --standalone")
    if args.rdzv_backend != OUR_BACKEND:
        logger.warning("--rdzv-backend=%s is ignored: the ElasticJob says who meets whom", args.rdzv_backend)
        args.rdzv_backend = OUR_BACKEND
    if args.master_port is not None or args.master_addr not in (None, *LOOPBACK):
        logger.warning(
            "--master-addr and --master-port are ignored: scripts find each round's in MASTER_ADDR and "
            "MASTER_PORT, which init_method='env://' reads"
        )
    args.shutdown_timeout = elastic.shutdown_timeout(args, os.environ)
    # These are ignored too; torch would warn of the values that the controller sets for stock torchrun.
    args.rdzv_endpoint, args.node_rank = args.rdzv_endpoint or "elasticjob", 0
    args.nnodes = os.path.expandvars(args.nnodes)  # as in `command: [dlr, run, "--nnodes=1:$NODE_NUM"]`
    args.names_ranks = (args.redirects, args.tee) != ("0", "0")
    if not args.names_ranks:
        # stderr to the Pod's log and to a file, whose end is reported with a failure; stdout directly.
        args.tee = str(int(Std.ERR))
    return args


def launch_parser() -> ArgumentParser:
    """Return torchrun's parser with our flags; its errors are raised as ValueError."""

    def refuse(message: str) -> NoReturn:
        parser.print_usage(sys.stderr)
        raise ValueError(message)

    parser = get_args_parser()
    parser.prog, parser.allow_abbrev = "dlr run", False  # `options` has expanded the flags
    parser.error = refuse  # type: ignore[method-assign]
    parser.description = "Runs the training processes of one worker of an ElasticJob."
    for action in parser._actions:
        if "--standalone" in action.option_strings:
            action.help = "train on this machine alone, without a cluster"
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
        type=_seconds,
        default=FAILURE_GRACE_SECONDS,
        metavar="SECONDS",
        help="time from SIGTERM to SIGKILL for processes whose peer has failed, at most the Pod's "
        "(default: %(default)g)",
    )
    parser.add_argument(
        "--hang-timeout",
        type=_seconds_above_0,
        metavar="SECONDS",
        help="with --standalone: time without a step after which processes count as hanging "
        f"(default: {HANG_TIMEOUT_SECONDS})",
    )
    parser.add_argument(
        "--memory-checkpoint",
        type=standalone.bytes_of,
        metavar="SIZE",
        help="with --standalone: memory for the checkpoints of dlr.checkpoint, such as 4Gi",
    )
    return parser


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if (seconds := float(text)) >= 0:
            return seconds
    raise ArgumentTypeError(f"{text!r} is no number of seconds")


def _seconds_above_0(text: str) -> float:
    if seconds := _seconds(text):
        return seconds
    raise ArgumentTypeError(f"{text!r} is not above 0")


def stop_grace_seconds(termination_grace_seconds: float, shutdown_timeout: int | None) -> float:
    """Return the grace of training processes: the Pod's less a margin, or --shutdown-timeout if shorter."""
    grace = grace_of_processes(termination_grace_seconds)
    return grace if shutdown_timeout is None else min(grace, float(shutdown_timeout))
