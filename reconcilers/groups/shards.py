"""The shard sets that the workers of all replica groups pull from, in the status of their job. Pure.

The job deals to the workers of all groups, by the decision that deals in a job without groups
(`reconcilers/shards`), under numbers of their own. A set knows workers, not groups: where a group is lost,
deleted or over, so are its workers, and what they held goes back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import inf

from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.grouping import group_of_worker, worker_number
from crds.phases import RendezvousPhase
from reconcilers.shards.job_shards import seconds_to_lease
from reconcilers.shards.lease import lease
from reconcilers.shards.sets import Crew, Hearing, ShardSet, crew_of, of_status


@dataclass(frozen=True)
class Pullers:
    """The workers of a job's groups, as far as shard sets go."""

    workers: Mapping[int, list[ElasticWorker]] = field(default_factory=dict)
    """Workers of all groups that are there, by the group's index; empty where none pulls or has pulled."""
    age_seconds: float = inf
    """Time since leases were last written."""

    def seconds_to_lease(self, job: ElasticJob) -> float | None:
        """Return the time until leases may be written again; None if it may be now."""
        return seconds_to_lease(job, sum(map(len, self.workers.values())), self.age_seconds)


def holders_of(job: ElasticJob) -> set[int]:
    """Return the indices of the groups whose workers hold leases."""
    sets = map(of_status, job.status.shards)
    return {group_of_worker(lease.worker) for each in sets for lease in each.leases}


def next_sets(
    job: ElasticJob,
    groups: Mapping[int, ElasticJob],
    surplus: Collection[int],
    pullers: Pullers,
    now: datetime,
) -> tuple[ShardSet, ...] | None:
    """Return the shard sets after the workers' reports; None if nothing changes.

    Args:
        groups: all of the job that are there, by index.
        surplus: indices of those that are deleted after this: their workers' reports are the last ones.
    """
    known = tuple(map(of_status, job.status.shards))
    sets = lease(known, crew_of_groups(groups, surplus, pullers), now)
    return None if sets == known else sets


def crew_of_groups(groups: Mapping[int, ElasticJob], surplus: Collection[int], pullers: Pullers) -> Crew:
    """Return the workers of all groups, under the numbers that leases name them by.

    Nothing more is leased to those of groups that are deleted or have ended. The Pods of such a group may run
    on for a while, and what they do of a lease then is done by others too.
    """
    hearing = Hearing()
    crews = {
        index: crew_of(workers, _uids(workers) if _goes(groups[index], index in surplus) else (), 0, hearing)
        for index, workers in pullers.workers.items()
        if index in groups
    }
    return Crew(
        alive={
            worker_number(index, worker): incarnation
            for index, crew in crews.items()
            for worker, incarnation in crew.alive.items()
        },
        voices=[
            replace(voice, worker=worker_number(index, voice.worker))
            for index, crew in crews.items()
            for voice in crew.voices
        ],
        members=sum(map(_members, groups.values())),
    )


def _uids(workers: Sequence[ElasticWorker]) -> set[str]:
    return {worker.metadata.uid for worker in workers}


def _goes(group: ElasticJob, is_surplus: bool) -> bool:
    return is_surplus or group.status.finished


def _members(group: ElasticJob) -> int:
    world = group.status.rendezvous
    return len(world.members) if world is not None and world.phase is RendezvousPhase.FORMED else 0
