"""What groups begin with, whatever dies when: the state of those that train, else the newest checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.replicas import client
from crds.phases import JobPhase, RendezvousPhase
from crds.replica_groups import Membership
from dlr.replicas.agreement import HEALING_STEPS, Agreement, Standing, agree
from reconcilers.groups.membership import GroupView, decide

GROUPS = 3


@dataclass
class Processes:
    """One start of a group's processes."""

    round: int
    standing: Standing
    state: int
    """Number of steps that the parameters really have."""
    is_ready: bool = False


@dataclass
class Job:
    """Groups, their checkpoints, and the membership that the controller publishes."""

    minimum: int
    running: dict[int, Processes] = field(default_factory=dict)
    memory: dict[int, int] = field(default_factory=dict)
    storage: int = 0
    published: Membership = field(default_factory=Membership)
    agreement: Agreement | None = None
    rounds: int = 0

    @property
    def members(self) -> list[int]:
        return [place.index for place in self.published.groups]

    def trains(self, index: int) -> bool:
        return index in self.members and self.running[index].standing.counted.trained

    def read_checkpoint(self, index: int, newer_than: int) -> int | None:
        """The newest of this group's memory and the storage."""
        assert not any(self.trains(other) for other in self.members if other != index), "it waits for storage"
        found = max(self.memory.get(index, 0), self.storage)
        return found if found > newer_than else None

    def start(self, index: int) -> None:
        """Start the group's processes, up to `join`."""
        if index in self.running:
            return
        self.rounds += 1
        members = tuple((place.index, place.round) for place in self.published.groups)
        looks = client.Membership(self.published.version, members, (index, self.rounds))
        standing, state = Standing.at_start(0, has_checkpoints=True), 0
        if not looks.others:
            step = self.read_checkpoint(index, 0)
            standing, state = standing.after_loading(step, looks.version), step or 0
        self.running[index] = Processes(self.rounds, standing, state)

    def get_ready(self, index: int) -> None:
        if index in self.running:
            self.running[index].is_ready = True
            self.publish()

    def publish(self) -> None:
        views = [
            GroupView(
                index,
                JobPhase.RUNNING,
                each.round,
                RendezvousPhase.FORMED,
                ready_round=each.round if each.is_ready else 0,
            )
            for index, each in sorted(self.running.items())
        ]
        decided = decide(self.published, views, self.minimum)
        assert decide(decided, views, self.minimum) == decided, (
            "a controller that starts again changes nothing"
        )
        if decided != self.published:
            self.published = decided
            if decided.groups:
                self.meet()

    def meet(self) -> None:
        here = [self.running[index] for index in self.members]
        version = self.published.version
        agreed = agree([each.standing.member(version) for each in here])
        if agreed.loads_first:
            for index, each in zip(self.members, here, strict=True):
                if not each.standing.member(version).has_loaded:
                    step = self.read_checkpoint(index, each.standing.own.applied)
                    each.standing, each.state = each.standing.after_loading(step, version), step or each.state
            agreed = agree([each.standing.member(version) for each in here])
            assert not agreed.loads_first
        if agreed.is_first:
            survives = max(self.storage, *(self.memory.get(index, 0) for index in self.members), 0)
            assert here[agreed.leader].state >= survives, "training begins from less than what survives"
            assert here[agreed.leader].state == max(each.state for each in here)
        for place, each in enumerate(here):
            if agreed.is_first and place in agreed.behind:
                each.state = here[agreed.leader].state
            each.standing = each.standing.after_meeting(agreed, place, at_once=agreed.is_first)
        self.agreement = agreed

    def make_step(self) -> None:
        if self.agreement is None or not self.members:
            return
        here = [self.running[index] for index in self.members]
        step = here[self.agreement.leader].standing.counted.applied
        is_healed = step == self.agreement.step + HEALING_STEPS - 1
        for each in here:
            counted = each.standing.counted
            if is_healed and not counted.trained:
                each.state = here[self.agreement.leader].state
            trained = counted.trained or is_healed
            counted = type(counted)(trained, step + 1, self.published.version)
            each.standing = replace(each.standing, counted=counted)
        for each in here:
            each.state += each.standing.counted.trained
            if each.standing.counted.trained:
                assert each.state == step + 1, "a state is counted with steps that it has not"

    def save(self, index: int, to_storage: bool) -> None:
        if index in self.members and self.trains(index):
            self.memory[index] = self.running[index].state
            if to_storage:
                self.storage = max(self.running[index].state, self.storage)

    def kill(self, indices: set[int], *, with_pods: bool) -> None:
        for index in indices & self.running.keys():
            del self.running[index]
            if with_pods:
                self.memory.pop(index, None)
        self.publish()


groups = st.integers(0, GROUPS - 1)
events = st.one_of(
    st.tuples(st.just("start"), groups),
    st.tuples(st.just("ready"), groups),
    st.tuples(st.just("steps"), st.integers(1, 4)),
    st.tuples(st.just("save"), groups, st.booleans()),
    st.tuples(st.just("kill"), st.sets(groups, min_size=1), st.booleans()),
)


@settings(max_examples=400, deadline=None)
@given(st.integers(1, 2), st.lists(events, min_size=20, max_size=80))
def test_no_group_waits_for_storage_while_another_trains_nor_trains_from_less_than_what_survives(
    minimum: int, happens: list[tuple[object, ...]]
) -> None:
    job = Job(minimum)
    for index in range(GROUPS):
        job.start(index)
    for event in happens:
        match event:
            case ("start", int(index)):
                job.start(index)
            case ("ready", int(index)):
                job.get_ready(index)
            case ("steps", int(number)):
                for _ in range(number):
                    job.make_step()
            case ("save", int(index), bool(to_storage)):
                job.save(index, to_storage)
            case ("kill", set(indices), bool(with_pods)):
                job.kill(indices, with_pods=with_pods)
