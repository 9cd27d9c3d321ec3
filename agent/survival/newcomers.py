"""Decides, without I/O, whether new processes may join those of the same script that live on."""

from __future__ import annotations

MOST_FAILED_NEWCOMERS = 2
"""Newcomers of one local rank in a row that end before their loop, after which all processes start again."""
MOST_RETRIED = 2 * MOST_FAILED_NEWCOMERS
"""The same, after which newcomers are tried no more: each one that fails costs a round."""
MOST_FAILED_ROUNDS = 3
"""Joined rounds in a row without a step, after which newcomers are tried no more."""
FROM_NOW_ON, THIS_ONE = "each failure from now on", "this failure"


class Newcomers:
    """The record of an agent's newcomers, which join processes that live on."""

    def __init__(self) -> None:
        self.are_refused = False
        """Whether all processes start again after a failure, so that none joins others."""
        self._failed: dict[int, int] = {}
        """Number of newcomers in a row that have not reached their loop, by local rank."""
        self.failed_rounds = 0
        """Number of joined rounds in a row that ended by themselves without a step."""

    def reached_loop(self, local_rank: int) -> None:
        """Note a newcomer that has reached its loop."""
        self._failed.pop(local_rank, None)

    def failed(self, local_rank: int, *, hangs: bool) -> str | None:
        """Count a newcomer that failed before its loop; one that hangs has cost enough.

        Returns:
            a warning, where newcomers are refused from now on.
        """
        failed = self._failed.get(local_rank, 0) + 1
        self._failed[local_rank] = failed = max(failed, MOST_FAILED_NEWCOMERS) if hangs else failed
        if failed < MOST_FAILED_NEWCOMERS or self.are_refused:
            return None
        self.are_refused = True
        after = FROM_NOW_ON if failed >= MOST_RETRIED else THIS_ONE
        return (
            f"no new process can join this script while others live on: that of local rank {local_rank} has "
            f"not come to its loop. All processes are started again after {after}. See its log, and make no "
            "collective before the loop over `steps`"
        )

    def round_failed(self, round_: int, *, by_a_peer: bool) -> str | None:
        """Count a joined round that failed before any process made a step.

        Args:
            by_a_peer: a peer's death may be the cause, so that the first in a row has no consequence.

        Returns:
            a warning, where newcomers are refused from now on.
        """
        if self.are_refused:
            return None
        self.failed_rounds += 1
        if by_a_peer and self.failed_rounds == 1:
            return None
        self.are_refused = True
        after = FROM_NOW_ON if self.failed_rounds >= MOST_FAILED_ROUNDS else THIS_ONE
        return (
            f"no step of round {round_} has succeeded, into which processes have lived on. All processes are "
            f"started again after {after}. Make the same collectives in a process's first step as in all "
            "others"
        )

    def round_trained(self) -> None:
        """Note a joined round in which a process made a step."""
        self.failed_rounds = 0

    def allow(self) -> None:
        """Allow newcomers again, after all processes have started again and train."""
        failed = max(self._failed.values(), default=0)
        self.are_refused = failed >= MOST_RETRIED or self.failed_rounds >= MOST_FAILED_ROUNDS
