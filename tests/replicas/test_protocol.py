"""What a process does next, where an order of events has once led it astray."""

from __future__ import annotations

from agent.replicas.facts import VersionGroups
from dlr.replicas.agreement import GroupStanding, agree
from dlr.replicas.protocol import (
    Act,
    Do,
    Event,
    Healed,
    Meet,
    Met,
    NotMet,
    Quorum,
    ReplicaState,
    TrainingEnded,
    after,
)


class Group:
    """A group of one process."""

    def __init__(self, index: int) -> None:
        self.index, self.state = index, ReplicaState(GroupStanding.at_start(0))

    def go_on(self, event: Event) -> tuple[Act, ...]:
        self.state, acts = after(self.state, event)
        return acts


def meet(version: int, *groups: Group) -> list[tuple[Act, ...]]:
    """Have groups meet; return what each does next."""
    agreement = agree([group.state.as_member(version) for group in groups])
    places = tuple((group.index, 1) for group in groups)
    return [
        group.go_on(Met(Quorum(VersionGroups(version, places, (group.index, 1)), agreement)))
        for group in groups
    ]


def test_the_first_to_make_a_step_need_not_be_the_one_whose_state_was_taken() -> None:
    """The leader misses the end of the heal, since a third group comes: the other one has its state, and leads."""
    first, second, third = (Group(index) for index in range(3))
    meet(1, first, second)
    assert second.go_on(Healed(ok=True))[-1] is Do.COMPUTE
    assert first.go_on(Healed(ok=False)) == (Meet(2),)
    assert second.go_on(NotMet(2)) == (Do.DISCONNECT, Meet(2)), "those that met would wait for it"
    meet(2, first, second, third)
    quorum = second.state.quorum
    assert quorum is not None and not quorum.agreement.is_first
    assert quorum.agreement.leader == 1 and quorum.agreement.behind == {0, 2}
    assert quorum.contributors(0) == quorum.contributors(1) == (1,)


def test_a_state_that_has_arrived_counts_though_the_vote_for_the_end_is_overtaken() -> None:
    """The group that had it may have left: training would begin from nothing."""
    group, leader = Group(0), Group(1)
    leader.state = ReplicaState(GroupStanding.at_start(7), total=8)
    group.state = ReplicaState(GroupStanding.at_start(0), total=8)
    meet(1, leader)
    meet(2, group, leader)
    state = group.state
    for heal_step, has_state, counts in ((8, True, True), (8, False, False)):
        group.state = ReplicaState(state.standing, total=8, quorum=state.quorum, heal_step=heal_step)
        acts = group.go_on(TrainingEnded(ok=False, has_state=has_state, newest=3))
        assert acts[-1] == Meet(3)
        assert (Do.END_HEAL in acts) == group.state.member.trained == counts
