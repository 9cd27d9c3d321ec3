"""One worker's part in a shard set: what it holds, what its processes have in hand, and what became of it.

Plain data and arithmetic; `agent/shards/dealing.py` brings processes and cluster to it.
"""

from __future__ import annotations

from crds.agent_report import ShardsReport
from crds.intervals import LIMIT, NONE, Intervals, common, count, first, minus, to_text, union
from crds.leases import Lease
from crds.shard_set import MAX_SHARD_RANGES, MAX_SHARD_REASON, SetDefinition

ASK_EARLY = 8
"""More is asked for when an eighth of a lease is untouched, or less: so it comes before it is needed."""


class Holding:
    """Not thread-safe."""

    def __init__(self, definition: SetDefinition) -> None:
        self.definition = definition
        self.leaving = False
        """Nobody here works on it any more."""
        self.uid = ""
        """Of the ShardSet; empty before there is one."""
        self._lease = 0
        self._elements: Intervals = NONE
        self._done: Intervals = NONE
        self._failed: Intervals = NONE
        self._in_hand: Intervals = NONE
        self._granted = 0
        self._reason = ""
        self._restoration, self._undone = 0, ""

    def follow(self, lease: Lease | None) -> None:
        """Take over what the job says this worker holds; None if nothing.

        What is done or has failed here stays so until the job has heard it, and so has taken it out of the
        lease.
        """
        elements = lease.elements if lease is not None else NONE
        number = lease.number if lease is not None else self._lease
        if (number, elements) == (self._lease, self._elements):
            return
        self._lease, self._elements, self._granted = number, elements, count(elements)
        self._done = common(self._done, elements)
        self._failed = common(self._failed, elements)
        if not self._failed:
            self._reason = ""

    def ask_for_restoration(self, number: int, undone: str) -> None:
        """A process has gone back to a checkpoint of the set. Until the job has, nothing is given to it."""
        if number > self._restoration:
            self._restoration, self._undone = number, undone

    def take(self, most: int) -> tuple[int, int] | None:
        """The next elements for a process, (start, end), at most so many; None if there are none to give."""
        part = first(self._untouched, most, 1)
        if self.leaving or not part:
            return None
        self._in_hand = union(self._in_hand, part)
        return part[0]

    def finish(self, part: tuple[int, int]) -> None:
        """A process has done its part."""
        self.put_back(part)
        self._done = union(self._done, common((part,), self._elements))

    def fail(self, part: tuple[int, int], reason: str) -> None:
        """A process could not do its part."""
        self.put_back(part)
        self._reason = self._reason or reason[:MAX_SHARD_REASON]
        self._failed = union(self._failed, common((part,), self._elements))

    def put_back(self, part: tuple[int, int]) -> None:
        """A process has let go of its part: another one here may take it."""
        self._in_hand = minus(self._in_hand, (part,))

    def without_done(self, elements: Intervals) -> Intervals:
        """What of these elements is not done here, as far as the job has not heard of it."""
        return minus(elements, self._done)

    @property
    def wants(self) -> bool:
        """Whether more should be on its way."""
        return not self.leaving and count(self._untouched) * ASK_EARLY <= self._granted

    @property
    def must_tell(self) -> tuple[object, ...]:
        """What the job is to hear at once; while that stays the same, a report can wait.

        What is done after it was told that more is wanted can wait too, or each part would cost a report for
        as long as the controller is away. Of the last one the job hears: the set may be over with it.
        """
        return self._lease, self.wants, self.leaving, not self._rest, self._restoration

    @property
    def failed(self) -> Intervals:
        """What has failed here, and the job has not heard of yet: it is to hear soon."""
        return self._failed

    @property
    def is_empty(self) -> bool:
        """The job leases nothing to this worker."""
        return not self._elements

    @property
    def is_to_be_restored(self) -> bool:
        """A restoration was asked for; with it comes another holding."""
        return self._restoration > 0

    @property
    def asked(self) -> tuple[int, str]:
        """The restoration that was asked for, and what is to be done after it."""
        return self._restoration, self._undone

    @property
    def undone(self) -> str:
        """What is to be done after the restoration that was asked for last."""
        return self._undone

    def to_status(self, room: int) -> ShardsReport:
        """Return the part of a report; what is done or failed beyond its room comes later.

        Args:
            room: characters of its elements: a third for failed ones, the rest for those between them.
        """
        failed = _beginning(self._failed, room // 3)
        return ShardsReport(
            **vars(self.definition),
            uid=self.uid,
            lease=self._lease,
            rest=to_text(self._shortened(failed, 2 * (room // 3))),
            failed=to_text(failed),
            reason=self._reason,
            wants=self.wants,
            leaves=self.leaving,
            restoration=self._restoration,
            undone=self._undone,
        )

    def _shortened(self, failed: Intervals, limit: int) -> Intervals:
        """Return as much of what is neither done nor `failed` as can be told, from the first element on.

        All that is left of the lease behind it counts as not done.
        """
        rest = minus(minus(self._elements, self._done), failed)
        kept = len(rest)
        while not _fits(rest, limit) and kept:
            kept //= 2
            behind = common(self._elements, ((rest[kept][0], LIMIT),))
            rest = (*rest[:kept], *minus(behind, failed))
        return rest

    @property
    def _rest(self) -> Intervals:
        return minus(minus(self._elements, self._done), self._failed)

    @property
    def _untouched(self) -> Intervals:
        return minus(self._rest, self._in_hand)


def _beginning(failed: Intervals, limit: int) -> Intervals:
    """Return the first of these intervals, as many as can be told."""
    while not _fits(failed, limit):
        failed = failed[: len(failed) // 2]
    return failed


def _fits(elements: Intervals, limit: int) -> bool:
    return len(elements) <= MAX_SHARD_RANGES and len(to_text(elements)) <= limit
