"""Starts the processes of a round: forked by the warm parent if possible, else spawned."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from agent.membership import WorldMembership
from agent.monitor.log_tail import copy_as_it_is, copy_log
from agent.processes.orphans import Orphans
from agent.survival.handles import ProcessHandle
from agent.survival.kept import KeptProcesses
from agent.torch_compat.elastic import logs_copied_by, processes_started_by
from agent.warm.warm_parent import READY_SECONDS, WarmStart


class WorldMovedOnError(Exception):
    """Another world is wanted by now than the one of the processes to start."""


class Starting:
    """Replaces torch's start of the processes by that of dlr.

    Args:
        warm_start: starts the warm parent; None to spawn the processes.
        orphans: gets the id of each process at once.
        kept: may have a process that lives on.
        names_ranks: each line copied from a log begins with the rank, as torchrun's flags ask for.
    """

    def __init__(
        self,
        membership: WorldMembership,
        warm_start: WarmStart | None,
        orphans: Orphans,
        kept: KeptProcesses,
        *,
        names_ranks: bool,
    ) -> None:
        self._membership = membership
        self._warm_start = warm_start
        self._orphans = orphans
        self._kept = kept
        self._copy = copy_log if names_ranks else copy_as_it_is

    def await_warm_parent(self) -> None:
        """Wait until the warm parent is ready.

        Raises:
            WorldMovedOnError: the world has changed: the round is over before it began here.
        """
        membership = self._membership
        if self._warm_start is None:
            return
        self._warm_start.await_warm(membership.fileno(), membership.is_settled, READY_SECONDS)
        if not membership.is_settled():
            raise WorldMovedOnError

    @contextlib.contextmanager
    def by_us(self) -> Iterator[None]:
        """Make torch start processes and copy their logs by dlr's functions while the context is open."""
        with contextlib.ExitStack() as ours:
            if self._warm_start is not None:
                ours.enter_context(processes_started_by(self._fork))
            ours.enter_context(logs_copied_by(self._copy))
            yield

    def _fork(
        self, local_rank: int, argv: Sequence[str], env: dict[str, str], redirects: Mapping[int, int]
    ) -> ProcessHandle | None:
        """Take a process that lives on into the round, or fork one.

        `orphans` learns of it at once: a start may be abandoned before the process's session and environment
        show that it is ours.
        """
        assert self._warm_start is not None
        process = self._kept.hand_over(local_rank, env, redirects)
        if process is None:
            process = self._warm_start.start(argv, env, redirects)
            if process is not None:
                self._orphans.started([process.pid])
        self._kept.note_launch(local_rank, argv, env)
        return process
