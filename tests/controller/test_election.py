import asyncio
import itertools
import math
from datetime import UTC, datetime

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller.clock import monotonic as now
from controller.leader.candidacy import Candidacy, next_ask, next_at
from controller.leader.container_end import announce, has_ended, message_of, pod_of
from controller.leader.election import (
    ElectionTiming,
    LeaseRecord,
    Move,
    Tenure,
    decide,
    observe,
    with_answer,
    with_claim_sent,
)
from controller.leader.elector import Elector, LeadershipLost, LeadershipSuspended, NotLeader
from tests.controller.lease_api import ANSWER_LOST, LOST, PROMPT, Fate, LeaseApi, LeaseClient

TIMING = ElectionTiming()


def record(holder, version="1", duration=15.0, renewed=None):
    return LeaseRecord(holder, duration, 0, None, renewed, version, {})


@pytest.mark.parametrize(
    ("holder", "promised", "configured", "waits"),
    [
        ("other", 6.0, 6.0, 6.0),
        ("other", 60.0, 6.0, 60.0),
        ("", 1.0, 6.0, 6.0),  # free when last seen, but perhaps taken before it was deleted
        ("", 1.0, 40.0, 40.0),
    ],
)
def test_a_deleted_lease_is_waited_for_by_the_configured_timing(
    holder: str, promised: float, configured: float, waits: float
) -> None:
    timing = ElectionTiming(configured, configured / 2, 1.0)
    seen = observe(None, record(holder, duration=promised), 100, timing)
    assert observe(seen, None, 105, timing).free_at == 105 + waits


@pytest.mark.parametrize(
    ("left_seconds", "waits"), [(9.0, TIMING.second_attempt_seconds), (4.0, 2.0), (1.5, 0.75), (0.4, 0.5)]
)
def test_the_less_time_a_leader_has_the_sooner_it_asks_again(left_seconds: float, waits: float) -> None:
    seen = observe(None, record("me"), 0.0, TIMING)
    leader = Candidacy("ns", "dlr", Tenure("me", TIMING, seen, leads_until=100.0))
    asking, ask = next_ask(leader, 100.0 - left_seconds, datetime(2026, 1, 1, tzinfo=UTC))
    assert ask is not None and next_at(asking) == pytest.approx(100.0 - left_seconds + waits)


def test_timing_that_could_overlap_is_refused():
    with pytest.raises(ValueError, match="lease duration > renew deadline > retry period"):
        ElectionTiming(10, 10, 2)


def elector(api, name="me", fate=lambda: PROMPT):
    return Elector(LeaseClient(api, fate), namespace="ns", name="dlr", identity=name, timing=TIMING)


async def test_released_lease_is_taken_at_the_next_try():
    api = LeaseApi()
    first, second = elector(api, "first"), elector(api, "second")
    await first.acquire()
    following = asyncio.create_task(second.acquire())
    await asyncio.sleep(5)
    await first.release()
    assert not first.is_leader and api.lease["spec"]["holderIdentity"] == ""
    released_at = now()
    await following
    assert now() - released_at < 2 * 1.2 + 0.1


@pytest.mark.parametrize("fate", [LOST, ANSWER_LOST])
async def test_leading_ends_before_the_lease_does_when_the_server_hangs_mid_call(fate):
    api, hanging = LeaseApi(), False
    leader = elector(api, fate=lambda: fate if hanging else PROMPT)
    await leader.acquire()
    holding = asyncio.create_task(leader.hold())
    await asyncio.sleep(20)
    hanging = True
    renewed_at = now()
    with pytest.raises(LeadershipSuspended, match="could not be renewed within 10 s"):
        await holding
    assert now() - renewed_at <= TIMING.renew_deadline_seconds
    assert not leader.is_leader
    with pytest.raises(NotLeader):
        leader.check()


async def test_a_leader_whose_lease_was_given_to_another_stops_at_the_next_renewal():
    api = LeaseApi()
    leader = elector(api)
    await leader.acquire()
    api.put_holder("thief")
    with pytest.raises(LeadershipLost, match="taken by thief"):
        await leader.hold()
    assert now() < 3


async def test_a_leader_whose_lease_was_deleted_makes_it_again():
    api = LeaseApi()
    leader = elector(api)
    await leader.acquire()
    holding = asyncio.create_task(leader.hold())
    await asyncio.sleep(5)
    api.delete()
    await asyncio.sleep(10)
    assert leader.is_leader and api.lease["spec"]["holderIdentity"] == "me"
    holding.cancel()


def tenure(**known):
    return Tenure("me", TIMING, **known)


def test_a_look_that_finds_our_own_renewal_counts_like_its_answer():
    held = with_claim_sent(tenure(), "renewed", 100)
    assert with_answer(held, record("me", renewed="renewed"), asked_at=104, now=105).leads_until == 110
    assert with_answer(held, record("me", renewed="another"), asked_at=104, now=105).leads_until == -math.inf


def test_a_later_look_counts_although_versions_begin_lower_after_a_restore_of_etcd():
    held = with_answer(tenure(), record("other", "1000"), asked_at=100, now=101)
    restored = with_answer(held, record("", "10"), asked_at=102, now=103)
    assert restored.observation.record.resource_version == "10"
    assert decide(restored, 103) is Move.TAKE


DELAY = st.floats(0.0, 2.4)


@given(delays=st.lists(st.builds(Fate, DELAY, DELAY), min_size=1, max_size=40))
@example(
    delays=[Fate(0.0, 2.0), Fate(2.0, 2.25), Fate(0.5, 0.25), Fate(1.0, 0.0)]
)  # the first renewal counts too
@example(delays=[Fate(2, 2), Fate(2, 2), Fate(0, 2), Fate(0, 0), Fate(2, 2)])  # a late conflict is no news
@settings(max_examples=10, deadline=None)
async def test_a_leader_whose_requests_take_less_than_half_the_deadline_keeps_leading(delays):
    api, fates = LeaseApi(), itertools.cycle(delays)
    leader = elector(api, fate=lambda: next(fates))
    await leader.acquire()
    holding = asyncio.create_task(leader.hold())
    began = now()
    while now() < began + 200:
        await asyncio.sleep(0.5)
        assert leader.is_leader and not holding.done()
    holding.cancel()


async def test_a_lease_is_released_although_a_renewal_is_still_on_its_way():
    api, fate = LeaseApi(), PROMPT
    leader = elector(api, fate=lambda: fate)
    await leader.acquire()
    holding = asyncio.create_task(leader.hold())
    fate = Fate(1.0, 3.0)
    await asyncio.sleep(4.5)  # a renewal was acted on, its answer is still to come
    assert leader.is_leader
    holding.cancel()
    await leader.release()
    assert not leader.is_leader and api.lease["spec"]["holderIdentity"] == ""


HOLDER = "dlr-controller-7f9c-abcde_0b0f2c1e-6c4f-4f5e-9c64-0d3b7b6f8a11"
ENDED = {"terminated": {"exitCode": 137, "message": message_of(HOLDER)}}
ENDED_BY_THE_RUNTIME = {"terminated": {"exitCode": 137, "message": f"out of memory: {message_of(HOLDER)}"}}
ANOTHER_ENDED = {"terminated": {"exitCode": 1, "message": message_of(HOLDER[:-1] + "2")}}
NAMED_IN_A_LOG = {"terminated": {"exitCode": 1, "message": f"the lease was taken by {HOLDER}"}}
STATUS_LOST = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "not found"}}


def pod(state, last=None):
    return {"status": {"containerStatuses": [{"state": state, "lastState": last or {}}]}}


@pytest.mark.parametrize(
    ("found", "proves"),
    [
        (pod(ENDED), True),
        (pod({"running": {}}, ENDED), True),
        (pod(ENDED_BY_THE_RUNTIME), True),
        (pod({"running": {}}), False),
        (pod({"running": {}}, ANOTHER_ENDED), False),
        (pod(NAMED_IN_A_LOG), False),
        (pod(STATUS_LOST), False),
        ({"status": {"phase": "Failed"}}, False),
        ({}, False),
    ],
)
async def test_a_holder_is_followed_at_once_only_if_its_own_container_has_ended(found, proves):
    assert has_ended(found, HOLDER) == proves
    api = LeaseApi()
    first, second = elector(api, HOLDER), elector(api, "second")
    await first.acquire()
    following = asyncio.create_task(second.acquire())
    await asyncio.sleep(5)
    api.pods[pod_of(HOLDER)] = found
    seen_at = now()
    await following
    assert now() - seen_at < 0.6 if proves else now() - seen_at > 9


def test_an_identity_is_announced_only_where_a_kubelet_reads_it(tmp_path):
    path = tmp_path / "termination-log"
    announce(HOLDER, path)
    assert not path.exists()
    path.write_text("something longer than what is written there now" * 9)
    announce(HOLDER, path)
    assert path.read_text() == message_of(HOLDER)


@pytest.mark.parametrize(
    ("identity", "name"),
    [(HOLDER, "dlr-controller-7f9c-abcde"), ("dlr-local", ""), ("../../secrets_x", ""), ("", "")],
)
def test_only_identities_of_our_own_making_name_a_pod(identity, name):
    assert pod_of(identity) == name


@pytest.mark.parametrize("change", [LeaseApi.delete, lambda api: api.put_holder("other")])
async def test_a_leader_after_whom_another_may_have_led_ends(change):
    api, fate = LeaseApi(), PROMPT
    leader = elector(api, fate=lambda: fate)
    await leader.acquire()
    fate = LOST
    with pytest.raises(LeadershipSuspended):
        await leader.hold()
    change(api)
    fate = PROMPT
    with pytest.raises(LeadershipLost, match=r"was taken by (other|nobody)"):
        await leader.acquire()
