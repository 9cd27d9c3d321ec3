"""How the processes of a round are started: forked by the warm parent where that works, else spawned."""

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
    """Another world is wanted than the one whose processes were to be started."""


class Starting:
    """The way in which torch starts the processes of an agent.

    Args:
        warm_start: None if they are to be spawned.
        orphans: learns of each process at once.
        kept: may have one that lives on.
        names_ranks: each line that is copied from a log begins with the rank, as torchrun's flags ask for.
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
        """Wait until there is something to fork from, while the world is as it was.

        Raises:
            WorldMovedOnError: it is not: the round is over before it began here.
        """
        membership = self._membership
        if self._warm_start is None:
            return
        self._warm_start.await_warm(membership.fileno(), membership.is_settled, READY_SECONDS)
        if not membership.is_settled():
            raise WorldMovedOnError

    @contextlib.contextmanager
    def by_us(self) -> Iterator[None]:
        """Have torch fork processes, and copy their logs, by what is ours meanwhile."""
        with contextlib.ExitStack() as ours:
            if self._warm_start is not None:
                ours.enter_context(processes_started_by(self._fork))
            ours.enter_context(logs_copied_by(self._copy))
            yield

    def _fork(
        self, local_rank: int, argv: Sequence[str], env: dict[str, str], redirects: Mapping[int, int]
    ) -> ProcessHandle | None:
        """Have a process go on with the round, or fork one.

        Its start may still be abandoned before its session and environment show it.
        """
        assert self._warm_start is not None
        process = self._kept.hand_over(local_rank, env, redirects)
        if process is None:
            process = self._warm_start.start(argv, env, redirects)
            if process is not None:
                self._orphans.started([process.pid])
        self._kept.note_launch(local_rank, argv, env)
        return process
