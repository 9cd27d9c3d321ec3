"""What is stated otherwise of a job with parameter servers than of one with a world. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from controller.wording import some_of
from crds import names
from crds.elasticjob import ElasticJob
from crds.job_status import JobWarning
from crds.model import Condition, ConditionData, ConditionStatus
from reconcilers.conditions import life, reported, scaled
from reconcilers.conditions.table import CONDITIONS, WARNINGS
from reconcilers.look import ConditionKind, ConditionTable, DesiredJob, WarningKind, WarningState
from reconcilers.observed.conditions import ConditionState, NextState
from reconcilers.observed.slots import training_types
from reconcilers.observed.worker_state import current_report, runs
from reconcilers.observed.workers import Workers
from reconcilers.roles.pods import own_tf_config
from reconcilers.roles.progress import missing

PARAMETER_SERVER_HOT, TF_CONFIG_KEPT = "ParameterServerHot", "TFConfigKept"
NAMED = 3
"""The others are counted."""
HOT_RATIO = 2.0
"""CPU of a hot parameter server, in units of the others' median."""
HOT_RATIO_TO_STAY = 1.5
HOT_CORES = 0.5
HOT_LOOK_SECONDS = 30.0
"""Agents report their use every 30 s, and that leads to no look at the job."""


def cluster_formed(_: Condition | None, look: DesiredJob) -> ConditionState:
    """Judges whether all that training needs runs."""
    lacking = missing(look.job, look.workers)
    if not lacking:
        return ConditionState(ConditionStatus.TRUE, "Complete")
    return ConditionState(ConditionStatus.FALSE, "Incomplete", f"not running: {some_of(lacking, NAMED)}")


def cluster_at_end(before: Condition | None, look: DesiredJob) -> NextState:
    """What was missing may be why the job has ended, so it stays."""
    is_incomplete = before is not None and before.status is ConditionStatus.FALSE
    return before if is_incomplete else life.world_at_end(before, look)


def is_scaled(before: Condition | None, look: DesiredJob) -> NextState:
    """Judges the job's size and resources by the Pods of all types."""
    return scaled.judge_by(lambda look: scaled.too_few_pods(look, training_types(look.job)), before, look)


def parameter_server_hot(before: JobWarning | None, look: DesiredJob) -> WarningState | JobWarning | None:
    """Judges whether one parameter server works far more than its siblings; its first figures stay.

    The variables that all workers read are on it, and the others wait for it.
    """
    found = hottest(
        cores_by_server(look.job, look.workers), HOT_RATIO if before is None else HOT_RATIO_TO_STAY
    )
    if found is None:
        return None
    index, own, others = found
    data = ConditionData(worker=look.workers.by_slot[(names.PS, index)].metadata.name)
    if before is not None and before.data == data:
        return before
    message = (
        f"ps {index} uses {own:.1f} cores, and the median of the others is {others:.1f}: spread the "
        "variables that all workers read over all servers (a variable_partitioner), or give type ps more CPU"
    )
    return WarningState(message, data=data)


def cores_by_server(job: ElasticJob, workers: Workers) -> dict[int, float]:
    """Return the CPU cores that each parameter server used lately, as far as it is reported."""
    cluster = job.status.cluster
    tasks = cluster.tasks.get(names.PS, []) if cluster is not None else []
    found = {index: workers.by_slot.get((names.PS, index)) for index in tasks}
    reports = {i: current_report(w) for i, w in found.items() if w is not None and runs(w)}
    return {i: r.usage.cpu_cores for i, r in reports.items() if r is not None and r.usage is not None}


def hottest(cores: Mapping[int, float], ratio: float = HOT_RATIO) -> tuple[int, float, float] | None:
    """Return the slot, its cores, and the median of the others', if that is far less."""
    if len(cores) < 2:
        return None
    index = max(cores, key=lambda each: (cores[each], -each))
    others = median(used for other, used in cores.items() if other != index)
    return (index, cores[index], others) if cores[index] >= max(HOT_CORES, ratio * others) else None


def seconds_to_hot_look(job: ElasticJob) -> float | None:
    """Return the time until the next look at what the servers use, which no change shows."""
    return HOT_LOOK_SECONDS if job.spec.replica_specs[names.PS].replicas > 1 else None


def tf_config_kept(_: JobWarning | None, look: DesiredJob) -> WarningState | None:
    """Judges whether the user sets the variable that Pods learn their cluster from."""
    kept = own_tf_config(look.job)
    if not kept:
        return None
    return WarningState(
        f"{names.ENV_TF_CONFIG} is set by the user for type {', '.join(kept)}, and kept: these Pods do not "
        "learn of changes of the cluster; remove it to have dlr set it"
    )


_OURS = {
    life.WORLD_FORMED: ConditionKind(life.WORLD_FORMED, cluster_formed, cluster_at_end),
    scaled.SCALED: ConditionKind(scaled.SCALED, is_scaled, life.wait_at_end),
}
_GRAVER = [kind.type for kind in WARNINGS].index(reported.PROCESS_LINGERS)
_HOT = WarningKind(PARAMETER_SERVER_HOT, parameter_server_hot, lambda *_: None, "Warning")
_KEPT = WarningKind(TF_CONFIG_KEPT, tf_config_kept, event="Normal")
TABLE = ConditionTable(
    [_OURS.get(kind.type, kind) for kind in CONDITIONS],
    [*WARNINGS[:_GRAVER], _HOT, *WARNINGS[_GRAVER:], _KEPT],
)
