"""A shard set, and what workers say of it: plain data, and its form in the status of its ShardSet.

Every element of a set is in exactly one of five places: waiting, leased to a worker, failed but to be tried
again, failed for good, or done. Done is what is in none of the others, so nothing can be in no place at all.
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
"""Workers that take as long to look at as a packed text, and characters of another one that a worker does."""
_TEXTS = ("rest", "leases", "tried", "again", "failedElements")
MAX_SCATTERED = 4_000
"""Ranges of elements that failed; a set with more of them fails."""
MAX_WAITING = 16_000
"""Ranges of elements that wait; a set with more of them fails."""
MAX_HEARD = 100 * MAX_SHARD_RANGES
"""Ranges in the reports of all workers of a job, which take 45 MB. What is in more is not heard in a look."""


@dataclass(frozen=True)
class Voice:
    """What one worker's agent says of a set that its processes pull from: one of `status.agent.shards`."""

    worker: int
    incarnation: int
    definition: SetDefinition
    """It has to be the set's, but for the epoch; else its agent tells the process that it cannot pull."""
    lease: int
    """The number of the lease that the rest speaks of; 0 if it knows of none."""
    rest: Intervals
    """What of the lease is neither done nor failed."""
    failed: Intervals
    """What of the lease has failed here."""
    reason: str = ""
    """Why the first of these failed."""
    wants: bool = False
    """It could do with more."""
    leaves: bool = False
    """Nobody works there on this lease any more: the rest goes back."""
    restoration: int = 0
    """The number of the restoration that it asks for; 0 if for none."""
    undone: Intervals = NONE
    """What is to be done after that."""
    uid: str = ""
    """Uid of the ShardSet that the lease is in; empty if it knows of none."""


@dataclass(frozen=True)
class Puller:
    """A worker whose agent has reported a shard set."""

    number: int
    """The number that leases name it by."""
    worker: ElasticWorker
    goes: bool = False
    """Nothing more is leased to it, though its Pod may not have ended."""

    @property
    def is_alive(self) -> bool:
        return not (self.goes or _has_ended(self.worker))

    @property
    def named(self) -> frozenset[str]:
        """The sets that its agent's report names, whatever it says of them."""
        report = self.worker.status.agent
        if report is None or not _is_its_own(self.worker):
            return frozenset()
        return frozenset(said.name for said in report.shards or ())


@dataclass(frozen=True)
class ShardPullers:
    """The workers of a job."""

    alive: Mapping[int, int]
    """The incarnation of each worker whose Pod has not ended, by the number that leases name it by."""
    voices: Sequence[Voice]
    """What their agents said last, of Pods that have ended too."""
    members: int = 0
    """How many run, though some of them may not pull yet."""
    silent: frozenset[tuple[int, str]] = frozenset()
    """Workers that are alive, with a set that they have a lease of and that their agent does not name."""


@dataclass(frozen=True)
class Tried:
    """Elements that failed on these workers, one entry for each time, and are to be tried again."""

    workers: tuple[int, ...]
    elements: Intervals


@dataclass(frozen=True)
class SetState:
    """A shard set as its job deals from it."""

    definition: SetDefinition
    waiting: Intervals
    """Untouched, or given back."""
    leases: tuple[Lease, ...] = ()
    """One a worker at most, in the order of the workers."""
    tried: tuple[Tried, ...] = ()
    """Beside each other: each element has its own history. What of them is leased again is not here, but in
    `again`."""
    again: tuple[Tried, ...] = ()
    """The histories of elements that are leased for another try."""
    failed: Intervals = NONE
    """Tried as often as may be."""
    last_lease: int = 0
    """The number of the newest lease. Numbers are given once."""
    restoration: int = 0
    """The number of the last restoration. They rise."""
    reason: str = ""
    """Why the first element failed for good."""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    uid: str = ""
    """Uid of its ShardSet; empty before that is made."""

    @property
    def to_try_again(self) -> int:
        return sum(count(each.elements) for each in self.tried)

    @property
    def done(self) -> int:
        """How many elements are."""
        leased = sum(count(lease.elements) for lease in self.leases)
        others = count(self.waiting) + leased + self.to_try_again + count(self.failed)
        return max(0, self.definition.size - others)  # see `to_status`

    @property
    def is_over(self) -> bool:
        """Every element is done, or failed for good."""
        return not (self.waiting or self.leases or self.tried)

    @property
    def has_failed(self) -> bool:
        """More has failed for good than the script allows, or elements are so scattered that the status could
        not name them any more."""
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
        """Return its form in the status; of a set that is too scattered, as much as shows that it is.

        What that does not name waits in it, if need be with what is in between: who goes by the status does
        some elements twice, and misses none.
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
"""One look at a job asks for the same leases several times, and most looks find those of the one before."""


def definition_of(said: ShardSetStatus | ShardsReport) -> SetDefinition:
    return SetDefinition(said.name, said.epoch, said.size, said.digest, said.retries, said.max_failed)


def of_status(status: ShardSetStatus, uid: str = "") -> SetState:
    """Read a set back.

    Raises:
        ValueError: its elements are no sets, or of more ranges than `to_status` writes.
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
    """Merges the histories of the same workers, and drops empty ones."""
    found: dict[tuple[int, ...], list[Intervals]] = {}
    for each in histories:
        if each.elements:
            found.setdefault(each.workers, []).append(each.elements)
    return tuple(
        Tried(workers, union(*parts) if len(parts) > 1 else parts[0])
        for workers, parts in sorted(found.items())
    )


SOMEBODY = -1
"""In a history: a worker of which it is not kept who it was."""


def nameless(histories: Iterable[Tried]) -> tuple[Tried, ...]:
    """The histories with no more than how often each element has failed."""
    return merged(Tried((SOMEBODY,) * len(each.workers), each.elements) for each in histories)


def part_of(histories: Sequence[Tried], elements: Intervals) -> tuple[Tried, ...]:
    """The histories of these elements."""
    return merged(Tried(each.workers, common(each.elements, elements)) for each in histories)


def _first(histories: Sequence[Tried]) -> tuple[Tried, ...]:
    """The histories of as many ranges as the status names."""
    found, left = [], MAX_SCATTERED + 1
    for each in histories:
        if part := each.elements[:left]:
            found.append(Tried(each.workers, part))
        left -= len(part)
    return tuple(found)


def _histories_to_text(histories: Sequence[Tried]) -> str:
    """Such as `3:17;3+0:40-41`: 17 failed on worker 3, 40 and 41 on workers 3 and 0."""
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
    """The workers as far as shard sets go, under the numbers that leases name them by.

    Args:
        members: how many run.
    """
    hearing, voices = Hearing(), list[Voice]()
    alive: dict[int, int] = {}
    named: dict[int, frozenset[str]] = {}
    for each in pullers:
        if each.is_alive:
            alive[each.number] = each.worker.spec.incarnation
            named[each.number] = each.named
        voices += hearing.voices_of(each)
    holders = ((lease.worker, known.definition.name) for known in sets for lease in known.leases)
    silent = (each for each in holders if each[0] in alive and each[1] not in named[each[0]])
    return ShardPullers(alive, voices, members, frozenset(silent))


def voice_of(
    number: int, incarnation: int, said: ShardsReport, read: Callable[[str], Intervals] = from_text
) -> Voice:
    """
    Args:
        read: reads a text of elements.

    Raises:
        ValueError: what it says of its elements is no set, or of too many ranges.
    """
    return Voice(
        worker=number,
        incarnation=incarnation,
        definition=definition_of(said),
        lease=said.lease,
        rest=read(said.rest),
        failed=read(said.failed),
        reason=said.reason,
        wants=said.wants,
        leaves=said.leaves,
        restoration=said.restoration,
        undone=read(said.undone),
        uid=said.uid,
    )


class Hearing:
    """Reads what the workers report in one look, as far as it can be held: some bytes may be many ranges."""

    def __init__(self) -> None:
        self._left = MAX_HEARD
        self._known: dict[str, Intervals] = {}
        """Ranges by their text: all that go back to a checkpoint report the same."""

    def voices_of(self, puller: Puller) -> Iterator[Voice]:
        """Yields what the worker reports; the last report of an ended incarnation counts too."""
        report = puller.worker.status.agent
        if report is None or not _is_its_own(puller.worker):
            return
        left = MAX_SHARD_RANGES
        for said in report.shards or ():
            try:
                voice = voice_of(puller.number, report.incarnation, said, partial(self._read, left))
            except ValueError:
                continue  # nothing is taken from a worker that says what makes no sense: its lease stays
            left = max(0, left - len(voice.rest) - len(voice.failed) - len(voice.undone))
            yield voice

    def _read(self, most: int, text: str) -> Intervals:
        known = self._known.get(text)
        if known is None:
            most = min(most, self._left)
            try:
                known = self._known[text] = from_text(text, most)
            except ValueError:
                self._left -= most if text.startswith("z") else 0  # it may have taken as long
                raise
            self._left -= len(known)
        elif len(known) > most:
            raise ValueError(f"a report has {len(known)} more ranges, and {most} are the most")
        return known


def look_size(workers: Sequence[Object], sets: Iterable[Object]) -> int:
    """Return the number of workers of one short report each that take as long to look at.

    Args:
        workers: ElasticWorkers, as the cache has them.
        sets: ShardSets, likewise.
    """
    if len(workers) >= LARGE:
        return len(workers)
    stored = [(each.get("status") or {}).get(field) or "" for each in sets for field in _TEXTS]
    if any(text.startswith("z") for text in stored):  # packed, and of any size
        return LARGE
    reports = ((worker.get("status") or {}).get("agent") or {} for worker in workers)
    said = (each for report in reports for each in report.get("shards") or ())
    texts = (str(each.get(field) or "") for each in said for field in ("rest", "failed", "undone"))
    return len(workers) + sum(
        _PACKED_SIZE if text[:1] == "z" else len(text) // _SIZE_CHARACTERS for text in (*stored, *texts)
    )


def _is_its_own(worker: ElasticWorker) -> bool:
    """Whether the report is of this worker, in this life or an earlier one.

    Not so a report of this incarnation by a Pod that is not its own: one of an earlier job of this name, say,
    which is on its way out.
    """
    report = worker.status.agent
    is_of_this_life = report is not None and report.incarnation == worker.spec.incarnation
    return not is_of_this_life or current_report(worker) is not None or _has_ended(worker)


def _has_ended(worker: ElasticWorker) -> bool:
    """A worker of a suspended job awaits its next Pod in the same incarnation, and that Pod knows nothing of
    the lease: what the Pod before has said must have been counted by then."""
    status, incarnation = worker.status, worker.spec.incarnation
    if status.observed_incarnation != incarnation:
        return False
    last = status.history[-1] if status.history else None
    is_gone = last is not None and last.incarnation == incarnation and last.ended_at is not None
    return is_gone or status.phase in (WorkerPhase.FAILED, WorkerPhase.SUCCEEDED)
