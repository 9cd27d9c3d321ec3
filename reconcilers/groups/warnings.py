"""Warnings about a job's replica groups: refused ones, late ones, and a broken exchange. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from crds.job_status import JobWarning
from crds.model import ConditionData
from crds.ranges import as_ranges
from crds.replica_groups import Membership
from reconcilers.groups.membership import GroupView
from reconcilers.observed.conditions import warning_of

GROUPS_LATE = "GroupsLate"
EXCHANGE_BROKEN = "ExchangeBroken"
GROUPS_NOT_MADE = "GroupsNotMade"
WARNINGS = (GROUPS_NOT_MADE, GROUPS_LATE, EXCHANGE_BROKEN)


def late_groups(membership: Membership, views: Sequence[GroupView]) -> list[int]:
    """Return the indices of the groups that are left out because others waited for them in vain."""
    rounds = {view.index: view.round for view in views if not (view.is_over or view.leaves)}
    return [late.index for late in membership.late if rounds.get(late.index) == late.round]


def warnings_of(
    before: Sequence[JobWarning],
    published: Membership,
    membership: Membership,
    views: Sequence[GroupView],
    now: datetime,
    refused: str | None = "",
) -> list[JobWarning]:
    """Return the warnings of a job that goes on."""
    found = [
        _refused(warning_of(before, GROUPS_NOT_MADE), refused, now),
        _late(warning_of(before, GROUPS_LATE), membership, views, now),
        _broken(warning_of(before, EXCHANGE_BROKEN), published, membership, views, now),
    ]
    return [each for each in found if each is not None]


def _refused(old: JobWarning | None, why: str | None, now: datetime) -> JobWarning | None:
    if not why:
        return old if why is None else None
    message = f"groups cannot be created: {why}"
    return JobWarning(type=GROUPS_NOT_MADE, message=message, since=_since(old, now))


def _late(
    old: JobWarning | None, membership: Membership, views: Sequence[GroupView], now: datetime
) -> JobWarning | None:
    if not (late := late_groups(membership, views)):
        return None
    message = (
        f"the other groups waited in vain for {as_ranges(late)}, and train without until these reach their "
        "next step: see their stacks and logs"
    )
    return JobWarning(type=GROUPS_LATE, message=message, since=_since(old, now))


def _broken(
    old: JobWarning | None,
    published: Membership,
    membership: Membership,
    views: Sequence[GroupView],
    now: datetime,
) -> JobWarning | None:
    """Return the warning of a broken exchange, until the groups have made a step after it.

    An error that recurs in each version, such as a state that never reaches a group that is behind, makes the
    groups reconnect again and again without a step.
    """
    broke = [view.index for view in views if 0 < published.version == view.broken_version]
    members = {place.index for place in membership.groups}
    step = max((view.step for view in views if view.step is not None), default=None)
    before = old.data if old is not None and old.data is not None else ConditionData()
    if broke and membership.version > published.version:
        count = (before.count or 0) + 1
        often = "" if count == 1 else f"; {count} versions in a row have, without a step in between"
        message = (
            f"the exchange of version {published.version} failed although no group of it died, as reported "
            f"by {as_ranges(broke)}: see their logs{often}; the groups connect again"
        )
        data = ConditionData(count=count, step=step)
        return JobWarning(type=EXCHANGE_BROKEN, message=message, since=_since(old, now), data=data)
    has_met = all(view.version >= membership.version for view in views if view.index in members)
    has_stepped = step is None or before.step is None or step > before.step
    return None if has_met and has_stepped else old


def _since(old: JobWarning | None, now: datetime) -> datetime:
    return now.replace(microsecond=0) if old is None else old.since
