"""State machine of a process in a replica group, for quorums, commits and heals. Pure.

Groups that have met in a version and have agreed are a *quorum*. A step is *committed* in it as soon as all
its groups have all gradients of the contributors. A group that is behind *heals*: it receives the leader's
state.

All ranks of a group go through the same states, since each event is a joint finding of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

from agent.replicas.facts import VersionGroups
from dlr.replicas.agreement import GroupAgreement, GroupStanding, MeetingGroup

Indices = tuple[int, ...]
"""Indices of groups."""


@dataclass(frozen=True)
class Quorum:
    """The groups of one version, with their agreement."""

    membership: VersionGroups
    agreement: GroupAgreement

    @property
    def version(self) -> int:
        return self.membership.version

    @property
    def place(self) -> int:
        """Position of this process's group."""
        assert self.membership.place is not None
        return self.membership.place

    @property
    def is_behind(self) -> bool:
        """Whether this group began the version behind the leader."""
        return self.place in self.agreement.behind

    @property
    def heals(self) -> bool:
        """Whether this group sends or receives the state."""
        return self.is_behind or (bool(self.agreement.behind) and self.place == self.agreement.leader)

    def counts(self, step: int) -> bool:
        """Return whether this group's gradients count in a step."""
        return self.place in self.agreement.contributors(step, len(self.membership.groups))

    def contributors(self, step: int) -> Indices:
        """Return the groups whose gradients count in a step."""
        return self.membership.indices(self.agreement.contributors(step, len(self.membership.groups)))


# --- events ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoopStarted:
    """The script has begun its loop over steps."""


@dataclass(frozen=True)
class Met:
    """All ranks have met the other groups of a version, with the same agreement."""

    quorum: Quorum


@dataclass(frozen=True)
class NotMet:
    """Some rank has not met the other groups."""

    newest: int
    """Number of the version to wait for."""


@dataclass(frozen=True)
class Loaded:
    """The group has looked for a checkpoint."""

    step: int | None
    """Step of the loaded checkpoint; None if there was none to load."""
    version: int
    """Newest version at that time."""


@dataclass(frozen=True)
class Healed:
    """A heal before any step has ended."""

    ok: bool
    """Whether all ranks have their part of the state, or have sent it."""


@dataclass(frozen=True)
class Computed:
    """The script has the gradients of a step, or has made the inner steps of a round."""

    inner_steps: int = 0
    """Number of inner steps that the state has."""


@dataclass(frozen=True)
class Voted:
    """All ranks have averaged and voted, or have given up."""

    ok: bool
    """Whether all groups have voted, as every rank has seen: the step is committed."""
    has_all: bool
    """Whether every rank has all gradients, and so may have voted."""
    ends: bool
    """Whether some group's `until` ends training with the step; if not all have voted, this group's."""
    newest: int
    """Number of the newest version that a rank has seen."""


@dataclass(frozen=True)
class Applied:
    """The script comes to its next step."""


@dataclass(frozen=True)
class TrainingEnded:
    """All ranks have voted for the end, or have given up."""

    ok: bool
    has_state: bool
    """Whether every rank has its part of the state, or has sent it, and so may have voted."""
    newest: int


Event = LoopStarted | Met | NotMet | Loaded | Healed | Computed | Voted | Applied | TrainingEnded


# --- acts ------------------------------------------------------------------------------------------------


class Do(Enum):
    """An act without arguments. Those from `MEET_AGAIN` on are answered by an event."""

    TAKE_MEAN = auto()
    """Replace the gradients by their mean over the contributors."""
    DROP_GRADIENTS = auto()
    """Leave the optimizers nothing to apply."""
    BEGIN_HEAL = auto()
    """Begin to send or to receive the state, beside the step."""
    END_HEAL = auto()
    """Load the received state, if this group is behind."""
    DISCONNECT = auto()
    """Close the connections of the version, so that its other groups no longer wait for this one."""
    MEET_AGAIN = auto()
    """Meet the groups of the same version once more: `Met` or `NotMet`."""
    LOAD = auto()
    """Load the newest checkpoint, if it is newer than the state: `Loaded`."""
    HEAL = auto()
    """Send or receive the state now: `Healed`."""
    COMPUTE = auto()
    """Let the script compute a step, or the inner steps of a round: `Computed`."""
    VOTE = auto()
    """Average, wait for a heal that is under way, and vote: `Voted`."""
    APPLY = auto()
    """Let the script continue with the present gradients: `Applied`."""
    END = auto()
    """Wait for a heal that is under way, and vote for the end: `TrainingEnded`."""
    LEAVE = auto()
    """Training has ended."""


@dataclass(frozen=True)
class Meet:
    """Wait for a version, connect to its groups and agree with them: `Met` or `NotMet`."""

    newest: int
    """Least number of the version."""


@dataclass(frozen=True)
class Commit:
    """Record that a step is committed."""

    step: int
    groups: Indices
    """Groups whose gradients are in it."""


@dataclass(frozen=True)
class ReportPosition:
    """Report the position of this process to the agent."""

    version: int
    applied: int


Act = Do | Meet | Commit | ReportPosition


# --- the state -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReplicaState:
    """A process's part in the training of all groups."""

    standing: GroupStanding
    sync_every: int | None = None
    """Number of inner steps in a round; None if each step is averaged."""
    total: int | None = None
    """Number of steps after which training ends; inner steps with rounds."""
    inner_steps: int = 0
    """Number of inner steps that the state has."""
    quorum: Quorum | None = None
    """Newest quorum with this group."""
    heal_step: int | None = None
    """Step during which this group sends or receives the state; None without a heal."""
    is_over: bool = False
    """Whether no further step is made."""
    is_open: bool = False
    """Whether a step is begun and not committed yet."""
    in_script: bool = False
    """Whether the script waits for the end of a step."""
    missed: int = 0
    """Number of the version after a step without a part of this group; 0 for none."""
    averaged: Indices = ()
    """Contributors of the last averaged step."""
    contributing: Indices = ()
    """Contributors of this step, at its beginning."""
    following: Indices = ()
    """Contributors of the next step, in the version in which this one is committed: equal for a group that
    begins the next one there, and for one that rolls, in a later version."""

    @property
    def member(self) -> MeetingGroup:
        return self.standing.counted

    @property
    def applied(self) -> int:
        """Number of steps that this group has taken part in."""
        return self.member.applied

    @property
    def steps_of_state(self) -> int:
        """Number of the script's steps that the state has."""
        return self.standing.own.applied if self.sync_every is None else self.inner_steps

    @property
    def is_done(self) -> bool:
        """Whether the script has no further step to make."""
        made = self.applied if self.sync_every is None else self.inner_steps
        return self.is_over or (self.total is not None and made >= self.total)

    def as_member(self, version: int) -> MeetingGroup:
        """Return this group's state at the meeting of a version."""
        member = self.standing.member(version)
        is_last = self.is_over and member.trained
        return replace(member, is_last=is_last, inner_steps=self.inner_steps)

    def after_loading(self, step: int | None, version: int) -> ReplicaState:
        """Return the state after a look for a checkpoint; see `GroupStanding.after_loading`."""
        if self.sync_every is None or step is None:
            return replace(self, standing=self.standing.after_loading(step, version))
        standing = self.standing.after_loading(step // self.sync_every, version)
        return replace(self, standing=standing, inner_steps=step)

    def in_next_round(self) -> ReplicaState:
        """Return the state of a process that lives on into another round of its group.

        Its live state may be in the middle of a step, and differs from newcomers': so it begins like those,
        without a step, and with a checkpoint that may be newer.
        """
        standing = GroupStanding.at_start(0, has_checkpoints=True)
        return ReplicaState(standing, self.sync_every, self.total)

    def counting(self, member: MeetingGroup) -> ReplicaState:
        """Return the state with another number of steps that the group has taken part in."""
        return replace(self, standing=replace(self.standing, counted=member))

    def heals_first(self, agreement: GroupAgreement) -> bool:
        """Return whether the groups behind heal before a step, since no group is in one."""
        if self.sync_every is not None or agreement.is_first or agreement.is_over:
            return True
        return self.total is not None and agreement.step >= self.total


Next = tuple[ReplicaState, tuple[Act, ...]]
"""The next state, and acts in their order. Only the last act is answered by an event."""


def after(state: ReplicaState, event: Event) -> Next:
    """Return the next state and acts after an event."""
    match event:
        case LoopStarted():
            return state, (Meet(1),)
        case NotMet(newest):
            return state, (Do.DISCONNECT, Meet(newest))
        case Met(quorum):
            return _after_meeting(state, quorum)
        case Loaded(step, version):
            return state.after_loading(step, version), (Do.MEET_AGAIN,)
        case Healed(ok):
            return _begin(state, Do.END_HEAL) if ok else _meet_next(state)
        case Computed(inner_steps):
            return _vote(_computed(state, inner_steps))
        case Voted():
            return _after_vote(state, event)
        case Applied():
            return _go_on(replace(state, in_script=False))
        case TrainingEnded():
            return _after_end(state, event)


# --- quorums ---------------------------------------------------------------------------------------------


def _quorum(state: ReplicaState) -> Quorum:
    assert state.quorum is not None
    return state.quorum


def _meet_next(state: ReplicaState, newest: int = 0) -> Next:
    return state, (Meet(max(newest, _quorum(state).version + 1)),)


def _after_meeting(state: ReplicaState, quorum: Quorum) -> Next:
    agreement = quorum.agreement
    if agreement.loads_first:
        return state, (Do.MEET_AGAIN if state.standing.member(quorum.version).has_loaded else Do.LOAD,)
    state = replace(state, quorum=quorum, heal_step=None, is_over=agreement.is_over)
    acts: tuple[Act, ...] = ()
    if quorum.place in agreement.rolls:
        member = MeetingGroup(True, state.applied + 1, agreement.applied_in)
        acts = (Do.TAKE_MEAN, *_noted(state, member))
        state = replace(state.counting(member), is_open=False)
    if agreement.behind and state.heals_first(agreement):
        return state, (*acts, Do.HEAL)
    return _begin(state, *acts)


def _begin(state: ReplicaState, *before: Act) -> Next:
    """Continue in a quorum, with the step that this process is in, or with the next one."""
    quorum = _quorum(state)
    agreement, acts, at_once = quorum.agreement, [*before], state.heals_first(quorum.agreement)
    if quorum.is_behind and (state.is_open or not at_once):
        acts.append(Do.DROP_GRADIENTS)
    if at_once:  # the groups behind have no part in the step that they were in
        state = replace(state, is_open=state.is_open and not quorum.is_behind, following=())
    if agreement.is_first:  # a group that began in an earlier version, with others, has another state
        agreement = replace(agreement, applied_in=quorum.version)
    standing = state.standing.after_meeting(agreement, quorum.place, at_once=at_once)
    state = replace(state, standing=standing)
    if state.sync_every is not None:
        state = replace(state, is_open=agreement.healing_steps > 0)
        if quorum.is_behind:
            state = replace(state, inner_steps=agreement.inner_steps)
    if quorum.heals and not at_once:
        state = replace(state, heal_step=agreement.step + 1)
    return _go_on(state, *acts, ReportPosition(quorum.version, state.applied))


def _go_on(state: ReplicaState, *before: Act) -> Next:
    """Continue with the vote on an open step, the script, or the acts between two steps."""
    quorum = _quorum(state)
    if state.is_open:
        return _vote(state, *before)
    if state.in_script:
        return state, (*before, Do.APPLY)
    if state.missed:
        return replace(state, missed=0), (*before, Meet(state.missed))
    acts = list(before)
    if state.heal_step is not None and state.applied == state.heal_step:
        acts.append(Do.BEGIN_HEAL)
    elif state.heal_step is not None and state.applied < state.heal_step and quorum.is_behind:
        # It takes part in the others' step, so that none waits for it.
        return _vote(replace(state, is_open=True), *acts)
    if state.is_done:
        return state, (*acts, Do.END)
    contributing = state.following or quorum.contributors(state.applied)
    opens = state.sync_every is None
    return replace(state, contributing=contributing, is_open=opens, in_script=opens), (*acts, Do.COMPUTE)


# --- commits ---------------------------------------------------------------------------------------------


def _computed(state: ReplicaState, inner_steps: int) -> ReplicaState:
    if state.sync_every is None:
        return state
    state = replace(state, inner_steps=inner_steps, is_open=True)
    return state.counting(replace(state.member, is_ready=True))


def _vote(state: ReplicaState, *before: Act) -> Next:
    quorum, step = _quorum(state), state.applied
    averaged, following = quorum.contributors(step), quorum.contributors(step + 1)
    return replace(state, averaged=averaged, following=following), (*before, Do.VOTE)


def _after_vote(state: ReplicaState, vote: Voted) -> Next:
    version = _quorum(state).version
    if vote.ok:
        return _commit(state, vote.ends)
    if not state.member.trained:  # its gradients do not count, and the script continues without a step
        missed = max(vote.newest, version + 1)
        state = replace(state, is_open=False, following=(), missed=missed)
        return _go_on(state, Do.DROP_GRADIENTS)
    complete_in, ends = (version, vote.ends) if vote.has_all else (0, False)
    state = state.counting(replace(state.member, complete_in=complete_in, ends=ends))
    return _meet_next(state, vote.newest)


def _commit(state: ReplicaState, is_over: bool) -> Next:
    quorum, acts, heal_step = _quorum(state), list[Act](), state.heal_step
    if state.applied == heal_step:
        heal_step = None
        acts.append(Do.END_HEAL)
    if heal_step is not None and quorum.is_behind:  # the state of these gradients is not here
        acts.append(Do.DROP_GRADIENTS)
        member = replace(state.member, applied=state.applied + 1)
    else:
        acts.append(Do.TAKE_MEAN)
        member = MeetingGroup(True, state.applied + 1, quorum.version)
    acts += _noted(state, member)
    standing = replace(state.standing, counted=member)
    state = replace(state, standing=standing, heal_step=heal_step, is_over=is_over, is_open=False)
    return _go_on(state, *acts)


def _noted(state: ReplicaState, member: MeetingGroup) -> tuple[Act, ...]:
    """Return the acts that record the step after which this group is that member."""
    return Commit(state.applied, state.averaged), ReportPosition(_quorum(state).version, member.applied)


def _after_end(state: ReplicaState, end: TrainingEnded) -> Next:
    """Leave, or meet again, with the state if it has arrived, since its senders may have left."""
    act: Act = Do.LEAVE if end.ok else Meet(max(end.newest, _quorum(state).version + 1))
    if state.heal_step is None or not end.has_state:
        return state, (act,)
    quorum = _quorum(state)
    member = MeetingGroup(True, state.applied, quorum.version) if quorum.is_behind else state.member
    return replace(state.counting(member), heal_step=None), (Do.END_HEAL, act)
