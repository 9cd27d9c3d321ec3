"""Which groups train together: `decide`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crds.phases import JobPhase, RendezvousPhase
from crds.replica_groups import GroupPlace, Membership


@dataclass(frozen=True)
class GroupView:
    """A group, as its ElasticJob's status has it."""

    index: int
    phase: JobPhase | None = None
    round: int = 0
    world: RendezvousPhase = RendezvousPhase.FORMING
    broken_round: int = 0
    address: str = ""
    port: int = 0
    ready_round: int = 0
    """Round whose processes are all ready to take part; 0 for none."""
    version: int = 0
    """The newest version that they are in."""
    broken_version: int = 0
    """The newest version that they gave up when there was no newer one."""

    @property
    def is_able(self) -> bool:
        """Whether its processes can take part."""
        is_whole = self.world is RendezvousPhase.FORMED and self.broken_round < self.round
        is_over = self.phase is not None and (self.phase.finished or self.phase is JobPhase.SUSPENDED)
        return is_whole and not is_over and self.ready_round == self.round > 0

    @property
    def place(self) -> GroupPlace:
        """Its entry in a membership."""
        return GroupPlace(index=self.index, round=self.round, address=self.address, port=self.port)


def decide(published: Membership, groups: Sequence[GroupView], minimum: int) -> Membership:
    """Return the groups that train together from now on; the published membership if nothing changes.

    Once a group has succeeded, training ends: those that take part go on to the end however few they are, and
    no other joins them.

    Args:
        groups: all of the job.
        minimum: number of groups below which none trains.
    """
    able = sorted((group for group in groups if group.is_able), key=lambda group: group.index)
    if any(group.phase is JobPhase.SUCCEEDED for group in groups):
        members = {(place.index, place.round) for place in published.groups}
        able = [group for group in able if (group.index, group.round) in members]
    elif len(able) < minimum:
        able = []
    places = [group.place for group in able]
    is_broken = any(group.broken_version == published.version for group in able)
    if places == published.groups and not (is_broken and published.version):
        return published
    return Membership(version=published.version + 1, groups=places)
