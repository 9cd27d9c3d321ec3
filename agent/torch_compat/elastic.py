"""Parts of torch.distributed.elastic that the agent needs.

They are checked when this module is imported: a torch that lacks one is refused with one sentence, before
anything is started.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from agent.torch_compat import UnsupportedTorchError
from agent.torch_compat.versions import minor_version

MINIMUM = (2, 6)
"""Oldest torch that dlr supports. 2.5 has neither `server_port` nor DataLoader's `in_order`."""
NEWEST_SEEN = (2, 15)
"""Newest torch whose sources SEAMS was checked against."""


def require_supported(version: str) -> None:
    """Check the version of an installed torch.

    Args:
        version: `torch.__version__`, such as `2.6.0+cu124`.

    Raises:
        UnsupportedTorchError: it is older than MINIMUM.
    """
    if minor_version(version) < MINIMUM:
        raise UnsupportedTorchError(
            f"{sys.executable} has torch {version}, and dlr needs torch {_text(MINIMUM)} or newer: "
            f"install that in this image"
        )


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


require_supported(torch.__version__)

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]  # noqa: E402
from torch.distributed.elastic import events  # noqa: E402
from torch.distributed.elastic.agent.server.local_elastic_agent import (  # noqa: E402
    LocalElasticAgent as LocalElasticAgent,
)
from torch.distributed.elastic.multiprocessing import (  # noqa: E402
    LogsDest,
    LogsSpecs,
    PContext,
    SubprocessContext,
)
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler  # noqa: E402
from torch.distributed.elastic.multiprocessing.tail_log import TailLog  # noqa: E402
from torch.distributed.elastic.rendezvous import RendezvousStoreInfo  # noqa: E402
from torch.distributed.launcher.api import LaunchConfig  # noqa: E402

EXCEPTHOOK_PREFIX = "[rank"
"""Prefix of each line of a traceback by torch.distributed's excepthook, in 2.6 to 2.15."""

SHUTDOWN_TIMEOUT = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"
MAX_RESTARTS = "TORCHELASTIC_MAX_RESTARTS"
UNLIMITED_RESTARTS = 2**31 - 1
"""Restarts of an agent without --max-restarts: the job's `restartCount` counts for all workers together."""
LOG_FOLDER_PREFIX = "attempt_"
"""Prefix of DefaultLogsSpecs' folder for the logs of a start, which it clears first. A number follows, the
RESTART_COUNT in the environment of local rank 0. In 2.6 to 2.15."""

_subprocess_module: Any = importlib.import_module(SubprocessContext.__module__)
_tail_module: Any = importlib.import_module(TailLog.__module__)

SEAMS: tuple[tuple[Any, str, tuple[str, ...]], ...] = (
    # Overridden or called by `agent.supervision.elastic_agent`, which also uses the attributes `_pcontext`,
    # `_worker_group` and `_remaining_restarts`, in 2.6 to 2.15.
    (LocalElasticAgent, "_invoke_run", ("role",)),
    (LocalElasticAgent, "_initialize_workers", ("worker_group",)),
    (LocalElasticAgent, "_start_workers", ("worker_group",)),
    (LocalElasticAgent, "_monitor_workers", ("worker_group",)),
    (LocalElasticAgent, "_stop_workers", ("worker_group",)),  # 2.6 and 2.7 have `is_restart` too
    (LocalElasticAgent, "_shutdown", ("death_sig",)),  # 2.6 and 2.7: `is_restart`; from 2.12 on: `timeout`
    # Replaced by `processes_started_by`. From 2.9 on, both take `numa_options` too.
    (SubprocessHandler, "_popen", ("args", "env")),
    (_subprocess_module, "get_subprocess_handler", ("args", "env", "stdout", "stderr", "local_rank_id")),
    # Replaced by `logs_copied_by`. Newer versions take `log_line_filter` too.
    (_tail_module, "tail_logfile", ("header", "file", "dst", "finished", "interval_sec")),
    # Used by `agent.rendezvous` to announce a round's store. Before 2.6 there is no `server_port`.
    (RendezvousStoreInfo, "build", ("rank", "store", "local_addr", "server_port")),
    # Used by `healthcheck.probes.tcp_store` to bind torch's store to one address.
    (TCPStore, "__init__", ("master_listen_fd",)),
    # Overridden by `agent.connection.store`, so that torch's agents meet through it: C++ calls these.
    (Store, "set", ()),
    (Store, "get", ()),
    (Store, "add", ()),
    (Store, "check", ()),
    (Store, "wait", ()),
    (Store, "multi_get", ()),
    (Store, "multi_set", ()),
)
"""Owner and name of functions, and parameters that they must have."""


def missing_seams() -> list[str]:
    """Return the functions that this torch does not have, or not with the parameters that dlr passes."""
    return [
        f"{owner.__name__}.{name}"
        for owner, name, parameters in SEAMS
        if (function := getattr(owner, name, None)) is None or not set(parameters) <= _parameters(function)
    ]


def _parameters(function: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except ValueError:  # it is C++: pybind11 writes the signature into the docstring
        return set(re.findall(r"(\w+):", function.__doc__ or ""))


if _missing := missing_seams():
    raise UnsupportedTorchError(
        f"torch {torch.__version__} has changed {', '.join(_missing)}, which this version of dlr builds on: "
        f"use torch {_text(MINIMUM)} to {_text(NEWEST_SEEN)}, or a newer dlr"
    )


# How torch starts processes.

StartProcess = Callable[[int, tuple[str, ...], dict[str, str], Mapping[int, int]], Any]
"""Starts the process of a local rank (LOCAL_RANK is 0 for all with `--virtual-local-rank`): a command, with
its whole environment, and the descriptors for its stdout (1) and stderr (2). It returns an object like
`subprocess.Popen`; None has torch start the process."""


@contextlib.contextmanager
def processes_started_by(start: StartProcess) -> Iterator[None]:
    """Make torch's SubprocessContext start processes by `start`, while the context is open."""
    original = _subprocess_module.get_subprocess_handler

    def get_handler(*args: Any, **kwargs: Any) -> SubprocessHandler:
        return _Handler(start, *args, **kwargs)

    _subprocess_module.get_subprocess_handler = get_handler
    try:
        yield
    finally:
        _subprocess_module.get_subprocess_handler = original


@contextlib.contextmanager
def logs_copied_by(copy: Callable[..., None]) -> Iterator[None]:
    """Make torch copy the logs by `copy`, in its own threads, for processes started while the context is
    open.

    Args:
        copy: called as torch's `tail_logfile`.
    """
    original = _tail_module.tail_logfile
    _tail_module.tail_logfile = copy
    try:
        yield
    finally:
        _tail_module.tail_logfile = original


class LogsAndEnvironment(LogsSpecs):
    """A layout of logs that also completes the environment of the processes; torch has no other hook for it.

    Args:
        complete: called at each start, with the environments by local rank, and the files of the logs.
    """

    def __init__(
        self, logs: LogsSpecs, complete: Callable[[dict[int, dict[str, str]], LogsDest], None]
    ) -> None:
        super().__init__()
        self._logs = logs
        self._complete = complete

    @property
    def root_log_dir(self) -> str:
        return self._logs.root_log_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        files = self._logs.reify(envs)
        self._complete(envs, files)
        return files


class _Handler(SubprocessHandler):
    """torch's handler of one process, which opens its logs and makes its environment.

    `local_rank_id` is set before `_popen` is called, in 2.6 to 2.15.
    """

    def __init__(self, start: StartProcess, *args: Any, **kwargs: Any) -> None:
        self._start = start
        super().__init__(*args, **kwargs)

    def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Any:
        outputs = {1: self._stdout, 2: self._stderr}
        redirects = {number: file.fileno() for number, file in outputs.items() if file is not None}
        return self._start(self.local_rank_id, args, env, redirects) or super()._popen(args, env)


def end_watchdog(agent: LocalElasticAgent) -> None:
    """End the watchdog thread of an agent's last round: torch starts another for each round.

    `_worker_watchdog` is in 2.6 to 2.15, and is set if TORCHELASTIC_ENABLE_FILE_TIMER is 1.
    """
    if (watchdog := getattr(agent, "_worker_watchdog", None)) is not None:
        watchdog.stop()
        agent._worker_watchdog = None


def started_process(pcontext: PContext | None, local_rank: int) -> Any:
    """Return the object that `StartProcess`, or torch itself, has returned; None for a function's process.

    `SubprocessContext.subprocess_handlers` is in 2.6 to 2.15.
    """
    handlers = getattr(pcontext, "subprocess_handlers", {})
    return handlers[local_rank].proc if local_rank in handlers else None


def detach_process(pcontext: PContext, local_rank: int) -> Any:
    """Remove a process that lives on from torch's context, and return it as `started_process` does.

    `_running_local_ranks`, `_stdout` and `_stderr` are in 2.6 to 2.15.
    """
    context: Any = pcontext
    handler = context.subprocess_handlers.pop(local_rank)
    context._running_local_ranks.discard(local_rank)
    for log in (handler._stdout, handler._stderr):
        if log is not None:
            log.close()
    return handler.proc


def return_value_fds(pcontext: PContext | None) -> list[int]:
    """Return the descriptors that become readable when a function's process sends its return value.

    The process ends only after the value is read. `MultiprocessContext._ret_vals` is in 2.6 to 2.15, and the
    queues of `multiprocessing` have `_reader` in Python 3.10 to 3.14.
    """
    queues = getattr(pcontext, "_ret_vals", {})
    return [queue._reader.fileno() for queue in queues.values()]


# torchrun's command line.


def worker_spec_options(config: LaunchConfig) -> dict[str, Any]:
    """Return those arguments of WorkerSpec that not every torch has, from the launcher's configuration.

    `event_log_handler` is there from 2.8 on, `numa_options` from 2.9 on, the others from 2.10 on.
    """
    names = (
        "event_log_handler",
        "numa_options",
        "duplicate_stdout_filters",
        "duplicate_stderr_filters",
        "virtual_local_rank",
    )
    return {name: getattr(config, name) for name in names if hasattr(config, name)}


def signals_to_handle(args: Namespace) -> str:
    """Return the names of the signals that the agent handles by ending its processes, separated by commas.

    `--signals-to-handle` is there from 2.10 on.
    """
    return getattr(args, "signals_to_handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT")


def shutdown_timeout(args: Namespace, environ: Mapping[str, str]) -> int | None:
    """Return the user's seconds from SIGTERM to SIGKILL; None if not set.

    `--shutdown-timeout` and its variable are there from 2.12 on.

    Raises:
        ValueError: the variable is not a number of seconds.
    """
    asked: int | None = getattr(args, "shutdown_timeout", None)
    if asked is None and (text := environ.get(SHUTDOWN_TIMEOUT)):
        if not text.isdigit():
            raise ValueError(f"{SHUTDOWN_TIMEOUT}={text} is not a number of seconds: set it to one like 30")
        asked = int(text)
    return asked


def launched_processes() -> int:
    """Return the number of processes that `torchrun` or `elastic_launch` is about to start here.

    torch does not pass it to the rendezvous handler, so it is read from the launcher's frame, which is
    `launch_agent(config, …)` in 2.6 to 2.15. Without that frame it is 1.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) == (
            LaunchConfig.__module__,
            "launch_agent",
        ):
            return int(frame.f_locals["config"].nproc_per_node)
        frame = frame.f_back
    return 1


def record_end(agent: LocalElasticAgent, config: LaunchConfig, *, is_good: bool) -> None:
    """Record the agent's last event, as torch's launcher does; `--event-log-handler` is there from 2.8 on.

    Args:
        is_good: the agent has run to its end, whether or not its processes failed.
    """
    event = agent.get_event_succeeded() if is_good else agent.get_event_failed()
    events.record(event, getattr(config, "event_log_handler", None) or "null")
