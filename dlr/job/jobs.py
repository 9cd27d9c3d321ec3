"""What several jobs do, in a sentence. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controller.wording import counted
from dlr.job import report
from dlr.job.groups import tree
from dlr.job.tones import TONES, tone_of

JSON = dict[str, Any]


def headline_of_jobs(jobs: Sequence[JSON]) -> str:
    """Say how many of the jobs that have not ended train."""
    active = [job for job, is_group in tree(jobs) if not is_group and not report.is_finished(job)]
    if not active:
        return "No job is active" if jobs else "No jobs"
    trains = sum(tone_of(state_of(job)) is TONES[0] for job in active)
    return f"{trains} of {counted(len(active), 'active job')} {'trains' if trains == 1 else 'train'}"


def state_of(job: JSON) -> str:
    """Return what takes the job's time at present; its phase, if nothing does."""
    state = None if report.is_finished(job) else ((job.get("status") or {}).get("goodput") or {}).get("state")
    return state or report.phase(job)
