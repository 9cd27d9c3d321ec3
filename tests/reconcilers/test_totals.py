"""`status.failures`: each failure once, and nothing that goes makes it less."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from crds.job_status import Departed, ElasticJobStatus
from reconcilers.failure.facts import failures_of, with_departed
from tests.reconcilers.build import job, worker

CLASSES = ("UserError", "OOM", "NodeLost")
ACTS = st.tuples(
    st.sampled_from(["in place", "pod", "deleted by hand", "scaled away", "made again"]),
    st.integers(0, 2),
    st.sampled_from(CLASSES),
)


@given(st.lists(ACTS, max_size=30))
def test_each_failure_counts_once_whoever_is_deleted(acts: list[tuple[str, int, str]]) -> None:
    """Every look may be another controller's: it has the stored status and the workers that are there."""
    status, workers, expected = ElasticJobStatus(), dict[int, Counter[str]](), Counter[str]()
    for act, index, class_ in acts:
        restarts, departed = Counter(status.restarts), status.departed
        if act == "in place":
            restarts[class_] += 1
            expected[class_] += 1
        elif act == "pod":
            workers.setdefault(index, Counter())[class_] += 1
            expected[class_] += 1
        elif act == "deleted by hand":
            workers.pop(index, None)
        elif act == "scaled away" and index in workers:
            counts = dict(workers.pop(index))
            surplus = worker(index, restarts=counts, failures=counts)
            known = job(status=status.to_wire())
            before = departed.restarts if departed else {}
            for _ in range(2):  # by another controller the second time
                known = type(known).model_validate(with_departed(known, [surplus]).to_wire())
            departed = with_departed(known, []).status.departed or Departed()
            assert Counter(departed.restarts) == Counter(before) + Counter(counts) and not departed.leaving
        failures, departed = failures_of(status, restarts, workers.values(), departed)
        status = status.model_copy(
            update={"failures": failures, "restarts": dict(restarts), "departed": departed}
        )
        assert Counter(status.failures) == expected


def test_a_failure_that_a_lost_pod_explains_counts_as_that() -> None:
    status = ElasticJobStatus(failures={"Unknown": 1}, restarts={"Unknown": 1})
    assert failures_of(status, {}, [{"NodeLost": 1}], None) == ({"NodeLost": 1}, None)


def test_the_blame_may_move() -> None:
    status = ElasticJobStatus(failures={"Unknown": 1, "OOM": 1}, restarts={"Unknown": 1})
    found = failures_of(status, {"UserError": 1}, [{"OOM": 1}], None)
    assert found == ({"UserError": 1, "OOM": 1}, None)


def test_what_groups_lost_stays_when_a_group_is_gone() -> None:
    status = ElasticJobStatus(failures={"Killed": 5})
    found, departed = failures_of(status, {}, [{"Killed": 3}], None)
    assert found == {"Killed": 5} and departed == Departed(failures={"Killed": 2})
    found, departed = failures_of(status, {}, [{"Killed": 4}], departed)
    assert found == {"Killed": 6}, "one more of those that are left"
