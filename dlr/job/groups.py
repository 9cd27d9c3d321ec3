"""Replica groups: the ElasticJobs that a job owns, and their part of its status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from controller.wording import counted
from crds import names
from crds.grouping import GroupOf, group_count, group_name, is_grouped, owner_of_group
from dlr.job import report
from dlr.job.report import Row, is_finished
from dlr.job.tones import TONES, tone_of
from dlr.job.wording import in_command
from dlr.kube.api import JSON
from dlr.kube.errors import UsageError

GROUP_MARK = "└ "
"""Prefix of a group's name in a list, below its job."""


def group_of(job: JSON) -> GroupOf | None:
    """Return the job whose replica group this one is, and its index; None for other jobs."""
    return owner_of_group(job["metadata"])


def index_of(item: JSON) -> int:
    """Return the index of the group to which a job or a worker belongs; -1 for none."""
    text = (item["metadata"].get("labels") or {}).get(names.LABEL_GROUP_INDEX) or ""
    return int(text) if text.isdecimal() else -1


def training(job: JSON) -> list[int]:
    """Return the indices of the groups that train together."""
    membership = (job.get("status") or {}).get("membership") or {}
    return [] if is_finished(job) else [each["index"] for each in membership.get("groups") or ()]


def groups_line(job: JSON) -> str:
    """Return the number of groups that train together, and the version of their membership."""
    version = ((job.get("status") or {}).get("membership") or {}).get("version", 0)
    line = f"{len(training(job))} of {group_count(job)} train together"
    if is_finished(job):
        return f"{group_count(job)}, none of which trains any more"
    return f"{line}, version {version}" if version else line


def group_line(job: JSON) -> str:
    """Return a group's index, its job, and whether it trains; empty for a job that is no group."""
    group = group_of(job)
    if group is None:
        return ""
    part = (job.get("status") or {}).get("replicaGroup") or {}
    line = f"{group.index} of {group.name}"
    if is_finished(job) or not part.get("ready"):
        return line
    return f"{line}, in version {part['version']}" if part.get("version") else f"{line}, ready to train"


def list_row(job: JSON, now: datetime) -> Row:
    """Return a job's row for `report.LIST_COLUMNS`; one with replica groups has no world of its own."""
    row = report.list_row(job, now)
    if not is_grouped(job):
        return row
    cells = dict(zip(report.LIST_COLUMNS, row, strict=True))
    cells["ROUND"] = None
    cells["WORLD"] = None if is_finished(job) else f"{len(training(job))}/{group_count(job)} groups"
    return tuple(cells.values())


def tree(jobs: Iterable[JSON]) -> list[tuple[JSON, bool]]:
    """Return the jobs in their order, each followed by its groups.

    Each comes with whether it is a group of the job above it; a group whose job is missing counts as a job.
    """
    found = [*jobs]
    uids = {job["metadata"].get("uid") for job in found}
    groups: dict[str, list[JSON]] = {}
    alone: list[JSON] = []
    for job in found:
        group = group_of(job)
        if group is not None and group.uid in uids:
            groups.setdefault(group.uid, []).append(job)
        else:
            alone.append(job)
    ordered: list[tuple[JSON, bool]] = []
    for job in alone:
        ordered.append((job, False))
        of_job = groups.get(str(job["metadata"].get("uid")), [])
        ordered += [(each, True) for each in sorted(of_job, key=index_of)]
    return ordered


def headline_of_jobs(jobs: Sequence[JSON]) -> str:
    """Describe how many of the unfinished jobs train."""
    active = [job for job, is_group in tree(jobs) if not is_group and not is_finished(job)]
    if not active:
        return "No job is active" if jobs else "No jobs"
    trains = sum(tone_of(state_of(job)) is TONES[0] for job in active)
    return f"{trains} of {counted(len(active), 'active job')} {'trains' if trains == 1 else 'train'}"


def state_of(job: JSON) -> str:
    """Return the job's goodput state; its phase without one."""
    state = None if is_finished(job) else ((job.get("status") or {}).get("goodput") or {}).get("state")
    return state or report.phase(job)


def refuse_group(job: JSON, act: str) -> None:
    """Refuse a command on a single replica group.

    Args:
        act: a command that changes a whole job, such as `delete`.

    Raises:
        UsageError: the job is a replica group, whose changes its owner would revert.
    """
    group = group_of(job)
    if group is not None:
        raise UsageError(
            f"ElasticJob {job['metadata']['name']!r} is a replica group of {group.name!r}, which keeps it as "
            f"it is; use the whole job: dlr job {act} {in_command(job['metadata'], group.name)}."
        )


def refuse_grouped(job: JSON, command: str, options: str = "") -> None:
    """Refuse a command on a job with replica groups.

    Args:
        command: the command, such as `job logs`.
        options: options after the job's name, such as `--rank 0`.

    Raises:
        UsageError: the job has replica groups; the message names a command for one of them.
    """
    if is_grouped(job):
        name = job["metadata"]["name"]
        one = in_command(job["metadata"], group_name(name, 0))
        raise UsageError(
            f"ElasticJob {name!r} has {counted(group_count(job), 'replica group')} with ranks of "
            f"their own; name one, such as: {f'dlr {command} {one} {options}'.rstrip()}."
        )
