"""As many workers as shard sets have work for: bounds, who goes, and that it settles."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from crds.elasticjob import ElasticJob
from crds.intervals import whole
from crds.leases import Lease
from crds.shard_set import SetDefinition
from reconcilers.scale.permission import own_refusal
from reconcilers.scale.request import Origin, own_request
from reconcilers.shards.by_shards import IdleWorker, Sizing, size_of, workers_for
from reconcilers.shards.sets import SetState
from tests.reconcilers.build import job

SLOTS, IDLE = 4, 60


def pulling(
    replicas: int,
    waiting: int,
    leases: dict[int, int],
    least: int = 1,
    most: int = 20,
    unit: int = 1,
    **status: object,
) -> tuple[ElasticJob, list[SetState]]:
    """A job of so many workers, and its set with so many elements that wait, and so many that each of some holds."""
    size, held = waiting + sum(leases.values()), []
    at = waiting
    for number, (index, elements) in enumerate(sorted(leases.items()), start=1):
        held.append(Lease(index, 1, number, ((at, at + elements),)))
        at += elements
    known = SetState(
        SetDefinition("lines", 0, size + 1, "", 2, 9), whole(waiting), tuple(held), last_lease=len(held)
    )
    policy = {"nodeUnit": unit, "shardScaling": {"slotsPerWorker": SLOTS, "idleSeconds": IDLE}}
    limits = {"minReplicas": least, "maxReplicas": most}
    return job(replicas=replicas, elasticPolicy=policy, worker=limits, status=status), [known]


def idle(seconds: dict[int, float]) -> list[IdleWorker]:
    return [IdleWorker(index, 1, each) for index, each in seconds.items()]


def test_more_come_at_once_for_what_waits_and_is_leased() -> None:
    assert size_of(*pulling(2, 30, {0: 8, 1: 2}), (), ()) == Sizing(10)
    assert size_of(*pulling(2, 1_000, {}), (), ()) == Sizing(20)


def test_who_was_idle_for_long_goes_and_nobody_who_holds_a_lease() -> None:
    of = pulling(4, 0, {1: 1, 3: 2})
    assert size_of(*of, (), idle({0: 61.0, 2: 20.0})) == Sizing(3, (0,))
    assert size_of(*of, (), idle({0: 59.0, 2: 20.0})) == Sizing(look_again_seconds=1.0)


def test_who_is_leased_something_in_this_very_look_stays() -> None:
    """It was idle before: what it is leased now has come back from a worker that was lost."""
    of = pulling(4, 0, {0: 1, 3: 1})
    assert size_of(*of, (), idle(dict.fromkeys(range(4), 99.0))) == Sizing(2, (1, 2))


def test_a_job_that_does_not_ask_for_it_stays_as_it_is() -> None:
    _, sets = pulling(2, 100, {})
    assert size_of(job(replicas=2, worker={"maxReplicas": 9}), sets, (), ()) == Sizing()
    kept = job(replicas=2, elasticPolicy={"shardScaling": {}}, worker={"maxReplicas": 9, "autoScale": False})
    assert size_of(kept, sets, (), ()) == Sizing()
    assert size_of(job(elasticPolicy={"shardScaling": {}}), [], (), idle({0: 1e9})) == Sizing()


@given(st.data())
def test_it_stays_in_bounds_takes_no_work_and_settles(data: st.DataObject) -> None:
    unit = data.draw(st.integers(1, 3), "unit")
    least, more = data.draw(st.integers(1, 4)) * unit, data.draw(st.integers(0, 6)) * unit
    most = least + more
    replicas = data.draw(st.integers(least // unit, most // unit)) * unit
    leases = data.draw(st.dictionaries(st.integers(0, replicas - 1), st.integers(1, 9), max_size=6))
    waiting = data.draw(st.integers(0, 60))
    seconds = {index: data.draw(st.floats(0, 200)) for index in range(replicas) if index not in leases}
    of, sets = pulling(replicas, waiting, leases, least, most, unit)
    found = size_of(of, sets, (), idle(seconds))
    if found.replicas is None:
        return
    after, removed = found.replicas, found.removed
    assert least <= after <= most and after % unit == 0 and after != replicas
    if after > replicas:
        assert not removed
        assert (waiting + sum(leases.values())) > SLOTS * replicas
    else:
        assert len(removed) == replicas - after and not set(removed) & set(leases)
        assert all(seconds[index] >= IDLE for index in removed)
    request = own_request(of, Origin.SHARDS, after, removed={"worker": list(removed)})
    assert own_refusal(of, request, ()) == "", "the request is one that is carried out"
    again = pulling(after, waiting, leases, least, most, unit, retired={"worker": sorted(removed)})
    settled = size_of(*again, (), idle(dict.fromkeys(seconds, 0.0)))
    assert settled.replicas is None, "with nobody idle for long, it is as the work asks"


@given(st.integers(0, 10**6), st.integers(1, 50), st.integers(0, 50))
def test_a_worker_is_not_asked_for_unless_there_is_work_for_it(left: int, least: int, more: int) -> None:
    of, _ = pulling(least, 1, {}, least, least + more)
    policy = of.spec.elastic_policy.shard_scaling
    assert policy is not None
    count = workers_for(left, policy, of.spec.replica_specs["worker"], 1)
    assert least <= count <= least + more
    assert count == least or (count - 1) * SLOTS < left
    assert count == least + more or count * SLOTS >= left
