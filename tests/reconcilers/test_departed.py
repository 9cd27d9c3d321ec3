"""What workers counted that are gone stays with their job, and is counted once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from crds.elasticworker import ElasticWorker
from crds.job_status import Departed
from reconcilers.job.basis import with_departed
from reconcilers.observed.desired import DesiredJob
from tests.reconcilers.build import job, worker


def ended(index: int, pods: int = 1) -> ElasticWorker:
    return worker(index, restarts={"NodeLost": pods} if pods else {})


@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), unique_by=lambda pair: pair[0])))
def test_each_worker_counts_once_however_often_it_is_looked_at(batches: list[list[tuple[int, int]]]) -> None:
    """Each batch is let go, looked at twice (by another controller the second time), and gone."""
    known, expected = DesiredJob.of(job()), 0
    for batch in batches:
        surplus = [ended(index, pods) for index, pods in batch]
        expected += sum(pods for _, pods in batch)
        for _ in range(2):
            known = DesiredJob.model_validate(with_departed(known, surplus).to_wire())
        known = with_departed(known, [])
        departed = known.status.departed or Departed()
        assert departed.restarts.get("NodeLost", 0) == expected and departed.leaving == {}
