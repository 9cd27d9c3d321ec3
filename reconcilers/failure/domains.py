"""Failures of a whole NVLink domain: its switch is to blame, not each of its nodes. Pure.

A broken switch ends the processes of its domain within a second, and soon those of all others, which lose
their peers. So only the domain of the first failure is considered: its switch is to blame if most of its
members failed in the same way. In a hang, also no member outside may be at the same place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, ExitClass
from crds.job_status import JobFailure
from crds.rendezvous import Rendezvous
from reconcilers.failure.incidents import Incident, place_of, suspects_of
from reconcilers.observed.workers import Workers

LEAST_FAILED = 2
"""One node is not a domain."""
OF_A_SWITCH = (ExitClass.HARDWARE_ERROR, ExitClass.HANG)


def in_its_domain(failure: JobFailure, job: ElasticJob, workers: Workers) -> JobFailure:
    """Return the failure, with its domain if the switch of that is to blame."""
    world = job.status.world
    if failure.domain or job.spec.elastic_policy.domain is None:
        return failure
    if failure.round != world.round or failure.exit_class not in OF_A_SWITCH:
        return failure
    domains = {w.metadata.name: w.status.domain for w in members_of(world, workers) if w.status.domain}
    domain = domains.get(failure.worker)
    if domain is None:
        return failure
    failed = _alike(failure, suspects_of(workers, world.round, world.members))
    inside = {name for name in failed if domains.get(name) == domain}
    is_shared = failure.exit_class == ExitClass.HANG and inside != failed
    size = sum(each == domain for each in domains.values())
    if is_shared or len(inside) < LEAST_FAILED or 2 * len(inside) <= size:
        return failure
    return failure.model_copy(update={"domain": domain})


def members_of(world: Rendezvous, workers: Workers) -> list[ElasticWorker]:
    """Return the members whose `status.domain` is still the world's: no later Pod of theirs has a node."""
    incarnations: Mapping[int, int] = world.incarnation_by_index()
    return [
        worker
        for worker in workers.training
        if incarnations.get(worker.spec.index) == worker.status.observed_incarnation
        or (worker.spec.index in incarnations and worker.status.node_name is None)
    ]


def workers_behind_switch(failure: JobFailure, job: ElasticJob, workers: Workers) -> list[ElasticWorker]:
    """Return the members that have to leave the domain whose switch failed, and have no new Pod yet."""
    world = job.status.world
    is_of_this_round = failure.domain and failure.round == world.round
    if not is_of_this_round or failure.exit_class != ExitClass.HARDWARE_ERROR:
        return []
    members = frozenset(world.members)
    return [
        worker
        for worker in workers.training
        if worker.spec.index in members
        and worker.status.domain == failure.domain != worker.spec.excluded_domain
    ]


def _alike(failure: JobFailure, suspects: Sequence[Incident]) -> set[str]:
    """Return the names of the workers that failed as the first did, including the first."""
    first = next((each for each in suspects if each.failure.worker == failure.worker), None)
    if failure.exit_class == ExitClass.HANG:
        if first is None:
            return {failure.worker}
        where = first.guilt, place_of(first.report)
        return {s.failure.worker for s in suspects if (s.guilt, place_of(s.report)) == where}
    return {failure.worker, *(s.failure.worker for s in suspects if s.exit_class == failure.exit_class)}
