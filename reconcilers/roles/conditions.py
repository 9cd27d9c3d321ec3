"""Conditions and warnings of a job with parameter servers that differ from a world's. Pure."""

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
"""Limit of names in a message, which counts the others."""
HOT_RATIO = 2.0
"""CPU of a hot parameter server, in units of the others' median."""
HOT_RATIO_TO_STAY = 1.5
HOT_CORES = 0.5
HOT_LOOK_SECONDS = 30.0
"""Time between two looks at the servers' use, which agents report every 30 s without triggering one."""


def cluster_formed(_: Condition | None, look: DesiredJob) -> ConditionState:
    """Judge whether all Pods that training needs are running."""
    lacking = missing(look.job, look.workers)
    if not lacking:
        return ConditionState(ConditionStatus.TRUE, "Complete")
    return ConditionState(ConditionStatus.FALSE, "Incomplete", f"not running: {some_of(lacking, NAMED)}")


def cluster_at_end(before: Condition | None, look: DesiredJob) -> NextState:
    """Keep what was missing, which may be why the job has ended."""
    is_incomplete = before is not None and before.status is ConditionStatus.FALSE
    return before if is_incomplete else life.world_at_end(before, look)


def is_scaled(before: Condition | None, look: DesiredJob) -> NextState:
    """Judge the job's size and resources by the Pods of all types."""
    return scaled.judge_by(lambda look: scaled.too_few_pods(look, training_types(look.job)), before, look)


def parameter_server_hot(before: JobWarning | None, look: DesiredJob) -> WarningState | JobWarning | None:
    """Judge whether one parameter server works far more than the others; its first figures stay.

    It has the variables that all workers read, so that they wait for it.
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
    """Return the last reported use of CPU cores of each parameter server."""
    cluster = job.status.cluster
    tasks = cluster.tasks.get(names.PS, []) if cluster is not None else []
    found = {index: workers.by_slot.get((names.PS, index)) for index in tasks}
    reports = {i: current_report(w) for i, w in found.items() if w is not None and runs(w)}
    return {i: r.usage.cpu_cores for i, r in reports.items() if r is not None and r.usage is not None}


def hottest(cores: Mapping[int, float], ratio: float) -> tuple[int, float, float] | None:
    """Return the slot with the highest use, its cores, and the others' median, if the ratio is that high."""
    if len(cores) < 2:
        return None
    index = max(cores, key=lambda each: (cores[each], -each))
    others = median(used for other, used in cores.items() if other != index)
    return (index, cores[index], others) if cores[index] >= max(HOT_CORES, ratio * others) else None


def seconds_to_hot_look(job: ElasticJob) -> float | None:
    """Return the time until the next look at the servers' use; None for a single server."""
    return HOT_LOOK_SECONDS if job.spec.replica_specs[names.PS].replicas > 1 else None


def tf_config_kept(_: JobWarning | None, look: DesiredJob) -> WarningState | None:
    """Judge whether the user sets TF_CONFIG, from which Pods learn their cluster."""
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
