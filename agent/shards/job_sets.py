"""The ShardSets of a job as one worker sees them. Plain data."""

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
    """Number of undone elements that are not leased."""
    failed: Intervals
    reason: str
    lease: Lease | None
    """Lease of this worker."""
    restoration: int = 0
    """Number of the last restoration."""
    uid: str = ""
    """Uid of the ShardSet."""

    @property
    def has_failed(self) -> bool:
        return count(self.failed) > self.definition.max_failed


def shown_of(shard_set: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parts of a ShardSet that a worker follows: its status, its uid and its job's uid."""
    metadata = shard_set["metadata"]
    job = (metadata.get("labels") or {}).get(LABEL_JOB_UID) or ""
    return {**(shard_set.get("status") or {}), "uid": metadata.get("uid") or "", "jobUid": job}


def sets_of(shards: Sequence[Mapping[str, Any]], worker: int, incarnation: int) -> dict[str, JobSet]:
    """Return the job's sets by name.

    Args:
        shards: ShardSets from `shown_of`.

    Raises:
        KeyError, TypeError, ValueError: a ShardSet is malformed.
    """
    found = {}
    for shown in shards:
        leases = leases_from_text(str(shown.get("leases") or ""))
        mine = [lease for lease in leases if (lease.worker, lease.incarnation) == (worker, incarnation)]
        waiting = int(shown.get("waiting") or 0)
        not_done = waiting + int(shown.get("leased") or 0)
        failed = from_text(str(shown.get("failedElements") or ""))
        definition = SetDefinition.parse(shown)
        found[definition.name] = JobSet(
            definition,
            not not_done,
            not_done,
            waiting,
            failed,
            str(shown.get("reason") or ""),
            mine[0] if mine else None,
            int(shown.get("restoration") or 0),
            str(shown.get("uid") or ""),
        )
    return found


def undone_of(shown: Mapping[str, Any]) -> Intervals:
    """Return the elements of a ShardSet that are neither done nor failed for good.

    Raises:
        KeyError, TypeError, ValueError: the ShardSet is malformed.
    """
    leases = leases_from_text(str(shown.get("leases") or ""))
    tried = [each.partition(":")[2] for each in str(shown.get("tried") or "").split(";")]
    parts = [from_text(text) for text in (str(shown.get("rest") or ""), *tried)]
    return union(*parts, *(lease.elements for lease in leases))


def refusal(wanted: SetDefinition, sets: Mapping[str, JobSet]) -> str:
    """Return why a process cannot pull from a set, in one sentence; empty if it can."""
    begun = sets.get(wanted.name)
    if begun is None:
        if len(sets) < MAX_SHARD_SETS:
            return ""
        return (
            f"shard set {wanted.name!r} is one too many: a job has at most {MAX_SHARD_SETS}, so use epochs "
            "of one set instead of new names"
        )
    if wanted.epoch != begun.definition.epoch:
        return ""
    if begun.has_failed:
        return begun.definition.failure(begun.failed, begun.reason)
    if wanted.content != begun.definition.content:
        return _difference(wanted, begun.definition)
    return ""


def skipped_epoch(wanted: SetDefinition, begun: JobSet) -> str:
    """Return a sentence for an epoch that is requested before the current one has ended."""
    epoch = begun.definition.epoch
    return (
        f"epoch {wanted.epoch} of shard set {wanted.name!r} is asked for, but {begun.not_done} elements of "
        f"epoch {epoch} are not done: pull one epoch after the other"
    )


def too_many_places(name: str) -> str:
    """Return a sentence for a set whose restoration would make the report of the job's sets too long."""
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
