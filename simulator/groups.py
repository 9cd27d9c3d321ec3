"""Job with replica groups: which of them train together, and when they continue after a change.

Each group is a `planned.PlannedJob`. `reconcilers/groups` decides which take part, and when the whole job
has failed; the table of times gives the pauses of the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from crds.elasticjob import ElasticJob
from crds.grouping import patience_seconds
from crds.job_status import ElasticJobStatus
from crds.replica_groups import Membership
from reconcilers.groups.membership import GroupView, decide
from reconcilers.groups.plan import plan_groups, view_of
from simulator import objects
from simulator.times import Times

MINIMUM = 1
"""Minimum number of groups: the default of `elasticPolicy.replicaGroups.min`."""


class GroupedJob:
    """Job that owns the groups."""

    def __init__(self, groups: Mapping[int, ElasticJob], times: Times) -> None:
        # Only the number of groups matters; a real job may not have so many workers.
        elastic = {"replicaGroups": {"workers": 1, "min": MINIMUM}}
        self.job = objects.new_job({"replicas": len(groups)}, {"elasticPolicy": elastic})
        self.stalled_until = 0.0
        """End of the pause of the members after the newest version of the membership."""
        self._groups = dict(groups)
        self._views = {number: view_of(number, group) for number, group in groups.items()}
        self._rounds_before = dict.fromkeys(groups, 0)
        self._times = times
        self.membership = Membership()
        self._publish(decide(self.membership, self._all_views(), MINIMUM))

    @property
    def count(self) -> int:
        return len(self._groups)

    @property
    def numbers(self) -> Collection[int]:
        return self._groups.keys()

    @property
    def has_failed(self) -> bool:
        return self.job.status.finished

    def takes_part(self, number: int) -> bool:
        return number in self._members

    def round_of(self, number: int) -> int | None:
        """Return the round in which a group takes part; None if it doesn't."""
        return self._members.get(number)

    def look(self, number: int, group: ElasticJob, now: float) -> float:
        """Reconcile one group. Return the seconds for which the members pause from now on."""
        before, self._groups[number] = self._groups[number], group
        view = self._view(number, group)
        if view == self._views[number]:
            return 0.0
        self._views[number] = view
        if group.status.phase is not before.status.phase and group.status.finished:
            self._look_at_all(now)
        return self._decide(self._all_views(), now)

    @property
    def patience_seconds(self) -> float:
        """Longest wait of the groups for one that does not step."""
        return patience_seconds(self._times.step_seconds)

    def leave_out(self, number: int, waiting: int, now: float) -> float:
        """Let one group report that it waits for another in vain. Return as `look` does.

        Args:
            number: number of the group that does not step.
        """
        version, late = self.membership.version, frozenset((number,))
        views = self._all_views()
        views[views.index(self._views[waiting])] = replace(
            self._views[waiting], late_version=version, late_groups=late
        )
        return self._decide(views, now)

    def _decide(self, views: list[GroupView], now: float) -> float:
        members = self._members
        if not self._publish(decide(self.membership, views, MINIMUM)):
            return 0.0
        seconds = self._times.regroup_seconds(someone_left=bool(members.items() - self._members.items()))
        self.stalled_until = max(self.stalled_until, now + seconds)
        return seconds

    def forget(self, number: int, group: ElasticJob) -> None:
        """Turn a training group into one without any history, in its current round."""
        shown = view_of(number, group)
        self._rounds_before[number] = self._views[number].round - shown.round
        self._groups[number] = group
        self._views[number] = self._view(number, group)

    def _view(self, number: int, group: ElasticJob) -> GroupView:
        view, before = view_of(number, group), self._rounds_before[number]
        return replace(
            view,
            round=view.round + before,
            broken_round=view.broken_round + before,
            ready_round=view.ready_round + before if view.ready_round else 0,
        )

    def _all_views(self) -> list[GroupView]:
        return list(self._views.values())

    def _publish(self, membership: Membership) -> bool:
        """Take over a membership; return whether it is new."""
        is_new = membership is not self.membership
        self.membership = membership
        if is_new:
            self._members = {place.index: place.round for place in membership.groups}
        return is_new

    def _look_at_all(self, now: float) -> None:
        """Decide whether the whole job has ended, after one group has."""
        plan = plan_groups(self.job, self.job.status.to_wire(), self._groups, objects.at(now))
        status = objects.patched(self.job.status.to_wire(), plan.status_patch)
        self.job = self.job.model_copy(update={"status": ElasticJobStatus.model_validate(status)})
