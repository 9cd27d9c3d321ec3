"""Condition `TemplateApplied`: an edit of a job's Pod template that its Pods do not have yet. Pure.

Changed resources are brought to all Pods, one unit after the other (`reconcilers/scale/rolling.py`). All else
of a template, and the job's variables, are for the next Pod of each slot.
"""

from __future__ import annotations

from controller.wording import counted
from crds.model import Condition, ConditionData, ConditionStatus
from reconcilers.conditions.facts import Facts
from reconcilers.observed.conditions import Judgement, State, data_of
from reconcilers.runtime.acts import Event

TEMPLATE_APPLIED = "TemplateApplied"
WAITS = "WaitsForNextPods"


def judge(known: Condition | None, facts: Facts) -> Judgement:
    outdated, pods = facts.outdated_pods, facts.pods
    if outdated:
        message = (
            f"{outdated} of {counted(pods, 'Pod was', 'Pods were')} made before the template was changed; to "
            "apply it now, suspend and resume the job"
        )
        return State(ConditionStatus.FALSE, WAITS, message, ConditionData(count=outdated))
    return None if known is None else State(ConditionStatus.TRUE, "Applied")


def event(old: Condition | None, new: Condition) -> Event | None:
    """An Event when an edit leaves more Pods outdated than there were; none for Pods that follow it in turn,
    nor for what else is edited meanwhile."""
    is_news = new.status is ConditionStatus.FALSE and (data_of(new).count or 0) > (data_of(old).count or 0)
    return Event("Normal", "TemplateChanged", new.message) if is_news else None
