"""Condition `TemplateApplied`: an edit of a job's Pod template that its Pods do not have yet. Pure.

Changed resources are brought to all Pods, one unit after the other (`reconcilers/scale/rolling.py`). All else
of a template, and the job's variables, are for the next Pod of each slot: who changes a command is told so.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from controller.wording import counted
from crds.elasticjob import ElasticJob
from crds.model import ConditionData, ConditionStatus
from reconcilers.observed.conditions import condition_of, data_of, with_condition
from reconcilers.runtime.acts import Event

TEMPLATE_APPLIED = "TemplateApplied"
WAITS = "WaitsForNextPods"


def with_edits(job: ElasticJob, outdated: int, pods: int, now: datetime) -> ElasticJob:
    """The job with this condition, once there was such an edit.

    Args:
        outdated: how many of its Pods were made of an earlier template.
        pods: how many it has.
    """
    conditions = job.status.conditions
    if outdated:
        message = (
            f"{outdated} of {counted(pods, 'Pod was', 'Pods were')} made before the template was changed; to "
            "apply it now, suspend and resume the job"
        )
        data = ConditionData(count=outdated)
        changed = with_condition(
            conditions, TEMPLATE_APPLIED, ConditionStatus.FALSE, WAITS, message, now, data
        )
    elif condition_of(conditions, TEMPLATE_APPLIED) is not None:
        changed = with_condition(conditions, TEMPLATE_APPLIED, ConditionStatus.TRUE, "Applied", "", now)
    else:
        return job
    return job.with_status(conditions=changed)


def told(before: ElasticJob, after: ElasticJob) -> Iterator[Event]:
    """An Event when an edit leaves more Pods outdated than there were; none for Pods that follow it in turn,
    nor for what else is edited meanwhile."""
    old, new = (condition_of(job.status.conditions, TEMPLATE_APPLIED) for job in (before, after))
    if new is None or new.status is not ConditionStatus.FALSE:
        return
    if (data_of(new).count or 0) > (data_of(old).count or 0):
        yield Event("Normal", "TemplateChanged", new.message)
