"""As many workers as shard sets have work for: bounds, who goes, and that it settles."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from crds.elasticjob import ElasticJob
from crds.intervals import whole
from crds.leases import Lease
from crds.scaleplan import ScalePlan
from crds.shard_set import Definition
from reconcilers.runtime.acts import Act, Verb
from reconcilers.runtime.kinds import SCALEPLANS
from reconcilers.scale import auto_plans
from reconcilers.scale.auto_plans import Scale, is_ours
from reconcilers.scale.plan import refusal
from reconcilers.scale.uptake import Plans
from reconcilers.shards.by_shards import (
    PLANS,
    Decision,
    decide,
    workers_for,
)
from reconcilers.shards.sets import ShardSet
from tests.reconcilers.build import job, worker


def acts(of: ElasticJob, scale: Scale, plans: Plans) -> tuple[Act, ...]:
    return auto_plans.acts(of, scale, plans, PLANS, NOW)


NOW = datetime(2026, 11, 23, tzinfo=UTC)
SLOTS, IDLE = 4, 60


def pulling(
    replicas: int,
    waiting: int,
    leases: dict[int, int],
    least: int = 1,
    most: int = 20,
    unit: int = 1,
    **status: object,
) -> ElasticJob:
    """A job of so many workers, with so many elements that wait, and so many that each of some holds."""
    size, held = waiting + sum(leases.values()), []
    at = waiting
    for number, (index, elements) in enumerate(sorted(leases.items()), start=1):
        held.append(Lease(index, 1, number, ((at, at + elements),)))
        at += elements
    known = ShardSet(
        Definition("lines", 0, size + 1, "", 2, 9), whole(waiting), tuple(held), last_lease=len(held)
    )
    policy = {"nodeUnit": unit, "shardScaling": {"slotsPerWorker": SLOTS, "idleSeconds": IDLE}}
    return job(
        replicas=replicas,
        elasticPolicy=policy,
        worker={"minReplicas": least, "maxReplicas": most},
        status={"shards": [known.to_status().to_wire()], **status},
    )


def test_more_come_at_once_for_what_waits_and_is_leased() -> None:
    assert decide(pulling(2, 30, {0: 8, 1: 2}), [worker(0), worker(1)], {}) == Decision(Scale(10))
    assert decide(pulling(2, 1_000, {}), [worker(0), worker(1)], {}) == Decision(Scale(20))


def test_who_was_idle_for_long_goes_and_nobody_who_holds_a_lease() -> None:
    of, workers = pulling(4, 0, {1: 1, 3: 2}), [worker(index) for index in range(4)]
    assert decide(of, workers, {"w0": 61.0, "w2": 20.0}) == Decision(Scale(3, (0,)))
    assert decide(of, workers, {"w0": 59.0, "w2": 20.0}) == Decision(look_again_seconds=1.0)


def test_a_job_that_does_not_ask_for_it_stays_as_it_is() -> None:
    of = pulling(2, 100, {})
    plain = job(
        replicas=2, worker={"maxReplicas": 9}, status={"shards": [s.to_wire() for s in of.status.shards]}
    )
    assert decide(plain, [worker(0)], {}) == Decision()
    kept = job(
        replicas=2,
        elasticPolicy={"shardScaling": {}},
        worker={"maxReplicas": 9, "autoScale": False},
        status={"shards": [each.to_wire() for each in of.status.shards]},
    )
    assert decide(kept, [worker(0)], {}) == Decision()
    assert decide(job(elasticPolicy={"shardScaling": {}}), [worker(0)], {"w0": 1e9}) == Decision()


@given(st.data())
def test_it_stays_in_bounds_takes_no_work_and_settles(data: st.DataObject) -> None:
    unit = data.draw(st.integers(1, 3), "unit")
    least, more = data.draw(st.integers(1, 4)) * unit, data.draw(st.integers(0, 6)) * unit
    most = least + more
    replicas = data.draw(st.integers(least // unit, most // unit)) * unit
    leases = data.draw(st.dictionaries(st.integers(0, replicas - 1), st.integers(1, 9), max_size=6))
    waiting = data.draw(st.integers(0, 60))
    idle = {f"w{index}": data.draw(st.floats(0, 200)) for index in range(replicas) if index not in leases}
    of = pulling(replicas, waiting, leases, least, most, unit)
    workers = [worker(index) for index in range(replicas)]
    found = decide(of, workers, idle)
    if found.scale is None:
        return
    after, removed = found.scale.replicas, found.scale.removed
    assert least <= after <= most and after % unit == 0 and after != replicas
    if after > replicas:
        assert not removed
        assert (waiting + sum(leases.values())) > SLOTS * replicas
    else:
        assert len(removed) == replicas - after and not set(removed) & set(leases)
        assert all(idle[f"w{index}"] >= IDLE for index in removed)
    (act,) = acts(of, found.scale, Plans())
    plan = ScalePlan.model_validate(act.body | {"metadata": act.body["metadata"] | {"uid": "p"}})
    assert refusal(plan, of, workers, ()) is None, "the plan is one that is carried out"
    again = pulling(after, waiting, leases, least, most, unit, retired={"worker": sorted(removed)})
    settled = decide(again, workers, {uid: 0.0 for uid in idle})
    assert settled.scale is None, "with nobody idle for long, it is as the work asks"


@given(st.integers(0, 10**6), st.integers(1, 50), st.integers(0, 50))
def test_a_worker_is_not_asked_for_unless_there_is_work_for_it(left: int, least: int, more: int) -> None:
    of = pulling(least, 1, {}, least, least + more)
    policy = of.spec.elastic_policy.shard_scaling
    assert policy is not None
    count = workers_for(left, policy, of.spec.replica_specs["worker"], 1)
    assert least <= count <= least + more
    assert count == least or (count - 1) * SLOTS < left
    assert count == least + more or count * SLOTS >= left


def plan_of(of: ElasticJob, scale: Scale, phase: str, name: str = "", **labels: str) -> ScalePlan:
    """A plan as it was made for this job, and what became of it."""
    (act,) = acts(of, scale, Plans())
    metadata = act.body["metadata"] | {"uid": f"{name or 'made'}-uid"} | ({"name": name} if name else {})
    if labels:
        metadata |= {"labels": labels}
    return ScalePlan.model_validate(act.body | {"metadata": metadata, "status": {"phase": phase}})


def test_a_plan_is_made_once_a_generation_and_those_that_are_over_go() -> None:
    of = pulling(2, 100, {})
    old = plan_of(of, Scale(20), "Succeeded", "job-shards-0")
    assert is_ours(old) and old.metadata.labels["scale-type"] == "auto"
    made, gone = acts(of, Scale(19, (3,)), Plans(spent=(old,)))
    assert made.body["spec"]["removePods"] == [{"type": "worker", "rankIndex": 3}]
    assert (gone.verb, gone.resource, gone.uid) == (Verb.DELETE, SCALEPLANS, "job-shards-0-uid")
    going = plan_of(of, Scale(20), "Scaling")
    assert acts(of, Scale(19), Plans(going, going)) == (), "it is carried out first"


def test_what_was_refused_is_not_asked_for_again_in_the_same_generation() -> None:
    of = pulling(2, 100, {})
    refused = plan_of(of, Scale(20), "Failed")
    assert acts(of, Scale(20), Plans(spent=(refused,))) == ()
    (gone,) = acts(of, Scale(9), Plans(spent=(refused,)))
    assert (gone.verb, gone.uid) == (Verb.DELETE, "made-uid"), "the next look asks for the other count"
    (gone,) = acts(of, Scale(20), Plans(spent=(plan_of(of, Scale(20), "Superseded"),)))
    assert gone.verb is Verb.DELETE, "what was not refused is asked for again"


def test_a_plan_of_somebody_elses_is_begun_first() -> None:
    of = pulling(2, 100, {})
    theirs = plan_of(of, Scale(5), "Pending", "theirs", owner="somebody")
    assert acts(of, Scale(20), Plans(theirs, theirs)) == ()
    taken = pulling(2, 100, {}, scalePlanUid="theirs-uid")
    (made,) = acts(taken, Scale(20), Plans(theirs, theirs))
    assert made.verb is Verb.CREATE
