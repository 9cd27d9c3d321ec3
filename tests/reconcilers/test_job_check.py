from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crds.agent_report import AgentState
from crds.nodecheck import NodeCheck
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.failure.facts import Blame, Hold
from reconcilers.nodecheck.job_checks import (
    JobChecks,
    check_name,
    new_check,
    next_number,
    outdated,
)
from reconcilers.observed.slots import named
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS
from reconcilers.world.decision import Constraints, Decision
from reconcilers.world.participants import Bounds, Participant, on_faulty_nodes
from reconcilers.world.vetting import Claim
from tests.reconcilers.api import Api
from tests.reconcilers.build import NOW, bounds, decide, in_lists, later, participant
from tests.reconcilers.cluster_model import Script, add_nodes
from tests.reconcilers.job_stage import checked_job, job_check
from tests.reconcilers.life import JOB, Run, edit, lose_pod, submit
from tests.reconcilers.test_rendezvous import formed, published_worlds, running, situations

FORMED, REFORMING = RendezvousPhase.FORMED, RendezvousPhase.REFORMING
LATE = later(1_000)


def unfinished(number: int = 1, workers: list[int] | None = None) -> NodeCheck:
    return job_check(number, "Running", workers=workers, ended=later(number))


def of(*unchecked: int, check: NodeCheck | None = None, refused: bool = False) -> Constraints:
    claim = JobChecks((check,)).claim if check is not None else None
    return Constraints(unvetted=frozenset(unchecked), claim=claim, request_refused=refused)


# --- which check, and of whom -----------------------------------------------------------------------


def test_newcomers_are_tested_while_the_others_train_on() -> None:
    people = [*running(0, 1), participant(2), participant(3)]
    course = decide(formed(0, 1), people, bounds(4), NOW, of(0, 3))
    assert course.rendezvous == formed(0, 1) and course.to_vet == (2, 3)
    grown = decide(formed(0, 1), people, bounds(4), NOW, of(0, 1))
    assert grown.rendezvous.members == [0, 1, 2, 3], "members are not stopped to be tested"


@pytest.mark.parametrize("moves", [False, True])
def test_newcomers_that_were_tested_do_not_wait_for_a_checkpoint_once_more(*, moves: bool) -> None:
    """A check comes behind the wait, and after it they join anew."""
    limits = bounds(2 if moves else 3, 2, grow_at_checkpoint_seconds=60)

    def people(joined_seconds: float) -> list[Participant]:
        new = participant(2, seconds_since_joined=joined_seconds, replaces=1 if moves else None)
        return [*running(0, 1), new]

    waits = decide(formed(0, 1), people(0), limits, NOW, of(2))
    assert waits.rendezvous.checkpoint_awaited_since == NOW and waits.look_again_seconds == 60
    checked = decide(waits.rendezvous, people(60), limits, later(60), of(2))
    assert checked.to_vet == (2,) and checked.rendezvous == waits.rendezvous
    during = decide(checked.rendezvous, people(0), limits, later(61), of(check=unfinished(1, [2])))
    assert during.rendezvous == waits.rendezvous
    after = decide(during.rendezvous, people(0), limits, later(90), of())
    assert after.rendezvous.round == 2 and 2 in after.rendezvous.members
    assert after.rendezvous.checkpoint_awaited_since is None


def test_a_tested_target_that_waits_for_another_does_not_wait_for_a_checkpoint_once_more() -> None:
    limits = bounds(2, grow_at_checkpoint_seconds=60, last_call_seconds=10)

    def people(joined_seconds: float) -> list[Participant]:
        ready = participant(2, seconds_since_joined=joined_seconds, replaces=1)
        return [*running(0, 1), ready, participant(3, None, replaces=0)]

    awaited = formed(0, 1).model_copy(update={"checkpoint_awaited_since": NOW})
    tested = decide(awaited, people(0), limits, later(90), of())
    assert tested.rendezvous == awaited and tested.look_again_seconds == 10
    after = decide(tested.rendezvous, people(10), limits, later(100), of())
    assert after.rendezvous.round == 2 and 2 in after.rendezvous.members


@pytest.mark.parametrize("standby", [0, 1])
def test_a_world_whose_members_all_move_trains_on_while_their_successors_are_tested(standby: int) -> None:
    """Nobody goes on, so the old ones leave first; that was given up, and made again, in each look."""
    people = [*running(0, 1), participant(2, replaces=0), participant(3, replaces=1)]
    world, limits = formed(0, 1), bounds(2, standby=standby)
    first = decide(world, people, limits, NOW, of(2, 3))
    assert first.rendezvous == world and first.to_vet == (2, 3) and not first.breaks
    during = decide(world, people, limits, NOW, of(2, 3, check=unfinished(1, [2, 3])))
    assert during.rendezvous == world and not during.breaks
    after = decide(world, people, limits, NOW, of())
    assert after.rendezvous.phase is REFORMING, "they leave"
    left = [*(replace(p, report=None, alive=False) for p in people[:2]), *people[2:]]
    assert decide(after.rendezvous, left, limits, NOW, of()).rendezvous.members == [2, 3]


def test_a_check_of_a_member_gives_the_world_up_and_says_why() -> None:
    for check in (unfinished(7, [1, 2]), unfinished(7)):
        course = decide(formed(0, 1), running(0, 1), bounds(2), NOW, of(check=check))
        held = course.rendezvous
        assert (held.phase, held.reforming_since) == (REFORMING, NOW) and not course.breaks
        assert held.reason.startswith("node check digits-check-7 tests worker")


def test_a_world_whose_training_is_ending_is_not_given_up_for_a_check() -> None:
    people = [participant(0, AgentState.SUCCEEDED, 1), *running(1)]
    course = decide(formed(0, 1), people, bounds(2), NOW, of(check=unfinished()))
    assert course.rendezvous == formed(0, 1)


def test_who_is_found_faulty_does_not_join_and_leaves_a_world_that_it_is_in() -> None:
    faulty = {1: "node check c found b faulty"}
    people = [participant(0), participant(1, seconds_since_joined=99)]
    limits = bounds(2, 1, last_call_seconds=0)
    apart = decide(Rendezvous(), on_faulty_nodes(people, faulty), limits, NOW)
    assert apart.rendezvous.members == [0]
    broken = decide(formed(0, 1), on_faulty_nodes(running(0, 1), faulty), bounds(2), NOW)
    assert broken.rendezvous.phase is REFORMING
    assert "found b faulty" in broken.rendezvous.reason


def test_replacements_have_their_time_from_the_end_of_the_check_on() -> None:
    broken = formed(0, 1).model_copy(update={"phase": REFORMING, "reforming_since": NOW})
    waits = decide(broken, running(0), bounds(2), LATE, Constraints(claim_has_ended=True))
    assert (waits.rendezvous.reforming_since, waits.look_again_seconds) == (LATE, 60)
    stands = decide(formed(0), running(0), bounds(1), LATE, Constraints(claim_has_ended=True))
    assert stands.rendezvous == formed(0)


# --- the object -------------------------------------------------------------------------------------


def test_a_check_is_the_jobs_own_and_carries_its_policy() -> None:
    policy = {"cordon": False, "timeoutSeconds": 60, "stragglerRatio": 2.0, "topologyKeys": ["rack"]}
    made = NodeCheck.model_validate(new_check(checked_job(2, policy), "digits-check-1", (0, 1)))
    assert made.spec.job_name == "digits" and made.spec.workers == [0, 1] and not made.spec.cordon
    assert (made.spec.timeout_seconds, made.spec.straggler_ratio, made.spec.fresh_seconds) == (60, 2.0, 3_600)
    assert made.spec.topology_keys == ["rack"]
    owner = new_check(checked_job(), "x", (0,))["metadata"]["ownerReferences"][0]
    assert owner["uid"] == "uid-digits" and owner["controller"]


def test_checks_are_numbered_past_all_that_have_such_a_name() -> None:
    assert next_number("digits", []) == 1
    taken = ["digits-check-2", "digits-check-10", "other-check-99", "digits-check-x", "digits"]
    assert next_number("digits", taken) == 11
    assert next_number("digits", ["digits-check-999999999", "digits-check-1000000000"]) == 1_000_000_001


@given(st.text("abc-", min_size=1, max_size=45), st.integers(1, 10**8))
def test_a_checks_name_fits_and_is_found_again(job: str, number: int) -> None:
    name = check_name(job, number)
    assert len(name) <= 45 and next_number(job, [name]) == number + 1


def test_jobs_with_long_names_do_not_share_their_checks_names() -> None:
    one, two = "x" * 44 + "1", "x" * 44 + "2"
    assert check_name(one, 1) != check_name(two, 1)


def test_only_the_newest_finished_checks_of_the_jobs_own_are_kept() -> None:
    ended = [job_check(number, ended=later(number)) for number in range(1, 9)]
    theirs, going_on = job_check(20, ended=NOW), job_check(21, "Running", ended=later(-5))
    owned = {c.metadata.uid for c in [*ended, going_on]}
    assert [c.metadata.name[-1] for c in outdated([*ended, theirs, going_on], owned)] == ["3", "2", "1"]


def test_workers_are_named_and_many_are_counted() -> None:
    assert [named([1]), named(range(7))] == ["worker 1", "workers 0, 1, 2, 3, 4 and 2 more"]


# --- invariants -------------------------------------------------------------------------------------

INDICES = st.frozensets(st.integers(0, 7))


@given(
    situations(),
    published_worlds(),
    INDICES,
    INDICES,
    st.one_of(st.none(), st.just([]), st.lists(st.integers(0, 7), min_size=1)),
    st.floats(0, 100),
)
def test_no_world_is_formed_during_a_check_and_none_with_the_unchecked_or_faulty(
    situation: tuple[list[Participant], Bounds],
    published: Rendezvous,
    unchecked: frozenset[int],
    faulty: frozenset[int],
    active: list[int] | None,
    seconds: float,
) -> None:
    """Invariants; also: breaks are those of `propose`, and a new world, or its check, is never forgotten.

    A world that is only to be left by some stands until the check is over.
    """
    people, limits = situation
    people = on_faulty_nodes(people, dict.fromkeys(faulty, "found faulty"))
    check = None if active is None else unfinished(workers=active or None)
    found = decide(published, people, limits, later(seconds), of(*unchecked, check=check))
    world = found.rendezvous
    plain = decide(published, people, limits, later(seconds))
    new = plain.rendezvous.round != published.round
    is_held = new and not plain.broken and (active is not None or found.to_vet)
    assert found.breaks == (() if is_held else plain.breaks)
    if world.phase is FORMED and world.round != published.round:
        assert check is None and not found.to_vet
        growth = published.phase is FORMED and not found.broken
        joining = set(world.members) - (set(published.members) if growth else set())
        assert not joining & unchecked and not set(world.members) & faulty
    else:
        assert world.round == published.round and world.members == published.members
    if found.breaks:
        assert world.phase is not FORMED or world.round != published.round
    if found.to_vet and active is None:
        refused = decide(published, people, limits, later(seconds), of(*unchecked, refused=True))
        assert refused == plain, "a check that cannot be made does not keep a job from training"
    if world.phase is FORMED and world.round == published.round:
        assert world == plain.rendezvous or new or active is not None


CLAIMS = st.one_of(st.none(), st.builds(Claim, st.just("digits-check-1"), st.one_of(st.none(), INDICES)))
CONSTRAINTS = st.builds(
    Constraints,
    slow=INDICES,
    unvetted=INDICES,
    claim=CLAIMS,
    claim_has_ended=st.booleans(),
    request_refused=st.booleans(),
    hold=st.one_of(st.none(), st.builds(Hold, st.floats(-10, 200).map(later), st.just("for it"))),
    hang_since=st.one_of(st.none(), st.just(NOW)),
    blame=st.one_of(st.none(), st.builds(Blame, st.integers(0, 3), st.just("digits-worker-1: boom"))),
)


@given(situations(), published_worlds(), CONSTRAINTS, st.floats(0, 100))
def test_whatever_constrains_a_world(
    situation: tuple[list[Participant], Bounds],
    published: Rendezvous,
    constraints: Constraints,
    seconds: float,
) -> None:
    """Members are joinable, none replaces a broken one before its hold ends, and blame changes only words."""
    people, limits = situation
    now = later(seconds)
    found = decide(published, people, limits, now, constraints)
    _has_members_that_can_join(found, published, people, limits, constraints.slow)
    with_slow = decide(published, people, limits, now, replace(constraints, slow=frozenset()))
    if published.phase is not FORMED and with_slow.rendezvous.phase is FORMED:
        assert found.rendezvous.phase is FORMED, "exclusions never cost a world"
    free = decide(published, people, limits, now, replace(constraints, hold=None))
    _waits_for_the_hold(found, free, published, constraints.hold, now)
    plain = decide(published, people, limits, now, replace(constraints, blame=None, hang_since=None))
    words = {"reason": "", "hang_since": None}
    same, as_plain = (replace(d, rendezvous=d.rendezvous.model_copy(update=words)) for d in (found, plain))
    assert same == as_plain
    if found.rendezvous.phase is REFORMING:
        assert found.rendezvous.hang_since == constraints.hang_since


def _has_members_that_can_join(
    found: Decision, published: Rendezvous, people: list[Participant], limits: Bounds, slow: frozenset[int]
) -> None:
    world = found.rendezvous
    if world.round == published.round:
        assert (world.members, world.incarnations) == (published.members, published.incarnations)
        return
    assert world.round == published.round + 1 and world.phase is FORMED
    joinable = {p.index: p.incarnation for p in people if p.joinable}
    assert set(world.members) <= joinable.keys() - found.left_out and found.left_out <= slow
    assert world.members == sorted(set(world.members))
    assert world.incarnations == [joinable[index] for index in world.members]
    assert limits.minimum <= len(world.members) <= limits.desired
    assert len(world.members) % limits.node_unit == 0


def _waits_for_the_hold(
    found: Decision, free: Decision, published: Rendezvous, hold: Hold | None, now: datetime
) -> None:
    stands = published.phase is FORMED and not free.broken
    forms = free.rendezvous.phase is FORMED and free.rendezvous.round != published.round
    if hold is None or hold.until <= now or stands or not forms:
        assert found == free
        return
    assert found.rendezvous.round == published.round and found.rendezvous.phase is not FORMED
    assert found.breaks == free.breaks and "for it" in found.rendezvous.waits_for
    assert found.look_again_seconds == (hold.until - now).total_seconds()


# --- a job's life -----------------------------------------------------------------------------------

ECC = "CUDA error: uncorrectable ECC error"


def submitted(nodes: int = 6) -> Api:
    """A job of three workers, two at least, whose nodes are to be checked."""
    api = Api()
    add_nodes(api, nodes)
    submit(api, nodeCheck={"enabled": True})
    return api


def settle(api: Api, *ill: str) -> None:
    """Everybody does what is theirs until nothing happens any more; these nodes fail their tests."""
    run = Run(api, Script(ill=frozenset(ill)))
    asyncio.run(run.settle())
    assert run.errors == []


def fail(api: Api, index: int, message: str) -> None:
    """A training process of this worker ends with an error."""
    name, world = f"{JOB}-worker-{index}", world_of(api)
    failure = {"sequence": world["round"], "round": world["round"], "exitCode": 1, "message": message}
    agent = {"state": "Failed", "failure": failure | {"rank": index, "time": api.now()}}
    api.patch(ELASTICWORKERS, name, {"status": {"agent": agent}}, "status")


def world_of(api: Api) -> dict[str, Any]:
    return in_lists(api.get(ELASTICJOBS, JOB)["status"]["rendezvous"])


def checked(api: Api) -> list[list[int]]:
    """The workers of each check."""
    return [check["spec"]["workers"] for check in api.list(NODECHECKS)]


def node_of(api: Api, index: int) -> str:
    return str(api.get(ELASTICWORKERS, f"{JOB}-worker-{index}")["status"]["nodeName"])


def test_a_job_is_checked_loses_a_faulty_node_and_trains() -> None:
    api = submitted()
    settle(api, "node-2")
    world = world_of(api)
    assert (world["members"], world["incarnations"]) == ([0, 1, 2], [1, 1, 2])
    assert node_of(api, 2) == "node-3"
    assert checked(api) == [[0, 1, 2], [0, 1, 2]], "the replacement's node is tested too"


def test_a_job_whose_hardware_fails_in_place_is_checked_again_and_the_failure_counted_once() -> None:
    api = submitted()
    settle(api)
    for message, checks in ((ECC, 2), ("ValueError", 2)):
        fail(api, 1, message)
        settle(api)
        assert len(checked(api)) == checks
    assert checked(api)[1] == [0, 1, 2] and world_of(api)["round"] == 3
    assert api.get(ELASTICJOBS, JOB)["status"]["restarts"] == {"HardwareError": 1, "UserError": 1}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["fail", "smell", "lose", "standby"]),
            st.integers(0, 2),
            st.sets(st.sampled_from(["node-0", "node-1", "node-2", "node-3"]), max_size=2),
        ),
        max_size=3,
    )
)
@settings(max_examples=5, deadline=None)
def test_whatever_happens_worlds_are_of_checked_workers_and_training_goes_on_in_the_end(
    story: list[tuple[str, int, set[str]]],
) -> None:
    """At the end liveness: no more failures and faults, so there is a world, and then no more checks."""
    api = submitted(nodes=9)
    settle(api)
    for what, value, ill in story:
        if what == "lose":
            lose_pod(api, value)
        elif what == "standby":
            edit(api, {"replicaSpecs": {"worker": {"standby": value}}})
        elif value in world_of(api)["members"]:
            fail(api, value, ECC if what == "smell" else "ValueError")
        settle(api, *ill)
    settle(api)
    world, checks = world_of(api), checked(api)
    assert (world["phase"], len(world["members"])) == ("Formed", 3)
    faulty = {node for check in api.list(NODECHECKS) for node in check["status"]["faultyNodes"]}
    assert not faulty & {node_of(api, index) for index in world["members"]}
    settle(api)
    assert (world_of(api), checked(api)) == (world, checks), "no endless checks"
    round_ = 0
    for status in (entry.obj.get("status", {}) for entry in api.log[ELASTICJOBS]):
        world = in_lists(status.get("rendezvous", {}))
        if world.get("phase") == "Formed" and world["round"] > round_:
            round_, check = world["round"], api.find(NODECHECKS, status.get("activeCheck") or "")
            assert check is None or not {*world["members"]} & {*check["spec"]["workers"]}
