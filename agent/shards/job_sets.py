"""What the ShardSets of a job say, as far as one worker is concerned. Plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crds.intervals import Intervals, count, from_text, union
from crds.leases import Lease, leases_from_text
from crds.names import LABEL_JOB_UID
from crds.shard_set import MAX_SHARD_SETS, SetDefinition


@dataclass(frozen=True)
class JobSet:
    """A ShardSet."""

    definition: SetDefinition
    is_over: bool
    """Every element is done, or failed for good."""
    not_done: int
    waiting: int
    """So many of them are leased to nobody."""
    failed: Intervals
    reason: str
    lease: Lease | None
    """This worker's."""
    restoration: int = 0
    """The number of the last one."""
    uid: str = ""
    """Uid of the ShardSet."""

    @property
    def has_failed(self) -> bool:
        return count(self.failed) > self.definition.max_failed


def shown_of(shard_set: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a worker follows of a ShardSet: its status, its uid and its job's."""
    metadata = shard_set["metadata"]
    job = (metadata.get("labels") or {}).get(LABEL_JOB_UID) or ""
    return {**(shard_set.get("status") or {}), "uid": metadata.get("uid") or "", "jobUid": job}


def sets_of(shards: Sequence[Mapping[str, Any]], worker: int, incarnation: int) -> dict[str, JobSet]:
    """The job's sets by name.

    Args:
        shards: as `shown_of` has them.

    Raises:
        KeyError, TypeError, ValueError: that makes no sense.
    """
    found = {}
    for said in shards:
        leases = leases_from_text(str(said.get("leases") or ""))
        mine = [lease for lease in leases if (lease.worker, lease.incarnation) == (worker, incarnation)]
        waiting = int(said.get("waiting") or 0)
        not_done = waiting + int(said.get("leased") or 0)
        failed = from_text(str(said.get("failedElements") or ""))
        definition = SetDefinition.parse(said)
        found[definition.name] = JobSet(
            definition,
            not not_done,
            not_done,
            waiting,
            failed,
            str(said.get("reason") or ""),
            mine[0] if mine else None,
            int(said.get("restoration") or 0),
            str(said.get("uid") or ""),
        )
    return found


def undone_of(said: Mapping[str, Any]) -> Intervals:
    """The elements of a ShardSet that are neither done nor failed for good.

    Raises:
        KeyError, TypeError, ValueError: that makes no sense.
    """
    leases = leases_from_text(str(said.get("leases") or ""))
    tried = [each.partition(":")[2] for each in str(said.get("tried") or "").split(";")]
    parts = [from_text(text) for text in (str(said.get("rest") or ""), *tried)]
    return union(*parts, *(lease.elements for lease in leases))


def refusal(wanted: SetDefinition, sets: Mapping[str, JobSet]) -> str:
    """Why a process cannot pull what it names, in one sentence; empty if it can."""
    known = sets.get(wanted.name)
    if known is None:
        if len(sets) < MAX_SHARD_SETS:
            return ""
        return (
            f"shard set {wanted.name!r} is one too many: a job has at most {MAX_SHARD_SETS}, so use epochs "
            "of one set instead of new names"
        )
    if wanted.epoch != known.definition.epoch:
        return ""
    if known.has_failed:
        return known.definition.failure(known.failed, known.reason)
    if wanted.content != known.definition.content:
        return _difference(wanted, known.definition)
    return ""


def skipped_epoch(wanted: SetDefinition, known: JobSet) -> str:
    """Why an epoch cannot begin before the one that is being pulled has ended."""
    epoch = known.definition.epoch
    return (
        f"epoch {wanted.epoch} of shard set {wanted.name!r} is asked for, but {known.not_done} elements of "
        f"epoch {epoch} are not done: pull one epoch after the other"
    )


def too_many_places(name: str) -> str:
    """Why a set cannot go back to a checkpoint, beside the others of its job."""
    return (
        f"shard set {name!r}: what is left of the job's sets is in more separate places than a worker can "
        "report, so it cannot go back to this checkpoint: pull fewer sets in one job"
    )


def _difference(wanted: SetDefinition, begun: SetDefinition) -> str:
    name = wanted.name
    if wanted.size != begun.size:
        return (
            f"shard set {name!r} was begun with {begun.size} elements, and this process names {wanted.size}: "
            "what changes between two starts or two workers needs another name"
        )
    if wanted.digest != begun.digest:
        return (
            f"shard set {name!r} was begun with other elements, or in another order, than this process "
            "names: sort the list, or give the set another name"
        )
    return (
        f"shard set {name!r} was begun with retries={begun.retries} and max_failed={begun.max_failed}, and "
        f"this process names {wanted.retries} and {wanted.max_failed}: all workers have to name the same"
    )
