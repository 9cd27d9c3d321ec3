"""A parameter server that works far more than its siblings: condition `ParameterServerHot`. Pure.

The variables that everybody asks for are on it; the others wait for it. Nothing follows but the word.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from crds import names
from crds.elasticjob import ElasticJob
from crds.model import Condition, ConditionData, ConditionStatus
from reconcilers.conditions.facts import Facts
from reconcilers.observed.conditions import NextState, State, data_of
from reconcilers.observed.worker_state import current_report
from reconcilers.observed.workers import Workers
from reconcilers.roles.tasks import runs

PARAMETER_SERVER_HOT = "ParameterServerHot"
HOT, EVEN = "UsesMoreThanOthers", "Even"
RATIO = 2.0
"""Of its CPU to the median of the others'."""
RATIO_TO_STAY = 1.5
LEAST_CORES = 0.5
LOOK_SECONDS = 30.0
"""Agents tell what they use every 30 s, and that leads to no look at the job."""


def cores_by_server(job: ElasticJob, workers: Workers) -> dict[int, float]:
    """What each parameter server used lately, as far as it has told."""
    cluster = job.status.cluster
    tasks = cluster.tasks.get(names.PS, []) if cluster is not None else []
    found = {index: workers.by_slot.get((names.PS, index)) for index in tasks}
    reports = {i: current_report(w) for i, w in found.items() if w is not None and runs(w)}
    return {i: r.usage.cpu_cores for i, r in reports.items() if r is not None and r.usage is not None}


def hottest(cores: Mapping[int, float], ratio: float = RATIO) -> tuple[int, float, float] | None:
    """The slot, its cores, and the median of the others', if that is far less."""
    if len(cores) < 2:
        return None
    index = max(cores, key=lambda each: (cores[each], -each))
    others = median(used for other, used in cores.items() if other != index)
    return (index, cores[index], others) if cores[index] >= max(LEAST_CORES, ratio * others) else None


def judge(known: Condition | None, facts: Facts) -> NextState:
    """Judges what the parameter servers use. There is no condition before one was hot; its figures stay."""
    was_hot = known is not None and known.status is ConditionStatus.TRUE
    found = hottest(cores_by_server(facts.job, facts.workers), RATIO_TO_STAY if was_hot else RATIO)
    if found is None:
        return State(ConditionStatus.FALSE, EVEN) if was_hot else known
    index, own, others = found
    data = ConditionData(worker=facts.workers.by_slot[(names.PS, index)].metadata.name)
    if was_hot and data_of(known) == data:
        return known
    message = (
        f"ps {index} uses {own:.1f} cores, and the median of the others is {others:.1f}: spread the "
        "variables that everybody asks for over all (a variable_partitioner), or give type ps more CPU"
    )
    return State(ConditionStatus.TRUE, HOT, message, data)


def seconds_to_look(job: ElasticJob) -> float | None:
    return LOOK_SECONDS if job.spec.replica_specs[names.PS].replicas > 1 else None
