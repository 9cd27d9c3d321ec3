"""The membership of a job: the groups that train together (`decide`). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crds.phases import JobPhase, RendezvousPhase
from crds.replica_groups import GroupPlace, LateGroup, Membership


@dataclass(frozen=True)
class GroupView:
    """The state of a group, from its ElasticJob's status."""

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
    """Newest version that its processes have joined."""
    broken_version: int = 0
    """Newest version that its processes have left as broken, before there was a newer one."""
    left_out_version: int = 0
    """Newest version without the group that its processes have seen while they wait for one with it."""
    late_version: int = 0
    """Version in which its processes have waited for other groups beyond their time limit."""
    late_groups: frozenset[int] = frozenset()
    """Indices of the groups for which they wait."""
    step: int | None = None
    """Highest step in its job's status; None before the first."""

    @property
    def is_over(self) -> bool:
        """Whether its job has ended."""
        return self.phase is not None and self.phase.finished

    @property
    def is_able(self) -> bool:
        """Whether its processes can take part; those of a suspended group can until they have left."""
        is_whole = self.world is RendezvousPhase.FORMED and self.broken_round < self.round
        return (is_whole or self.leaves) and not self.is_over and self.ready_round == self.round > 0

    @property
    def leaves(self) -> bool:
        """Whether it is suspended."""
        return self.phase is JobPhase.SUSPENDED

    @property
    def place(self) -> GroupPlace:
        """The group's entry in a membership."""
        return GroupPlace(index=self.index, round=self.round)


def decide(published: Membership, groups: Sequence[GroupView], minimum: int) -> Membership:
    """Return the groups that train together from now on; the published membership if nothing changes.

    A late group that is deleted is dropped without a new version, since the rounds of its replacement start
    over.

    A group for which others wait in vain is left out until its processes have seen a version without it, at
    their next step, or until they are started again. It stays if fewer than the minimum would be left.

    Once a group has succeeded, training ends: the present members go on to the end however few they are, and
    no other group joins. The same applies to a suspended job until each group has left after a step of its
    own, the last of them with the newest checkpoint.
    """
    able, late = _able_and_late(published, groups, minimum)
    places = [group.place for group in able]
    address, port = (able[0].address, able[0].port) if able else ("", 0)
    is_broken = any(group.broken_version == published.version for group in able)
    is_same = (places, address, port) == (published.groups, published.address, published.port)
    if is_same and not (is_broken and published.version):
        present = {group.index for group in groups}
        there = [each for each in published.late if each.index in present]
        return published if there == published.late else published.model_copy(update={"late": there})
    return Membership(
        version=published.version + 1,
        address=address,
        port=port,
        groups=places,
        late=sorted(late, key=lambda each: each.index),
    )


def _able_and_late(
    published: Membership, groups: Sequence[GroupView], minimum: int
) -> tuple[list[GroupView], list[LateGroup]]:
    """Return the groups that can train together, by index, none if they are too few; and the late ones."""
    by_index = {group.index: group for group in groups}
    away = [each for each in published.late if _is_still_late(each, by_index.get(each.index))]
    absent = {each.index for each in away}
    able = [by_index[index] for index in sorted(by_index.keys() - absent) if by_index[index].is_able]
    members = {(place.index, place.round) for place in published.groups}
    taking_part = [group for group in able if (group.index, group.round) in members]
    if any(group.phase is JobPhase.SUCCEEDED or group.leaves for group in groups):
        able, minimum = taking_part, 1
    late = _late_in(published.version, taking_part)
    if late and len(able) - len(late) >= minimum:
        version = published.version + 1
        away += [LateGroup(index=each, round=by_index[each].round, version=version) for each in late]
        able = [group for group in able if group.index not in late]
    return able if len(able) >= minimum else [], away


def _is_still_late(late: LateGroup, group: GroupView | None) -> bool:
    """Return whether a late group's processes have not been seen again."""
    return group is not None and group.round <= late.round and group.left_out_version < late.version


def _late_in(version: int, taking_part: Sequence[GroupView]) -> frozenset[int]:
    """Return the indices of groups for which others wait in a version; a waiting group is not late."""
    waiting = [group for group in taking_part if group.late_version == version and group.late_groups]
    named = frozenset[int]().union(*(group.late_groups for group in waiting))
    return named & {group.index for group in taking_part} - {group.index for group in waiting}
