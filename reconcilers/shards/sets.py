"""A shard set with the workers' reports on it: plain data, and its form in the status of its ShardSet.

Every element of a set is in exactly one of five states: waiting, leased to a worker, failed and to be
retried, failed for good, or done. An element is done if it is in none of the others, so none can be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial

from controller.resources import Object
from controller.slices import LARGE
from crds.agent_report import ShardsReport
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.intervals import NONE, Intervals, common, count, from_text, minus, to_text, union
from crds.leases import Lease, leases_from_text, leases_to_text
from crds.shard_set import MAX_SHARD_RANGES, MAX_SHARD_SETS, SetDefinition
from crds.shard_set_status import ShardSetStatus
from reconcilers.observed.worker_state import current_report

_PACKED_SIZE, _SIZE_CHARACTERS = 20, 200
"""Workers that take as long to process as a packed text, and characters that take as long as a worker."""
_TEXTS = ("rest", "leases", "tried", "again", "failedElements")
MAX_SCATTERED = 4_000
"""Limit of ranges of failed elements; a set with more fails."""
MAX_WAITING = 16_000
"""Limit of ranges of waiting elements; a set with more fails."""
MAX_REPORTED = 100 * MAX_SHARD_RANGES
"""Limit of ranges in the reports of all workers of a job, which take 45 MB; a look reads no more."""


@dataclass(frozen=True)
class PullReport:
    """A worker's report on a set from which its processes pull: one of `status.agent.shards`."""

    worker: int
    incarnation: int
    definition: SetDefinition
    """Definition of the set. If it differs from the set's in more than the epoch, the process cannot pull."""
    lease: int
    """Number of the lease that the report is about; 0 if the worker has seen none."""
    rest: Intervals
    """Elements of the lease that are neither done nor failed."""
    failed: Intervals
    """Elements of the lease that have failed on this worker."""
    reason: str = ""
    """Error of the first failed element."""
    wants: bool = False
    """Whether the worker wants more elements."""
    leaves: bool = False
    """Whether the worker has left the lease, so that the rest waits again."""
    restoration: int = 0
    """Number of the requested restoration; 0 for none."""
    undone: Intervals = NONE
    """Elements that are not done after the restoration."""
    uid: str = ""
    """Uid of the lease's ShardSet; empty if the worker has seen none."""


@dataclass(frozen=True)
class Puller:
    """A worker whose agent has reported a shard set."""

    number: int
    """Its number in leases."""
    worker: ElasticWorker
    goes: bool = False
    """Whether it gets no more leases, although its Pod may not have ended."""

    @property
    def is_alive(self) -> bool:
        return not (self.goes or _has_ended(self.worker))

    @property
    def named(self) -> frozenset[str]:
        """Names of the sets in its agent's report."""
        report = self.worker.status.agent
        if report is None or not _is_its_own(self.worker):
            return frozenset()
        return frozenset(each.name for each in report.shards or ())


@dataclass(frozen=True)
class ShardPullers:
    """The workers of a job that pull, with their reports."""

    alive: Mapping[int, int]
    """Incarnations of the workers whose Pods have not ended, by their numbers in leases."""
    reports: Sequence[PullReport]
    """Last reports of all workers, also of those whose Pods have ended."""
    members: int = 0
    """Number of running workers, some of which may not pull yet."""
    silent: frozenset[tuple[int, str]] = frozenset()
    """Live workers, each with a set that it has a lease of and that its agent does not report."""


@dataclass(frozen=True)
class Tried:
    """Elements that have failed, and wait for a retry."""

    workers: tuple[int, ...]
    """Workers on which they failed, one entry for each time."""
    elements: Intervals


@dataclass(frozen=True)
class SetState:
    """The state of a shard set."""

    definition: SetDefinition
    waiting: Intervals
    """Elements that have not been leased, or wait again."""
    leases: tuple[Lease, ...] = ()
    """Leases, at most one for a worker, in the order of the workers."""
    tried: tuple[Tried, ...] = ()
    """Disjoint histories of failed elements that wait for a retry."""
    again: tuple[Tried, ...] = ()
    """Histories of failed elements that are leased for a retry."""
    failed: Intervals = NONE
    """Elements that have failed for good."""
    last_lease: int = 0
    """Number of the newest lease; each number is used once."""
    restoration: int = 0
    """Number of the last restoration; they ascend."""
    reason: str = ""
    """Error of the first element that failed for good."""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    uid: str = ""
    """Uid of its ShardSet; empty before that is created."""

    @property
    def to_try_again(self) -> int:
        return sum(count(each.elements) for each in self.tried)

    @property
    def done(self) -> int:
        """Number of elements that are done."""
        leased = sum(count(lease.elements) for lease in self.leases)
        others = count(self.waiting) + leased + self.to_try_again + count(self.failed)
        return max(0, self.definition.size - others)  # see `to_status`

    @property
    def is_over(self) -> bool:
        """Whether every element is done or has failed for good."""
        return not (self.waiting or self.leases or self.tried)

    @property
    def has_failed(self) -> bool:
        """Whether more elements have failed for good than the script allows, or elements are too scattered
        for a status."""
        return count(self.failed) > self.definition.max_failed or bool(self.scattered)

    @property
    def scattered(self) -> str:
        """Why the status cannot name all elements; empty if it can."""
        tried = (*self.tried, *self.again)
        if len(self.failed) + sum(len(each.elements) for each in tried) > MAX_SCATTERED:
            return f"elements failed in more than {MAX_SCATTERED} separate places"
        if len(self.waiting) > MAX_WAITING:
            return f"elements wait in more than {MAX_WAITING} separate places"
        return ""

    def to_status(self) -> ShardSetStatus:
        """Return its form in the status; for a set that is too scattered, as much as shows that it is.

        Elements that do not fit wait, together with those between them, so that some may be done twice, and
        none is missed.
        """
        tried, failed, waiting = _first(self.tried), self.failed[: MAX_SCATTERED + 1], self.waiting
        if self.scattered:
            named = union(*(each.elements for each in tried))
            unnamed = minus(union(*(each.elements for each in self.tried)), named)
            waiting = union(waiting, self.failed[MAX_SCATTERED + 1 :], unnamed)
        if len(waiting) > MAX_WAITING:
            waiting = (*waiting[:MAX_WAITING], (waiting[MAX_WAITING][0], waiting[-1][1]))
        return ShardSetStatus(
            **vars(self.definition),
            done=self.done,
            leased=sum(count(lease.elements) for lease in self.leases),
            waiting=count(self.waiting) + self.to_try_again,
            failed=count(self.failed),
            rest=to_text(waiting),
            leases=leases_to_text(self.leases),
            tried=_histories_to_text(tried),
            again=_histories_to_text(_first(self.again)),
            failed_elements=to_text(failed),
            last_lease=self.last_lease,
            restoration=self.restoration,
            reason=self.reason,
            started_at=self.started_at,
            finished_at=self.finished_at,
        )


_leases_from_text = lru_cache(maxsize=MAX_SHARD_SETS)(leases_from_text)
_elements_from_text = lru_cache(maxsize=MAX_SHARD_SETS)(from_text)
"""Cached, since one look reads the same leases several times, and most looks those of the one before."""


def definition_of(of: ShardSetStatus | ShardsReport) -> SetDefinition:
    return SetDefinition(of.name, of.epoch, of.size, of.digest, of.retries, of.max_failed)


def of_status(status: ShardSetStatus, uid: str = "") -> SetState:
    """Read a set from its status.

    Raises:
        ValueError: elements are malformed, or have more ranges than `to_status` writes.
    """
    try:
        return SetState(
            definition=definition_of(status),
            waiting=_elements_from_text(status.rest, MAX_WAITING + 1),
            leases=_leases_from_text(status.leases),
            tried=_histories_from_text(status.tried),
            again=_histories_from_text(status.again),
            failed=_elements_from_text(status.failed_elements, MAX_SCATTERED + 1),
            last_lease=status.last_lease,
            restoration=status.restoration,
            reason=status.reason,
            started_at=status.started_at,
            finished_at=status.finished_at,
            uid=uid,
        )
    except ValueError as error:
        raise ValueError(f"the status of the shard set {status.name!r} cannot be read: {error}") from error


def merged(histories: Iterable[Tried]) -> tuple[Tried, ...]:
    """Merge histories of the same workers, and drop empty ones."""
    found: dict[tuple[int, ...], list[Intervals]] = {}
    for each in histories:
        if each.elements:
            found.setdefault(each.workers, []).append(each.elements)
    return tuple(
        Tried(workers, union(*parts) if len(parts) > 1 else parts[0])
        for workers, parts in sorted(found.items())
    )


ANY_WORKER = -1
"""Stands in a history for a worker that is not kept."""


def nameless(histories: Iterable[Tried]) -> tuple[Tried, ...]:
    """The histories with only the number of failures of each element."""
    return merged(Tried((ANY_WORKER,) * len(each.workers), each.elements) for each in histories)


def part_of(histories: Sequence[Tried], elements: Intervals) -> tuple[Tried, ...]:
    """The histories of these elements."""
    return merged(Tried(each.workers, common(each.elements, elements)) for each in histories)


def _first(histories: Sequence[Tried]) -> tuple[Tried, ...]:
    """The histories of as many ranges as fit into the status."""
    found, left = [], MAX_SCATTERED + 1
    for each in histories:
        if part := each.elements[:left]:
            found.append(Tried(each.workers, part))
        left -= len(part)
    return tuple(found)


def _histories_to_text(histories: Sequence[Tried]) -> str:
    """Write histories, such as `3:17;3+0:40-41`: 17 failed on worker 3, 40 and 41 on workers 3 and 0."""
    return ";".join(f"{'+'.join(map(str, each.workers))}:{to_text(each.elements)}" for each in histories)


def _histories_from_text(text: str) -> tuple[Tried, ...]:
    found = []
    for each in text.split(";") if text else ():
        workers, _, elements = each.partition(":")
        found.append(
            Tried(tuple(int(worker) for worker in workers.split("+")), from_text(elements, MAX_SCATTERED + 1))
        )
    return tuple(found)


def crew_of(pullers: Iterable[Puller], sets: Iterable[SetState], members: int) -> ShardPullers:
    """The workers that pull, with their reports, and the number of all running workers."""
    reader, reports = ReportReader(), list[PullReport]()
    alive: dict[int, int] = {}
    named: dict[int, frozenset[str]] = {}
    for each in pullers:
        if each.is_alive:
            alive[each.number] = each.worker.spec.incarnation
            named[each.number] = each.named
        reports += reader.reports_of(each)
    holders = ((lease.worker, each.definition.name) for each in sets for lease in each.leases)
    silent = (each for each in holders if each[0] in alive and each[1] not in named[each[0]])
    return ShardPullers(alive, reports, members, frozenset(silent))


def report_of(
    number: int, incarnation: int, wire: ShardsReport, read: Callable[[str], Intervals] = from_text
) -> PullReport:
    """Parse a worker's report.

    Args:
        read: parser of elements.

    Raises:
        ValueError: its elements are malformed, or have too many ranges.
    """
    return PullReport(
        worker=number,
        incarnation=incarnation,
        definition=definition_of(wire),
        lease=wire.lease,
        rest=read(wire.rest),
        failed=read(wire.failed),
        reason=wire.reason,
        wants=wire.wants,
        leaves=wire.leaves,
        restoration=wire.restoration,
        undone=read(wire.undone),
        uid=wire.uid,
    )


class ReportReader:
    """Reads the workers' reports in one look, with a limit on ranges: a short text may hold many."""

    def __init__(self) -> None:
        self._left = MAX_REPORTED
        self._known: dict[str, Intervals] = {}
        """Ranges by their text: all workers that load a checkpoint report the same."""

    def reports_of(self, puller: Puller) -> Iterator[PullReport]:
        """Yield a worker's reports; the last report of an ended incarnation counts too."""
        report = puller.worker.status.agent
        if report is None or not _is_its_own(puller.worker):
            return
        left = MAX_SHARD_RANGES
        for wire in report.shards or ():
            try:
                parsed = report_of(puller.number, report.incarnation, wire, partial(self._read, left))
            except ValueError:
                continue  # a malformed report does not count, and the worker's lease stays
            left = max(0, left - len(parsed.rest) - len(parsed.failed) - len(parsed.undone))
            yield parsed

    def _read(self, most: int, text: str) -> Intervals:
        known = self._known.get(text)
        if known is None:
            most = min(most, self._left)
            try:
                known = self._known[text] = from_text(text, most)
            except ValueError:
                self._left -= most if text.startswith("z") else 0  # it may have cost as much
                raise
            self._left -= len(known)
        elif len(known) > most:
            raise ValueError(f"a report has {len(known)} more ranges, and {most} are the most")
        return known


def look_size(workers: Sequence[Object], sets: Iterable[Object]) -> int:
    """Return the time to process these raw ElasticWorkers and ShardSets, in workers with one short report."""
    if len(workers) >= LARGE:
        return len(workers)
    stored = [(each.get("status") or {}).get(field) or "" for each in sets for field in _TEXTS]
    if any(text.startswith("z") for text in stored):  # packed, and of any size
        return LARGE
    reports = ((worker.get("status") or {}).get("agent") or {} for worker in workers)
    shards = (each for report in reports for each in report.get("shards") or ())
    texts = (str(each.get(field) or "") for each in shards for field in ("rest", "failed", "undone"))
    return len(workers) + sum(
        _PACKED_SIZE if text[:1] == "z" else len(text) // _SIZE_CHARACTERS for text in (*stored, *texts)
    )


def _is_its_own(worker: ElasticWorker) -> bool:
    """Whether the report is this worker's, in this incarnation or an earlier one.

    A report of this incarnation by a Pod that is not the worker's is not: it may be from an earlier job of
    this name, whose Pod is leaving.
    """
    report = worker.status.agent
    is_of_this_life = report is not None and report.incarnation == worker.spec.incarnation
    return not is_of_this_life or current_report(worker) is not None or _has_ended(worker)


def _has_ended(worker: ElasticWorker) -> bool:
    """Whether the incarnation, or its Pod before a suspension, has ended. The next Pod of the same
    incarnation does not know the lease, so the report of the one before has to count now."""
    status, incarnation = worker.status, worker.spec.incarnation
    if status.observed_incarnation != incarnation:
        return False
    last = status.history[-1] if status.history else None
    is_gone = last is not None and last.incarnation == incarnation and last.ended_at is not None
    return is_gone or status.phase in (WorkerPhase.FAILED, WorkerPhase.SUCCEEDED)
