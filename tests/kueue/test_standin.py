"""What holds of the stand-in for Kueue in whatever order things happen."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest

from controller.errors import AlreadyExists, ApiError, Conflict, Forbidden, Invalid, NotFound, Unavailable
from tests.kueue import build
from tests.kueue.build import GPU, NAMESPACE
from tests.kueue.objects import Object, stamp
from tests.kueue.schedule import Clock, Schedule, is_true, kueue
from tests.kueue.standin import Kueue
from tests.kueue.statuses import Config

SCHEDULES = 150
STEPS = 60


def get(made: Kueue, name: str) -> Object:
    return made.workloads[NAMESPACE, name]


def schedules() -> Iterator[Schedule]:
    for seed in range(SCHEDULES):
        yield Schedule(seed)


def test_no_more_is_charged_than_there_is_but_for_the_replaced() -> None:
    for schedule in schedules():
        for _ in range(STEPS):
            schedule.step()
            assert schedule.net("small") <= 4
            assert schedule.net("left", "right") <= 6


def test_refused_writes_change_nothing() -> None:
    refused = 0
    for schedule in schedules():
        for _ in range(STEPS):
            schedule.step()
        refused += schedule.refused
    assert refused > SCHEDULES


def test_what_is_admitted_has_quota_within_its_counts() -> None:
    admitted = 0
    for schedule in schedules():
        for _ in range(STEPS):
            schedule.step()
            for obj in schedule.kueue.workloads.values():
                if is_true(obj, "Admitted"):
                    admitted += 1
                    assert is_true(obj, "QuotaReserved")
                    (assignment,) = obj["status"]["admission"]["podSetAssignments"]
                    assert assignment["count"] >= obj["spec"]["podSets"][0].get("minCount", 1)
    assert admitted > SCHEDULES


def test_a_restart_of_the_manager_finds_nothing_that_was_overlooked() -> None:
    """Slices apart (see below), and who waits for the preempted: that it is the first is not in objects."""
    for seed in range(SCHEDULES):
        schedule = Schedule(seed, slices=False)
        made = schedule.kueue
        for step in range(STEPS):
            schedule.step()
            if step % 5:
                continue
            made.down = False
            made.settle()
            if "Pending the preemption" in str(made.workloads):
                continue
            before = {key: obj["status"].get("admission") for key, obj in made.workloads.items()}
            made.down = True
            assert made.moves() == []
            made.down = False
            made.settle()
            assert {key: obj["status"].get("admission") for key, obj in made.workloads.items()} == before


def test_the_same_schedule_gives_the_same_objects() -> None:
    for seed in range(20):
        ends = []
        for _ in range(2):
            schedule = Schedule(seed)
            for _ in range(STEPS):
                schedule.step()
            ends.append(schedule.kueue.workloads)
        assert ends[0] == ends[1]


# --- requests ---------------------------------------------------------------------------------------------


def test_a_write_of_an_old_version_is_a_conflict() -> None:
    made = kueue()
    old = made.create(build.workload("one", 2))
    made.settle()
    with pytest.raises(Conflict):
        made.put_status(old)
    with pytest.raises(Conflict):
        made.update(old)


def test_what_is_there_is_not_created_and_what_is_not_is_not_found() -> None:
    made = kueue()
    made.create(build.workload("one", 2))
    with pytest.raises(AlreadyExists):
        made.create(build.workload("one", 3))
    with pytest.raises(NotFound):
        made.delete(NAMESPACE, "two")


def test_while_the_manager_is_down_only_deletes_go_through() -> None:
    made = kueue()
    one = made.create(build.workload("one", 2))
    made.down = True
    for write in (
        lambda: made.create(build.workload("two", 2)),
        lambda: made.patch(NAMESPACE, "one", {"metadata": {"labels": {"a": "b"}}}),
        lambda: made.put_status(build.finished(one, stamp(0))),
    ):
        with pytest.raises(Unavailable, match="failed calling webhook"):
            write()
    assert made.moves() == []
    made.delete(NAMESPACE, "one")
    assert not made.workloads


def test_one_with_a_finalizer_stays_charged_until_it_is_finished() -> None:
    made = kueue()
    made.create(
        build.workload(
            "one", 4, finalizers=["kueue.x-k8s.io/resource-in-use"], ownerReferences=[{"uid": "a"}]
        )
    )
    made.settle()
    made.delete(NAMESPACE, "one")
    made.settle()
    assert "deletionTimestamp" in get(made, "one")["metadata"]
    assert made.used("small", "fixed", GPU) == 4
    made.put_status(build.finished(get(made, "one"), stamp(0)))
    assert made.used("small", "fixed", GPU) == 0
    made.patch(NAMESPACE, "one", [{"op": "remove", "path": "/metadata/finalizers"}])
    assert not made.workloads


@pytest.mark.parametrize(
    ("patch", "error"),
    [
        ([{"op": "replace", "path": "/spec/podSets/0/count", "value": 4}], Forbidden),
        ([{"op": "replace", "path": "/spec/podSets/0/count", "value": 1}], Invalid),
        ([{"op": "replace", "path": "/spec/podSets/0/minCount", "value": 1}], Forbidden),
        ({"spec": {"queueName": "main"}}, Invalid),
        (
            {
                "spec": {
                    "priorityClassRef": {
                        "group": "kueue.x-k8s.io",
                        "kind": "WorkloadPriorityClass",
                        "name": "a",
                    }
                }
            },
            Invalid,
        ),
        ({"metadata": {"annotations": {"kueue.x-k8s.io/admission-gated-by": "a"}}}, Forbidden),
    ],
)
def test_what_has_quota_is_not_changed_but_for_a_smaller_count(patch: object, error: type[ApiError]) -> None:
    made = kueue()
    made.create(build.workload("one", 3, 2))
    made.settle()
    before = copy.deepcopy(made.workloads)
    with pytest.raises(error):
        made.patch(NAMESPACE, "one", patch)  # type: ignore[arg-type]
    assert made.workloads == before
    made.patch(NAMESPACE, "one", [{"op": "replace", "path": "/spec/podSets/0/count", "value": 2}])
    assert made.used("small", "fixed", GPU) == 2


# --- moves ------------------------------------------------------------------------------------------------


def test_a_lost_finish_leaves_both_charged() -> None:
    made = kueue()
    made.create(build.workload("old", 3, 1))
    made.settle()
    made.create(build.workload("new", 3, 1, replaces="old"))
    (admit,) = made.moves()
    admit.do()
    (finish,) = made.moves()
    assert finish.name == "finish replaced"
    finish.lose()
    made.settle()
    assert made.used("small", "fixed", GPU) == 6
    assert not is_true(get(made, "old"), "Finished")


def test_a_death_between_admission_and_finish_leaves_both_charged() -> None:
    made = kueue()
    made.create(build.workload("old", 3, 1))
    made.settle()
    made.create(build.workload("new", 3, 1, replaces="old"))
    made.moves()[0].do()
    made.down = True
    made.down = False
    made.settle()
    assert made.used("small", "fixed", GPU) == 6


def test_who_waits_for_the_preempted_stays_first() -> None:
    made = kueue(3, preemption={"reclaimWithinCohort": "Any"}, cohortName="pair")
    made.put(build.cluster_queue("right", {"fixed": 1}, cohortName="pair"))
    made.put(build.local_queue("right"))
    made.create(build.workload("borrower", 4, queue="right"))
    made.settle()
    made.create(build.workload("owner", 3))
    made.settle()
    made.create(build.workload("greater", 3, priority=10))
    made.settle()
    assert not get(made, "greater")["status"]
    made.put_status(build.released(get(made, "borrower")))
    made.settle()
    assert is_true(get(made, "owner"), "Admitted")


def test_a_move_listed_before_another_write_is_not_done() -> None:
    made = kueue()
    made.create(build.workload("one", 4))
    (admit,) = made.moves()
    made.create(build.workload("two", 4))
    with pytest.raises(ValueError, match="list the moves again"):
        admit.do()
    with pytest.raises(ValueError, match="Kueue does it again"):
        admit.lose()


def test_of_several_pod_sets_only_the_elastic_one_is_admitted_in_part() -> None:
    made = kueue(4)
    new = build.workload("one", 6, 2)
    first = copy.deepcopy(new["spec"]["podSets"][0]) | {"name": "head", "count": 1}
    del first["minCount"]
    new["spec"]["podSets"].insert(0, first)
    made.create(new)
    made.settle()
    granted = {
        each["name"]: each["count"] for each in get(made, "one")["status"]["admission"]["podSetAssignments"]
    }
    assert granted == {"head": 1, "worker": 3}
    assert made.used("small", "fixed", GPU) == 4


def test_what_is_not_modelled_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="fairSharing"):
        kueue(4, fairSharing={"weight": 2})
    with pytest.raises(NotImplementedError, match="Cohort pair"):
        kueue().put({"kind": "Cohort", "metadata": {"name": "pair"}, "spec": {"parentName": "all"}})


def test_a_slice_of_the_same_shape_as_one_that_waits_is_not_looked_at() -> None:
    """Kueue takes both for the same, though a slice needs only the difference (kueue #14247)."""
    made = kueue()
    made.create(build.workload("held", 3, 3))
    made.settle()
    made.create(build.workload("other", 3, 3))
    made.settle()
    made.create(build.workload("slice", 3, 3, replaces="held"))
    made.settle()
    assert not get(made, "slice")["status"]
    made.delete(NAMESPACE, "other")
    made.settle()
    assert is_true(get(made, "slice"), "Admitted")


def test_clocks_are_due_when_they_say() -> None:
    clock = Clock()
    made = kueue(4, clock, Config(timeout_seconds=60, backoff_seconds=5))
    made.create(build.workload("one", 1))
    made.settle()
    assert made.next_clock() == 1060
    clock.seconds = 1060
    made.settle()
    assert is_true(get(made, "one"), "Evicted")
    made.put_status(build.released(get(made, "one")))
    made.settle()
    assert made.next_clock() == 1065
    clock.seconds = 1065
    made.settle()
    assert is_true(get(made, "one"), "Admitted")
