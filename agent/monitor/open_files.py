"""The limit of open files (RLIMIT_NOFILE), which bounds how many processes rank 0's agent can serve.

Every training process and every agent keeps a connection to its stores for the whole round. Images and
container runtimes set a low soft limit (1,024, or less) for programs that call select(2). So the agent raises
it to the hard limit, and restores the image's limit for its training processes.
"""

from __future__ import annotations

import contextlib
import logging
import resource
from collections.abc import Iterable

logger = logging.getLogger(__name__)

OF_IMAGE = resource.getrlimit(resource.RLIMIT_NOFILE)
"""Soft and hard limit of the container at the start of this process."""

ENOUGH = 1 << 20
"""Highest soft limit to set; some container runtimes have no hard limit, or one of a billion."""

FILES_PER_RANK = 2
"""Connections of a training process: its own, and with NCCL also the heartbeat monitor's clone."""
FILES_PER_AGENT = 3
"""Connections of an agent: to the permanent store, to the round's store, and for its votes."""
OWN_FILES = 100
"""Other open files of an agent."""


def raise_limit() -> None:
    """Raise this process's soft limit as far as possible without privileges."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # a sandbox may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def give_back(pids: Iterable[int]) -> None:
    """Restore the image's limits for processes that were just started (prlimit(2))."""
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended, or has changed its user
            resource.prlimit(pid, resource.RLIMIT_NOFILE, OF_IMAGE)


def warn_if_too_few(ranks: int, agents: int) -> None:
    """Warn if the agent of rank 0 cannot serve a world of this size."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = FILES_PER_RANK * ranks + FILES_PER_AGENT * agents + OWN_FILES
    if limit != resource.RLIM_INFINITY and limit < needed:
        logger.warning(
            "this container may open %d files at a time, and rank 0 may need %d to serve a world of %d "
            "processes: raise the hard limit of open files (RLIMIT_NOFILE) in the nodes' container runtime",
            limit,
            needed,
            ranks,
        )
