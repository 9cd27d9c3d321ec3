from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.facts.world import (
    WAIT,
    AgentVerb,
    AgentWorld,
    ExitReason,
    Member,
    NextAction,
    WorldView,
    next_action,
    planned_tier,
    tier_of_a_stop,
)
from crds.agent_report import MAX_REQUEST, AgentState
from crds.checkpoint_files import KeptIn
from crds.names import ANNOTATION_STACKS
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.job.published import world_spec

ME, PEER = Member(1, 2), Member(2, 1)

members = st.lists(
    st.builds(Member, st.integers(0, 3), st.integers(1, 3)), max_size=4, unique_by=lambda m: m.index
).map(lambda found: tuple(sorted(found, key=lambda m: m.index)))
worlds = st.builds(AgentWorld, st.integers(0, 5), st.sampled_from(RendezvousPhase), members)
rounds = st.integers(0, 5)
states = st.sampled_from(AgentState)
alive_phases = st.sampled_from(["", "Pending", "Running", "Scaling", "Restarting"])
phases = st.one_of(alive_phases, st.sampled_from(["Succeeded", "Failed", "Suspended"]))


def formed(round_: int, *in_it: Member, phase: RendezvousPhase = RendezvousPhase.FORMED) -> AgentWorld:
    return AgentWorld(round_, phase, in_it)


def act(world: AgentWorld | None, observed: int = 3, state: AgentState = AgentState.RUNNING) -> NextAction:
    return next_action(world, ME, observed, state, "Running")


@given(worlds, rounds, states, phases)
def test_started_is_only_a_newer_formed_world_that_includes_me(
    world: AgentWorld, observed: int, state: AgentState, phase: str
) -> None:
    action = next_action(world, ME, observed, state, phase)
    if action.verb is AgentVerb.START:
        assert world.phase is RendezvousPhase.FORMED
        assert world.round > observed
        assert ME in world.members
        assert action.round == world.round


@given(worlds, rounds, st.sampled_from([s for s in AgentState if s is not AgentState.STOPPED]), alive_phases)
def test_a_newer_formed_world_that_includes_me_is_always_started(
    world: AgentWorld, observed: int, state: AgentState, phase: str
) -> None:
    if world.phase is RendezvousPhase.FORMED and world.round > observed and ME in world.members:
        assert next_action(world, ME, observed, state, phase) == NextAction(AgentVerb.START, world.round)


@given(worlds, rounds, states, phases)
def test_acting_settles(world: AgentWorld, observed: int, state: AgentState, phase: str) -> None:
    """What was done is not asked for again: no agent ever spins on an unchanged world."""
    action = next_action(world, ME, observed, state, phase)
    if action.verb is AgentVerb.START:
        assert next_action(world, ME, world.round, AgentState.RUNNING, phase) == WAIT
        assert next_action(world, ME, world.round, AgentState.FAILED, phase) == WAIT
        assert next_action(world, ME, world.round, AgentState.SUCCEEDED, phase) == WAIT
    elif action.verb is AgentVerb.STAND_BY:
        assert action.round == world.round
        assert next_action(world, ME, world.round, AgentState.READY, phase) == WAIT
    elif action.verb is AgentVerb.EXIT:
        assert next_action(world, ME, observed, AgentState.STOPPED, phase) == WAIT


def test_world_that_hangs_asks_its_members_where_they_are() -> None:
    asked = Rendezvous(round=1, phase=RendezvousPhase.REFORMING, hang_since=datetime.now(UTC))
    for world in (asked, asked.model_copy(update={"hang_since": None})):
        read = AgentWorld.parse(world_spec({"status": {"rendezvous": world.to_wire()}}))
        assert read is not None
        assert read.hangs is (world is asked)


def test_a_request_for_stacks_comes_with_the_world_and_as_long_as_an_answer_may_name_it() -> None:
    job = {"metadata": {"annotations": {ANNOTATION_STACKS: "r" * 70}}, "status": {}}
    assert WorldView.parse({"spec": world_spec(job)}).asks_for_stacks == "r" * MAX_REQUEST


@given(worlds, rounds, states, alive_phases)
def test_an_older_world_says_nothing(world: AgentWorld, observed: int, state: AgentState, phase: str) -> None:
    """A cache behind the truth, or a job made anew under the same name."""
    if world.round < observed:
        assert next_action(world, ME, observed, state, phase) == WAIT


@given(worlds, rounds, alive_phases)
def test_nothing_runs_on_in_a_world_that_is_given_up(world: AgentWorld, observed: int, phase: str) -> None:
    if world.round >= observed and world.phase is not RendezvousPhase.FORMED:
        assert next_action(world, ME, observed, AgentState.RUNNING, phase).verb in (
            AgentVerb.STAND_BY,
            AgentVerb.EXIT,
        )


def test_the_rules_one_by_one() -> None:
    higher = Member(ME.index, ME.incarnation + 1)
    other = Member(0, 1)
    reforming, forming = RendezvousPhase.REFORMING, RendezvousPhase.FORMING
    # The world that runs stands.
    assert act(formed(3, ME)) == WAIT
    # It goes on without me.
    assert act(formed(4, other)) == NextAction(AgentVerb.STAND_BY, 4)
    # An older life of mine is in it: not me.
    assert act(formed(4, Member(ME.index, 1)), state=AgentState.READY) == NextAction(AgentVerb.STAND_BY, 4)
    # It is given up.
    assert act(formed(3, ME, phase=reforming), state=AgentState.FAILED) == WAIT
    assert act(formed(3, phase=forming)) == NextAction(AgentVerb.STAND_BY, 3)
    # Formed and given up again before I saw it.
    assert act(formed(4, ME, phase=reforming)) == NextAction(AgentVerb.STAND_BY, 4)
    # Somebody has my place.
    assert act(formed(4, higher)) == NextAction(AgentVerb.EXIT, reason=ExitReason.REPLACED)
    # I am done, unless a newer world wants me again.
    assert act(formed(3, ME, phase=reforming), state=AgentState.SUCCEEDED) == WAIT
    assert act(formed(4, other), state=AgentState.SUCCEEDED) == WAIT
    # There is no world.
    assert act(None) == WAIT
    assert act(formed(0, phase=forming), observed=0, state=AgentState.READY) == WAIT


def test_job_end_ends_the_agent() -> None:
    for phase, reason in (
        ("Succeeded", ExitReason.JOB_SUCCEEDED),
        ("Failed", ExitReason.JOB_FAILED),
        ("Suspended", ExitReason.JOB_SUSPENDED),
    ):
        action = next_action(formed(4, ME), ME, 3, AgentState.RUNNING, phase)
        assert action == NextAction(AgentVerb.EXIT, reason=reason)


def test_an_agent_in_which_nothing_runs_leaves_no_job_that_seems_to_be_suspended() -> None:
    """The ElasticWorld of a job that was resumed may be older than the agent: it would be one more failure."""
    assert next_action(formed(4, ME), ME, 3, AgentState.READY, "Suspended") == WAIT


def test_nonsense_is_no_world() -> None:
    assert WorldView.parse({}) == WorldView()
    assert AgentWorld.parse({"round": 1, "phase": "Dancing"}) is None
    assert AgentWorld.parse({"round": 1, "phase": "Formed", "members": [1], "incarnations": []}) is None


@pytest.mark.parametrize(
    ("action", "newest", "tier"),
    [
        (NextAction(AgentVerb.WAIT), formed(3, ME, PEER), None),
        (NextAction(AgentVerb.START, 4), formed(4, ME, PEER), KeptIn.MEMORY),
        (NextAction(AgentVerb.START, 4), formed(4, ME), KeptIn.STORAGE),
        (
            NextAction(AgentVerb.START, 4),
            formed(4, ME, Member(PEER.index, PEER.incarnation + 1)),
            KeptIn.STORAGE,
        ),
        (NextAction(AgentVerb.STAND_BY, 4), formed(4, PEER), KeptIn.STORAGE),
        (NextAction(AgentVerb.EXIT, reason=ExitReason.JOB_SUSPENDED), formed(3, ME, PEER), KeptIn.STORAGE),
        (NextAction(AgentVerb.EXIT, reason=ExitReason.JOB_FAILED), formed(3, ME, PEER), None),
    ],
)
def test_without_replicas_memory_keeps_the_last_step_only_if_no_pod_goes(
    action: NextAction, newest: AgentWorld, tier: KeptIn | None
) -> None:
    assert planned_tier(action, formed(3, ME, PEER), newest) is tier


FOUR = tuple(Member(index, 1) for index in range(4))
PEERS = (2, 3, 0, 1)


@pytest.mark.parametrize(
    ("newest", "tier"),
    [
        (formed(4, *FOUR[:2]), KeptIn.MEMORY),
        (formed(4, FOUR[0], FOUR[2]), KeptIn.STORAGE),
        (formed(4, *FOUR[:3], Member(3, 2)), KeptIn.MEMORY),
        (formed(4, FOUR[0], Member(1, 2), FOUR[2], Member(3, 2)), KeptIn.STORAGE),
        (formed(3, *FOUR, phase=RendezvousPhase.REFORMING), KeptIn.STORAGE),
    ],
)
def test_with_replicas_memory_keeps_it_if_the_peer_of_each_who_goes_stays(
    newest: AgentWorld, tier: KeptIn
) -> None:
    joined = formed(3, *FOUR)
    assert planned_tier(NextAction(AgentVerb.START, 4), joined, newest, PEERS) is tier
    assert planned_tier(NextAction(AgentVerb.START, 4), joined, newest, None) is KeptIn.STORAGE


def test_a_signal_means_storage_unless_a_world_does_without_this_pod() -> None:
    joined, smaller = formed(3, *FOUR), formed(4, *FOUR[:3])
    assert tier_of_a_stop(FOUR[3], joined, smaller, PEERS) is KeptIn.MEMORY
    assert tier_of_a_stop(FOUR[3], joined, smaller, None) is KeptIn.STORAGE
    assert tier_of_a_stop(FOUR[3], joined, joined, PEERS) is KeptIn.STORAGE
    assert tier_of_a_stop(FOUR[2], joined, smaller, PEERS) is KeptIn.STORAGE, "others may be deleted with it"
    reforming = formed(3, *FOUR, phase=RendezvousPhase.REFORMING)
    assert tier_of_a_stop(FOUR[3], joined, reforming, PEERS) is KeptIn.STORAGE
