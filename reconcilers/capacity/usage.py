"""What a job used, by role, and what each world size gave: `status.usage`. Pure.

Agents tell their peaks with what they report anyway. The job keeps the highest, since Pods come and go, and
what each size gave when its round is over. It is written with what is written anyway, and at the job's end:
then it is what is left for the next job of its name (`reconcilers/capacity/profile.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.job_status import ElasticJobStatus, JobUsage, RoleUsage
from crds.protocol import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.capacity.rates import with_round
from reconcilers.goodput.rounds import told_rounds
from reconcilers.observed.builder import GPU_RESOURCE
from reconcilers.observed.quantities import parse
from reconcilers.observed.resources import mapping, resources_of
from reconcilers.observed.slots import training_types
from reconcilers.observed.workers import Workers

_DIGITS = 3
MAX_INTEGER = 2.0**53


def with_rounds(
    status: ElasticJobStatus, workers: Workers, published: Rendezvous, *, ends: bool
) -> ElasticJobStatus:
    """Adds the round of the published world to the usage, if this look ends it.

    Args:
        status: that is to be written.
        ends: the job has ended or is held.
    """
    known, world = status.usage or JobUsage(), status.rendezvous or Rendezvous()
    is_over = ends or world.round > published.round
    if not is_over or not published.round or published.phase is RendezvousPhase.FORMING:
        return status
    told = told_rounds(workers.telling_steps, since=published.round)
    usage = with_round(known, published.round, len(published.members), told)
    return status if usage == known else status.model_copy(update={"usage": usage})


def with_roles(job: ElasticJob, status: ElasticJobStatus, workers: Workers) -> ElasticJobStatus:
    """Adds what the Pods have used until now."""
    known = status.usage or JobUsage()
    roles = {
        type_: _role(job, type_, known.roles.get(type_, RoleUsage()), workers.of_type.get(type_, ()))
        for type_ in training_types(job)
    }
    used = {type_: role for type_, role in roles.items() if role.memory_peak_bytes}
    if used == known.roles:
        return status
    return status.model_copy(update={"usage": known.model_copy(update={"roles": used})})


def _role(job: ElasticJob, type_: str, known: RoleUsage, workers: Iterable[ElasticWorker]) -> RoleUsage:
    pods, peak, cores, utilization = 0, known.memory_peak_bytes, known.cpu_mean_cores, known.gpu_utilization
    for worker in workers:
        used = worker.status.agent.usage if worker.status.agent is not None else None
        if used is None:
            continue
        pods += 1
        peak = max(peak, used.memory_peak_bytes or used.memory_bytes)
        cores = max(cores, used.cpu_mean_cores or 0.0)
        if used.gpu_mean_utilization is not None:
            utilization = max(utilization or 0.0, used.gpu_mean_utilization)
    resources = resources_of(job, type_, None)
    gpus = _asked(resources, GPU_RESOURCE)
    return RoleUsage(
        pods=max(known.pods, pods),
        memory_bytes=_whole(_asked(resources, "memory")),
        memory_peak_bytes=peak,
        cpu_cores=_asked(resources, "cpu"),
        cpu_mean_cores=round(cores, _DIGITS),
        gpus=_whole(gpus),
        gpu_utilization=None if utilization is None else round(utilization, _DIGITS),
    )


def _whole(amount: float | None) -> int | None:
    return None if amount is None else int(min(amount, MAX_INTEGER))


def _asked(resources: dict[str, Any], name: str) -> float | None:
    """The limit, or else the request; None where neither says anything that can be read."""
    for kind in ("limits", "requests"):
        amount = mapping(resources.get(kind)).get(name)
        try:
            if amount is not None:
                return float(parse(amount))
        except ValueError:
            continue
    return None
