"""Agreement of the members of a version when they meet: which one leads, and which are behind. Pure.

A step is committed in a version when the gradients of all its contributors have arrived at all of them. So if
one member has applied a step, every other contributor of that version has the same averaged gradients, and
can still apply it (`rolls`). A member without a part in that commit receives the state of one with a part. If
all members that meet have the gradients, all apply them: a lost member may have applied and saved the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

HEALING_STEPS = 2
"""Number of steps after a meeting to which a member that was behind contributes nothing: in the first it only
takes part, and during the second the state arrives."""


MOST = (1 << 61) - 1
"""Prime modulus below the largest integer of a tensor."""


@dataclass(frozen=True)
class MeetingGroup:
    """State of one group at a meeting, equal on all of its ranks."""

    trained: bool = False
    """Whether its processes have applied a step, or have received the state of others that had."""
    applied: int = 0
    """Number of steps that its state has."""
    applied_in: int = 0
    """Version in which the last of them was committed, or in which all began; 0 before."""
    complete_in: int = 0
    """Version in which all averaged gradients of its next step have arrived; 0 if they have not."""
    is_ready: bool = False
    """Whether it has made the inner steps that its next outer step averages; see `dlr.replicas.outer`."""
    inner_steps: int = 0
    """Number of inner steps that its state has."""
    has_loaded: bool = True
    """Whether no checkpoint can be newer than its state; False if it has not looked for one."""
    is_last: bool = False
    """Whether training ends with the last step that it has applied."""
    ends: bool = False
    """Whether, as far as it knows, training ends with the step whose gradients have all arrived."""

    def to_numbers(self) -> list[int]:
        """Return the fields as integers, in their order."""
        return [int(each) for each in astuple(self)]

    @classmethod
    def of_numbers(cls, numbers: Sequence[int]) -> MeetingGroup:
        """Return the group with these numbers from `to_numbers`."""
        pairs = zip(fields(cls), numbers, strict=True)
        values: list[Any] = [value != 0 if field.type == "bool" else value for field, value in pairs]
        return cls(*values)


@dataclass(frozen=True)
class GroupAgreement:
    """Outcome of a meeting, by positions among the members."""

    leader: int
    """Member whose state counts, and which sends it to others."""
    step: int
    """Number of the next step, by the leader's count."""
    applied_in: int
    """Version in which the leader's last step was committed."""
    rolls: frozenset[int]
    """Members that apply the previous step, whose gradients they have."""
    behind: frozenset[int]
    """Members that receive the leader's state."""
    is_first: bool
    """Whether no member has trained: those behind receive the state before the step, not during it."""
    loads_first: bool = False
    """Whether members look for a checkpoint first, if they have not yet, and all meet again."""
    is_over: bool = False
    """Whether training has ended with the leader's last step."""
    healing_steps: int = HEALING_STEPS
    """Number of steps from `step` on to which those behind contribute nothing."""
    inner_steps: int = 0
    """Number of inner steps that the leader's state has."""

    def to_numbers(self) -> list[int]:
        """Return a fingerprint of the agreement, five numbers."""
        marks = sum(1 << place for place in self.rolls), sum(1 << place for place in self.behind)
        return [self.leader, self.step, int(self.loads_first), *(mark % MOST for mark in marks)]

    def contributors(self, step: int, size: int) -> tuple[int, ...]:
        """Return the members whose gradients count in a step."""
        heal = not self.is_first and step < self.step + self.healing_steps
        return tuple(place for place in range(size) if not heal or place not in self.behind)


@dataclass(frozen=True)
class GroupStanding:
    """Standing of one group in training."""

    counted: MeetingGroup
    """The group with the steps that it has taken part in, even if their state has not arrived yet."""
    own: MeetingGroup
    """The group with its own state, from which it continues if no other group has a newer one."""
    has_checkpoints: bool = False
    """Whether a checkpoint may be newer than its own state."""
    loaded_at: int = -1
    """Newest version at the last look for a checkpoint; -1 before the first look."""

    @classmethod
    def at_start(cls, step: int, *, has_checkpoints: bool = False) -> GroupStanding:
        """Return the standing of a group whose processes have just started.

        Args:
            step: number of steps that the state has.
            has_checkpoints: whether a checkpoint may be newer.
        """
        member = MeetingGroup(applied=step)
        return cls(member, member, has_checkpoints)

    def member(self, version: int) -> MeetingGroup:
        """Return the group's state at the meeting of a version.

        In the first version after the look for a checkpoint, no group can have saved another one; in later
        ones, others may have saved one, and died.
        """
        if self.counted.trained:
            return self.counted
        return replace(self.own, has_loaded=not self.has_checkpoints or version <= self.loaded_at + 1)

    def after_loading(self, step: int | None, version: int) -> GroupStanding:
        """Return the standing after a look for a checkpoint that is newer than the own state.

        Args:
            step: step of the loaded checkpoint; None if there was none.
            version: the newest version at that time.
        """
        own = self.own if step is None else MeetingGroup(applied=step)
        return GroupStanding(own, own, self.has_checkpoints, version)

    def after_meeting(self, agreement: GroupAgreement, place: int, *, at_once: bool) -> GroupStanding:
        """Return the standing after a meeting.

        Args:
            agreement: outcome of the meeting.
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
    """Decide the outcome of a meeting, equally on every member.

    Args:
        members: at least one, in the order of their groups' indices.
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
        # After a shorter round, a checkpoint only records the inner steps.
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
    """Decide the outcome of a meeting between rounds of inner steps, at which states are sent at once.

    If a member has made its inner steps, the outer step is made at once, without those that have not made the
    same inner steps: they receive the member's state. Otherwise all begin the inner steps together.
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
