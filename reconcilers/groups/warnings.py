"""What is wrong with a job's replica groups: late ones, and an exchange that breaks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from crds.job_status import JobWarning
from crds.ranges import as_ranges
from crds.replica_groups import Membership
from reconcilers.groups.membership import GroupView
from reconcilers.observed.conditions import warning_of

GROUPS_LATE = "GroupsLate"
EXCHANGE_BROKEN = "ExchangeBroken"
WARNINGS = (GROUPS_LATE, EXCHANGE_BROKEN)


def late_groups(membership: Membership, views: Sequence[GroupView]) -> list[int]:
    """Return the indices of the groups that are left out since the others waited for them in vain."""
    rounds = {view.index: view.round for view in views}
    return [late.index for late in membership.late if rounds.get(late.index) == late.round]


def warnings_of(
    before: Sequence[JobWarning],
    published: Membership,
    membership: Membership,
    views: Sequence[GroupView],
    now: datetime,
) -> list[JobWarning]:
    """Return the warnings of a job that goes on."""
    found = dict(_messages(before, published, membership, views))
    warnings = []
    for type_, message in found.items():
        old = warning_of(before, type_)
        since = now.replace(microsecond=0) if old is None else old.since
        warnings.append(JobWarning(type=type_, message=message, since=since))
    return warnings


def _messages(
    before: Sequence[JobWarning], published: Membership, membership: Membership, views: Sequence[GroupView]
) -> Iterator[tuple[str, str]]:
    """Yield the type of each warning, with its message."""
    if late := late_groups(membership, views):
        yield (
            GROUPS_LATE,
            f"the other groups waited in vain for {as_ranges(late)}, and train without until these come to "
            "their next step: see their stacks and logs",
        )
    broke = [view.index for view in views if 0 < published.version == view.broken_version]
    if broke and membership.version > published.version:
        yield (
            EXCHANGE_BROKEN,
            f"the exchange of version {published.version} failed although no group of it died, as reported "
            f"by {as_ranges(broke)}: see their logs; the groups connect again",
        )
        return
    members = {place.index for place in membership.groups}
    has_met = all(view.version >= membership.version for view in views if view.index in members)
    if not has_met and (old := warning_of(before, EXCHANGE_BROKEN)) is not None:
        yield EXCHANGE_BROKEN, old.message
