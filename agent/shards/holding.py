"""One worker's part of a shard set: its lease, the parts that its processes work on, and their results.

Plain data and arithmetic, used by `agent/shards/dealing.py`.
"""

from __future__ import annotations

from crds.agent_report import ShardsReport
from crds.intervals import LIMIT, NONE, Intervals, common, count, first, minus, to_text, union
from crds.leases import Lease
from crds.shard_set import MAX_SHARD_RANGES, MAX_SHARD_REASON, SetDefinition

ASK_EARLY = 8
"""More is requested when at most an eighth of a lease is untouched, so that it comes before it is needed."""


class Holding:
    """A worker's part of one epoch of a set. Not thread-safe."""

    def __init__(self, definition: SetDefinition) -> None:
        self.definition = definition
        self.leaving = False
        """No process here works on it any more."""
        self.uid = ""
        """Uid of the ShardSet; empty before there is one."""
        self._lease = 0
        self._elements: Intervals = NONE
        self._done: Intervals = NONE
        self._failed: Intervals = NONE
        self._in_hand: Intervals = NONE
        self._granted = 0
        self._reason = ""
        self._restoration, self._undone = 0, ""

    def follow(self, lease: Lease | None) -> None:
        """Apply this worker's lease; None if it has none.

        Done and failed elements remain until the job has processed the report, and removed them from the
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
        """Request that the set be restored to a checkpoint, before which the process gets no part."""
        if number > self._restoration:
            self._restoration, self._undone = number, undone

    def take(self, most: int) -> tuple[int, int] | None:
        """Return the next elements for a process, (start, end), at most `most`; None if there are none."""
        part = first(self._untouched, most, 1)
        if self.leaving or not part:
            return None
        self._in_hand = union(self._in_hand, part)
        return part[0]

    def finish(self, part: tuple[int, int]) -> None:
        """Note that a process has done its part."""
        self.put_back(part)
        self._done = union(self._done, common((part,), self._elements))

    def fail(self, part: tuple[int, int], reason: str) -> None:
        """Note that a process could not do its part."""
        self.put_back(part)
        self._reason = self._reason or reason[:MAX_SHARD_REASON]
        self._failed = union(self._failed, common((part,), self._elements))

    def put_back(self, part: tuple[int, int]) -> None:
        """Take back a part, so that another process here may get it."""
        self._in_hand = minus(self._in_hand, (part,))

    def without_done(self, elements: Intervals) -> Intervals:
        """Return these elements without those that are done here and still in the lease."""
        return minus(elements, self._done)

    @property
    def wants(self) -> bool:
        """Whether it needs more elements."""
        return not self.leaving and count(self._untouched) * ASK_EARLY <= self._granted

    @property
    def urgent(self) -> tuple[object, ...]:
        """State whose changes are reported at once; others can wait for the next report.

        Once more elements are requested, done parts can wait too: else each would cost a report for as long
        as the controller is away. The last part is reported at once, since it may end the set.
        """
        return self._lease, self.wants, self.leaving, not self._rest, self._restoration

    @property
    def failed(self) -> Intervals:
        """Failed elements that are still in the lease; reported soon."""
        return self._failed

    @property
    def is_empty(self) -> bool:
        """The job leases nothing to this worker."""
        return not self._elements

    @property
    def is_to_be_restored(self) -> bool:
        """A restoration is requested, after which another holding begins."""
        return self._restoration > 0

    @property
    def requested_restoration(self) -> tuple[int, str]:
        """Number of the requested restoration, and the undone elements after it."""
        return self._restoration, self._undone

    @property
    def undone(self) -> str:
        """Undone elements after the requested restoration."""
        return self._undone

    def to_status(self, room: int) -> ShardsReport:
        """Return its section of a report; results that do not fit are reported later.

        Args:
            room: number of characters for elements: a third for failed ones, the rest for undone ones.
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
        """Return the elements that are neither done nor `failed`, as many intervals as fit into the limit.

        The rest of the lease behind these counts as undone.
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
    """Return the first of these intervals, as many as fit into the limit."""
    while not _fits(failed, limit):
        failed = failed[: len(failed) // 2]
    return failed


def _fits(elements: Intervals, limit: int) -> bool:
    return len(elements) <= MAX_SHARD_RANGES and len(to_text(elements)) <= limit
