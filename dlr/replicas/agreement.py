"""What the members of a version agree upon when they meet: who leads, who follows, who is behind. Pure.

A step is committed in a version when the gradients of all its contributors have arrived at all of them. So if
one member has applied a step, every other contributor of that version holds the same averaged gradients, and
can still apply it (`rolls`). Who took no part in that commit takes over the state of one that did. Where all
that meet hold them, they all apply it: one that is gone may have, and may have saved what came of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

HEALING_STEPS = 2
"""Steps from a meeting on to which a member that was behind contributes nothing: in the first it only takes
part, and during the second the state arrives."""


MOST = (1 << 61) - 1
"""A prime below the largest integer of a tensor."""


@dataclass(frozen=True)
class MeetingGroup:
    """One group, as it comes to a meeting. All of its ranks come with the same."""

    trained: bool = False
    """Whether its processes have applied a step, or have taken over the state of others that had."""
    applied: int = 0
    """Number of steps that its state has."""
    applied_in: int = 0
    """Version in which the last of them was committed, or in which all began; 0 before."""
    complete_in: int = 0
    """Version in which the averaged gradients of its next step have all arrived; 0 if they have not."""
    is_ready: bool = False
    """Whether it has made the inner steps that its next outer step averages; see `dlr.replicas.outer`."""
    inner_steps: int = 0
    """Number of inner steps that its state has."""
    has_loaded: bool = True
    """Whether no checkpoint may be newer than its state; one that other groups' state made needless may."""
    is_last: bool = False
    """Whether training ends with the last step that it has applied."""
    ends: bool = False
    """Whether training ends with the step whose gradients have all arrived, as far as it has seen."""

    def to_numbers(self) -> list[int]:
        """Return the fields as integers, in their order."""
        return [int(each) for each in astuple(self)]

    @classmethod
    def of_numbers(cls, numbers: Sequence[int]) -> MeetingGroup:
        """Return the group that `to_numbers` has these of."""
        pairs = zip(fields(cls), numbers, strict=True)
        values: list[Any] = [value != 0 if field.type == "bool" else value for field, value in pairs]
        return cls(*values)


@dataclass(frozen=True)
class GroupAgreement:
    """The outcome of a meeting, by positions among the members."""

    leader: int
    """The member whose state counts; others take it over from this one."""
    step: int
    """The step that is made next, by the leader's count."""
    applied_in: int
    """Version in which the leader's last step was committed."""
    rolls: frozenset[int]
    """Members that apply the step before, whose gradients they hold."""
    behind: frozenset[int]
    """Members that take over the leader's state."""
    is_first: bool
    """Whether nobody has trained: those behind take over the state before the step, and not during it."""
    loads_first: bool = False
    """Whether those that have not loaded a checkpoint do so, and all meet again: nobody has a newer state."""
    is_over: bool = False
    """Whether no step is made any more: training has ended with the leader's last one."""
    healing_steps: int = HEALING_STEPS
    """Number of steps from `step` on to which those behind contribute nothing."""
    inner_steps: int = 0
    """Number of inner steps that the leader's state has."""

    def to_numbers(self) -> list[int]:
        """Return what tells it from others, in five numbers."""
        marks = sum(1 << place for place in self.rolls), sum(1 << place for place in self.behind)
        return [self.leader, self.step, int(self.loads_first), *(mark % MOST for mark in marks)]

    def contributors(self, step: int, size: int) -> tuple[int, ...]:
        """Return the members whose gradients count in a step."""
        heal = not self.is_first and step < self.step + self.healing_steps
        return tuple(place for place in range(size) if not heal or place not in self.behind)


@dataclass(frozen=True)
class GroupStanding:
    """The place of one group in training."""

    counted: MeetingGroup
    """The group with the steps that it has taken part in, also while their state is on its way here."""
    own: MeetingGroup
    """The group with its own state, from which it goes on where no other group has a newer one."""
    has_checkpoints: bool = False
    """Whether a checkpoint may be newer than the own state."""
    loaded_at: int = -1
    """The newest version when the newest checkpoint was looked for; -1 if none was."""

    @classmethod
    def at_start(cls, step: int, *, has_checkpoints: bool = False) -> GroupStanding:
        """Return that of a group whose processes have just started.

        Args:
            step: number of steps that the state has.
            has_checkpoints: whether a checkpoint may be newer.
        """
        member = MeetingGroup(applied=step)
        return cls(member, member, has_checkpoints)

    def member(self, version: int) -> MeetingGroup:
        """Return the group as it comes to the meeting of a version.

        In the version after the one at which it has looked for a checkpoint, nobody can have saved another
        one; from the next one on, others may have, and died.
        """
        if self.counted.trained:
            return self.counted
        return replace(self.own, has_loaded=not self.has_checkpoints or version <= self.loaded_at + 1)

    def after_loading(self, step: int | None, version: int) -> GroupStanding:
        """Return it after a look for a checkpoint that is newer than the own state.

        Args:
            step: of the checkpoint that was loaded; None if there was none.
            version: the newest at that time.
        """
        own = self.own if step is None else MeetingGroup(applied=step)
        return GroupStanding(own, own, self.has_checkpoints, version)

    def after_meeting(self, agreement: GroupAgreement, place: int, *, at_once: bool) -> GroupStanding:
        """Return it after a meeting.

        Args:
            agreement: that the meeting came to.
            at_once: whether those behind have the leader's state already.
        """
        is_behind = place in agreement.behind
        if at_once:
            leads_first = place == agreement.leader and not self.counted.trained
            trained = MeetingGroup(True, agreement.step, agreement.applied_in)
            return replace(self, counted=trained) if is_behind or leads_first else self
        if not is_behind:
            return self
        counted = MeetingGroup(False, agreement.step)
        if not self.counted.trained:
            return replace(self, counted=counted)
        return GroupStanding(counted, MeetingGroup(applied=self.counted.applied), self.has_checkpoints)


def agree(members: Sequence[MeetingGroup]) -> GroupAgreement:
    """Decide what follows from a meeting; every member comes to the same.

    Args:
        members: in the order of their groups' indices; at least one.
    """
    agreed = _agree(members)
    led, everybody = members[agreed.leader], range(len(members))
    is_held = led.trained and led.complete_in > 0
    if is_held and all(_is_level(each, led) and each.complete_in == led.complete_in for each in members):
        ends = any(each.ends for each in members)
        return replace(
            agreed,
            step=led.applied + 1,
            applied_in=led.complete_in,
            rolls=frozenset(everybody),
            is_over=ends,
        )
    return agreed


def _agree(members: Sequence[MeetingGroup]) -> GroupAgreement:
    def rank(place: int) -> tuple[bool, int, int, int, int]:
        member = members[place]
        # Of a round that was shorter than others, a checkpoint shows but the inner steps.
        loaded = 0 if member.trained else member.inner_steps
        return member.trained, member.applied, member.applied_in, loaded, -place

    leader = max(range(len(members)), key=rank)
    led = members[leader]
    rolls, behind = set[int](), set[int]()
    for place, member in enumerate(members):
        if place == leader or _is_level(member, led):
            continue
        if _can_roll(member, led):
            rolls.add(place)
        else:
            behind.add(place)
    is_first = not led.trained
    loads_first = is_first and not all(member.has_loaded for member in members)
    return GroupAgreement(
        leader,
        led.applied,
        led.applied_in,
        frozenset(rolls),
        frozenset(behind),
        is_first=is_first,
        loads_first=loads_first,
        is_over=led.is_last,
    )


def agree_on_round(members: Sequence[MeetingGroup]) -> GroupAgreement:
    """Decide what follows from a meeting between rounds of inner steps, where states are taken over at once.

    If one comes with its inner steps made, the outer step is made at once, without those that have not made
    the same: they take over its state, with all that the inner steps have changed. If none does, all begin
    the inner steps together.
    """
    agreed = _agree(members)
    elsewhere = agreed.rolls | agreed.behind
    level = [place for place in range(len(members)) if place not in elsewhere]
    leader = max(level, key=lambda place: (members[place].is_ready, members[place].inner_steps, -place))
    led = members[leader]
    alike = {place for place, member in enumerate(members) if member.inner_steps == led.inner_steps}
    if led.is_ready:
        alike &= {place for place in level if members[place].is_ready}
    behind = frozenset(range(len(members))) - (alike - agreed.behind)
    return replace(
        agreed, leader=leader, behind=behind, healing_steps=int(led.is_ready), inner_steps=led.inner_steps
    )


def _is_level(member: MeetingGroup, leader: MeetingGroup) -> bool:
    at = (member.applied, member.applied_in)
    return member.trained and leader.trained and at == (leader.applied, leader.applied_in)


def _can_roll(member: MeetingGroup, leader: MeetingGroup) -> bool:
    is_next = member.trained and leader.trained and member.applied + 1 == leader.applied
    return is_next and member.complete_in == leader.applied_in > 0
