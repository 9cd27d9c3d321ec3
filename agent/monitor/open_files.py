"""The limit of open files (RLIMIT_NOFILE), which bounds how many processes rank 0's agent can serve.

Every training process and every agent keeps a connection to its stores for the whole round. Images and
container runtimes set the soft limit low (1,024, or less) for programs that call select(2). So the agent
takes what the hard limit allows, and its training processes get back what the image has.
"""

from __future__ import annotations

import contextlib
import logging
import resource
from collections.abc import Iterable

logger = logging.getLogger(__name__)

OF_IMAGE = resource.getrlimit(resource.RLIMIT_NOFILE)
"""Soft and hard limit as the container had them when this process was started."""

ENOUGH = 1 << 20
"""A soft limit that is high enough. Some container runtimes set no hard limit, or one of a billion."""

FILES_PER_RANK = 2
"""Connections of a training process: its own, and with NCCL that of the heartbeat monitor (a clone of it)."""
FILES_PER_AGENT = 3
"""Connections of an agent: to the store of the agent's life, to that of the round, and for its votes."""
OWN_FILES = 100
"""What an agent has open besides."""


def raise_limit() -> None:
    """Raise this process's soft limit as far as it goes without rights."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # a sandbox may forbid it; the old limit serves on
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def give_back(pids: Iterable[int]) -> None:
    """Give the image's limits to processes that were started just now (prlimit(2))."""
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended, or became another user
            resource.prlimit(pid, resource.RLIMIT_NOFILE, OF_IMAGE)


def warn_if_too_few(ranks: int, agents: int) -> None:
    """Say so if the agent of rank 0 cannot serve a world of this size."""
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
