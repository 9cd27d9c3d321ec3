"""Conditions and warnings of a job with parameter servers that differ from a world's. Pure."""

from __future__ import annotations

from controller.wording import some_of
from crds import names
from crds.job_status import JobWarning
from crds.model import Condition, ConditionStatus
from reconcilers.conditions import life, scaled
from reconcilers.conditions.table import CONDITIONS, WARNINGS
from reconcilers.look import ConditionKind, ConditionTable, DesiredJob, WarningKind, WarningState
from reconcilers.observed.conditions import ConditionState, NextState
from reconcilers.observed.slots import training_types
from reconcilers.roles.pods import own_tf_config
from reconcilers.roles.progress import missing

TF_CONFIG_KEPT = "TFConfigKept"
NAMED = 3
"""Limit of names in a message, which counts the others."""


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
_KEPT = WarningKind(TF_CONFIG_KEPT, tf_config_kept, event="Normal")
TABLE = ConditionTable(
    [_OURS.get(kind.type, kind) for kind in CONDITIONS],
    [*WARNINGS, _KEPT],
)
