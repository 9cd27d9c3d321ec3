"""What somebody sees of an elastic job in a queue, in the order in which it happens."""

from __future__ import annotations

from typing import Any

import pytest

from crds import names
from reconcilers.kueue.workload import Workload
from tests.kueue.build import NAMESPACE
from tests.kueue.life import Life


class Job(Life):
    """A job of 2 to 8 workers, in a queue without competitors, all of whose parts act in their order."""

    def __init__(self, quota: int, most: int = 8, least: int = 2) -> None:
        super().__init__(0)
        self.quota, self.priority, self.growth, self.has_checks, self.is_calm = quota, 0, 0, False, True
        worker = self.job.spec.replica_specs[names.WORKER]
        fixed = {"replicas": most, "min_replicas": least, "standby": 0}
        self._respec(replica_specs={names.WORKER: worker.model_copy(update=fixed)})
        self._put_queues()

    def goes_on(self, seconds: float = 20.0) -> Job:
        """Let everybody act for a while."""
        end = self.now + seconds
        while self.now < end:
            for act in (self._watch, self.look, self.core, self.pod_ends, self._kueue_settles):
                self._do(act)
            self.now += 0.1
        assert not self.wrong
        return self

    def has_quota(self, quota: int) -> Job:
        self.quota = quota
        self._put_queues()
        return self

    def meets(self, count: int, priority: int = 10) -> Job:
        """Another job of a higher priority comes."""
        self.comes(count, priority)
        return self

    def edited(self, **update: Any) -> Job:
        worker = self.job.spec.replica_specs[names.WORKER]
        self._respec(replica_specs={names.WORKER: worker.model_copy(update=update)})
        return self

    def other(self) -> Workload:
        return Workload(self.kueue.workloads[NAMESPACE, f"other-{self.made}"])


pytestmark = pytest.mark.played


def test_a_job_whose_preemptor_needs_all_waits_until_there_is_room_again() -> None:
    job = Job(quota=8).goes_on()
    job.meets(7).goes_on(9.0)
    assert len(job.pods) == 2 and not job.other().is_admitted, (
        "so long it may be that Kueue still comes to it"
    )
    job.goes_on(5.0)
    assert job.other().is_admitted and not job.pods
    admission = job.job.status.admission
    assert admission is not None and admission.workers == 0 and "7 more needed" in admission.message
    job.has_quota(9).goes_on(5.0)
    assert len(job.pods) == 2


def test_a_rigid_job_stops_when_it_is_preempted() -> None:
    job = Job(quota=4, most=4, least=4).goes_on()
    assert len(job.pods) == 4
    job.meets(2).goes_on(5.0)
    assert job.other().is_admitted and not job.pods


def test_an_edited_count_is_followed_both_ways() -> None:
    job = Job(quota=8).goes_on()
    job.edited(replicas=3).goes_on()
    assert len(job.pods) == 3 and job._used() == 3
    job.edited(replicas=5).goes_on()
    assert len(job.pods) == 5 and job._used() == 5
    job.edited(replicas=2, min_replicas=1).goes_on().edited(replicas=1).goes_on()
    assert len(job.pods) == 1 and job._used() == 1


def test_a_suspended_job_gives_its_quota_back_and_comes_back() -> None:
    job = Job(quota=8).goes_on()
    job._respec(suspend=True)
    job.goes_on()
    assert not job.pods and job._used() == 0
    job._respec(suspend=False)
    assert len(job.goes_on().pods) == 8


def test_a_priority_that_cannot_be_changed_while_there_is_quota_stays_until_the_next_start() -> None:
    job = Job(quota=8).goes_on()
    job.has_class = False
    job.goes_on()
    assert len(job.pods) == 8 and not any("refused" in act for act in job.trace)
    job._respec(suspend=True)
    job.goes_on()._respec(suspend=False)
    assert len(job.goes_on().pods) == 8 and job.workloads_of_job().held.priority == {"priority": 0}


def test_a_queue_that_is_not_there_is_named_in_kueues_words() -> None:
    job = Job(quota=8)
    job.queue = "three"
    job.goes_on(2.0)
    assert job.job.status.admission is not None
    assert job.job.status.admission.message == "LocalQueue three doesn't exist"
