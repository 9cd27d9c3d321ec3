"""Which Pods of a job in a queue count, and when one has to look again."""

from __future__ import annotations

from controller.resources import PODS
from reconcilers.kueue.pods import IN_FLIGHT_SECONDS, PodsOfJobs
from reconcilers.observed.ownership import BY_JOB
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.scale.writer import pods_job
from tests.reconcilers.build import job, worker
from tests.reconcilers.caches import shaped_cache


def test_a_pod_that_is_being_made_counts_for_a_while_and_has_one_look_again() -> None:
    """Its name may be another's, or the API server refuses it: no event says that it never comes."""
    cache, now = shaped_cache(), [0.0]
    cache.add_index(PODS, BY_JOB, pods_job)
    cache.store(ELASTICJOBS).apply(job().to_wire())
    pods = PodsOfJobs(cache, lambda: now[0])
    assert not pods.count(job()).may_vanish
    pods.note_creation(job(), worker(0))
    counted = pods.count(job())
    assert counted.there == {"worker": 1} and counted.may_vanish
    now[0] = IN_FLIGHT_SECONDS + 0.1
    counted = pods.count(job())
    assert not counted.there and not counted.may_vanish
