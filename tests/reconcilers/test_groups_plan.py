"""Jobs with replica groups: what their groups are made of, what one look plans, and what the status sums up."""

from __future__ import annotations

from typing import Any

import pytest

from crds import names
from crds.elasticjob import ElasticJob
from crds.grouping import index_of
from crds.model import ConditionData
from crds.scaleplan import ScalePlan, ScalePlanPhase
from reconcilers.groups.children import generations, group_job, is_outdated, labels_of, renewal
from reconcilers.groups.plan import MOST_ACTS, GroupsPlan, plan_groups
from reconcilers.job.published import FOR_PEOPLE, world_spec
from reconcilers.observed.groups import GroupOf
from reconcilers.scaleplan.verdicts import choose_plan
from tests.reconcilers.api import merged
from tests.reconcilers.build import NOW, job, later

NAME = "digits"
TIME = NOW.isoformat().replace("+00:00", "Z")
JSON = dict[str, Any]


def whole(groups: int = 3, minimum: int = 2, generation: int = 1, **spec: Any) -> ElasticJob:
    policy = {"replicaGroups": {"workers": 2, "min": minimum}}
    made = job(NAME, groups * 2, elasticPolicy=policy, **spec)
    metadata = made.metadata.model_copy(update={"generation": generation, "creation_timestamp": NOW})
    return made.model_copy(update={"metadata": metadata})


def group(index: int, generation: int = 1, of: int = 1, **status: Any) -> ElasticJob:
    """A group that takes part in round 1, but for what is said otherwise."""
    world = {"round": 1, "phase": "Formed", "masterAddress": f"10.0.0.{index}", "masterPort": 29_400}
    part = {"round": 1, "ready": True}
    counts = {"worker": {"desired": 2, "active": 2}}
    known = {"phase": "Running", "rendezvous": world, "replicaGroup": part, "replicaStatuses": counts}
    name, suspend = f"{NAME}-group-{index}", status.pop("suspend", False)
    made = job(name, 2, status=known | {"replicas": 2} | status, suspend=suspend)
    metadata = made.metadata.model_copy(
        update={
            "generation": generation,
            "labels": labels_of({}, GroupOf(NAME, "", index)),
            "annotations": {names.ANNOTATION_GROUPED_GENERATION: generations(of, generation)},
        }
    )
    return made.model_copy(update={"metadata": metadata})


def look(of: ElasticJob, *groups: ElasticJob, seconds: float = 0.0) -> GroupsPlan:
    by_index = {index_of(NAME, each.metadata.name) or 0: each for each in groups}
    return plan_groups(of, of.status.to_wire(), by_index, later(seconds))


def after(of: ElasticJob, plan: GroupsPlan) -> ElasticJob:
    """The job, once the plan's status is written."""
    wire = {"metadata": of.metadata.to_wire(), "spec": of.spec.to_wire()}
    return ElasticJob.model_validate(wire | {"status": merged(of.status.to_wire(), plan.status_patch)})


def condition(plan: GroupsPlan, type_: str) -> tuple[str, str, str]:
    (found,) = (each for each in plan.status_patch["conditions"] if each["type"] == type_)
    return found["status"], found["reason"], found.get("message", "")


# --- what a group is made of ---------------------------------------------------------------------------------


def stored(**spec: Any) -> JSON:
    made = {
        "replicaSpecs": {
            "worker": {"replicas": 6, "standby": 1, "template": {"spec": {"containers": [{"name": "main"}]}}},
            "dlrover-master": {"replicas": 1},
        },
        "elasticPolicy": {"replicaGroups": {"workers": 2, "min": 2}, "hangTimeoutSeconds": 60},
        "runPolicy": {"ttlSecondsAfterFinished": 9, "activeDeadlineSeconds": 99, "cleanPodPolicy": "All"},
        "suspend": False,
        "nodeCheck": {"enabled": True},
    }
    metadata = {"name": NAME, "namespace": "default", "uid": "u", "generation": 4, "labels": {"team": "a"}}
    return {"metadata": metadata, "spec": made | spec}


def test_a_group_is_the_job_with_its_own_count_and_without_what_ends_the_whole() -> None:
    made = group_job(stored(), 2)
    spec, wanted = made["spec"], stored()["spec"]
    assert spec["elasticPolicy"] == {"hangTimeoutSeconds": 60}
    assert spec["replicaSpecs"] == {
        "worker": wanted["replicaSpecs"]["worker"] | {"replicas": 2, "minReplicas": 2}
    }
    assert spec["runPolicy"] == {"cleanPodPolicy": "All"}
    assert spec["nodeCheck"] == wanted["nodeCheck"]
    metadata = made["metadata"]
    assert metadata["name"] == "digits-group-2"
    assert ({"team": "a"} | GroupOf(NAME, "", 2).labels).items() <= metadata["labels"].items()
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == (
        "ElasticJob",
        NAME,
        "u",
        True,
    )
    assert metadata["annotations"] == {names.ANNOTATION_GROUPED_GENERATION: "4.1"}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_groups_of_a_job_that_is_over_are_suspended(phase: str) -> None:
    assert group_job(stored() | {"status": {"phase": phase}}, 0)["spec"]["suspend"]
    assert group_job(stored(suspend=True), 0)["spec"]["suspend"]
    assert not group_job(stored(), 0)["spec"]["suspend"]


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("digits-group-12", 12),
        ("digits-group-01", None),
        ("digits-group--1", None),
        ("digits-group-0-worker-1", None),
        ("other-group-0", None),
    ],
)
def test_index_is_in_the_name_which_nobody_can_edit(name: str, index: int | None) -> None:
    assert index_of(NAME, name) == index


def applied(found: JSON, patch: JSON) -> JSON:
    """The group after a write, as the API server counts its generation."""
    result = merged(found, {k: v for k, v in patch.items() if k != "metadata"})
    changes = result["spec"] != found["spec"]
    metadata = merged(
        found["metadata"], {k: v for k, v in patch["metadata"].items() if k != "resourceVersion"}
    )
    return result | {"metadata": metadata | {"generation": found["metadata"]["generation"] + changes}}


EDITS: dict[str, JSON] = {
    "another count": {"spec": {"replicaSpecs": {"worker": {"replicas": 5}}}},
    "a field more": {"spec": {"envs": {"A": "1"}}},
    "a field less": {"spec": {"nodeCheck": None}},
    "held": {"spec": {"suspend": True}},
    "a label more": {"metadata": {"labels": {"team": "a", "queue": "b"}}},
    "a label less": {"metadata": {"labels": {"team": None}}},
    "another job's label": {"metadata": {"labels": {names.LABEL_GROUPED_JOB: "other"}}},
    "no note": {"metadata": {"annotations": {names.ANNOTATION_GROUPED_GENERATION: None}}},
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_group_is_put_back_once(edit: str) -> None:
    wanted = group_job(stored(), 1)
    made = wanted | {"metadata": wanted["metadata"] | {"generation": 1, "resourceVersion": "7"}}
    found = applied(made, {"metadata": {}} | EDITS[edit])

    def outdated(obj: JSON) -> bool:
        read = ElasticJob.model_validate(
            {"metadata": obj["metadata"], "spec": job(NAME, 2, suspend=obj["spec"]["suspend"]).spec.to_wire()}
        )
        return is_outdated(ElasticJob.model_validate(stored()), 1, read, False)

    assert not outdated(made) and outdated(found)
    act = renewal(stored(), 1, found)
    assert act.body["metadata"]["resourceVersion"] == "7"
    put_back = applied(found, act.body)
    assert put_back["spec"] == wanted["spec"] and not outdated(put_back)


# --- what a look plans ---------------------------------------------------------------------------------------


def test_many_groups_are_made_in_several_looks() -> None:
    plan = look(whole(groups=250))
    assert (len(plan.renewed), plan.look_again_seconds) == (MOST_ACTS, 0.0)


def test_nothing_is_written_where_nothing_changes() -> None:
    groups = [group(index) for index in range(3)]
    plan = look(whole(), *groups)
    assert plan.status_patch["phase"] == "Running"
    settled = after(whole(), plan)
    again = look(settled, *groups, seconds=50)
    assert (again.status_patch, again.is_for_people) == ({}, True)


def test_a_suspended_job_suspends_its_groups_makes_none_and_stops_its_deadline() -> None:
    limited = {"runPolicy": {"activeDeadlineSeconds": 60}}
    running = after(whole(**limited), look(whole(**limited), group(0), group(1)))
    held = running.model_copy(update={"spec": whole(suspend=True, **limited).spec})
    plan = look(held, group(0), group(1), seconds=30)
    assert plan.renewed == (0, 1)
    assert (plan.status_patch["phase"], plan.status_patch["startTime"]) == ("Suspended", None)
    assert [event.reason for event in plan.events] == ["Suspended"]
    resumed = after(held, plan).model_copy(update={"spec": whole(**limited).spec})
    later_on = look(resumed, group(0), group(1), seconds=600)
    assert later_on.status_patch["phase"] == "Running"


def test_a_job_beyond_its_deadline_fails_and_its_groups_are_suspended() -> None:
    limited = whole(runPolicy={"activeDeadlineSeconds": 60})
    running = after(limited, look(limited, group(0), group(1), group(2)))
    assert look(running, group(0), group(1), group(2), seconds=20).look_again_seconds == 40
    plan = look(running, group(0), group(1), group(2), seconds=60)
    assert (plan.status_patch["phase"], plan.status_patch["reason"]) == ("Failed", "DeadlineExceeded")
    assert plan.renewed == (0, 1, 2)
    over = after(running, plan)
    halted = [group(index, generation=2, suspend=True) for index in range(3)]
    assert look(over, *halted, seconds=70).renewed == ()


def test_the_job_fails_only_when_fewer_than_the_minimum_can_still_train() -> None:
    failed = group(0, phase="Failed")
    assert look(whole(), failed, group(1), group(2)).status_patch["phase"] == "Running"
    plan = look(whole(), failed, group(1, phase="Failed"), group(2))
    assert (plan.status_patch["phase"], plan.status_patch["reason"]) == ("Failed", "GroupsFailed")
    assert "see digits-group-0" in plan.status_patch["message"]
    assert condition(plan, "Failed")[:2] == ("True", "GroupsFailed")
    assert [(event.type, event.reason) for event in plan.events][-1] == ("Warning", "GroupsFailed")


def test_a_failed_group_is_neither_replaced_nor_edited() -> None:
    assert look(whole(generation=2), group(0, phase="Failed"), group(1, of=2), group(2, of=2)).renewed == ()


def test_a_job_has_succeeded_when_all_that_trained_have() -> None:
    running = after(whole(), look(whole(), group(0), group(1), group(2)))
    one = look(running, group(0, phase="Succeeded"), group(1), group(2))
    assert one.status_patch.get("phase", "Running") == "Running"
    done = [group(index, phase="Succeeded") for index in range(3)]
    plan = look(running, *done, seconds=9)
    assert (plan.status_patch["phase"], plan.renewed) == ("Succeeded", ())
    assert plan.status_patch["completionTime"]
    assert condition(plan, "Running")[:2] == ("False", "Succeeded")
    ended = after(running, plan)
    assert look(ended, *done, seconds=99).status_patch == {}


def test_a_plan_for_a_job_with_groups_is_refused_once_with_what_to_do() -> None:
    asked = ScalePlan.model_validate(
        {
            "metadata": {"name": "p", "namespace": "default", "uid": "p", "resourceVersion": "1"},
            "spec": {"ownerJob": NAME, "replicaResourceSpecs": {"worker": {"replicas": 8}}},
        }
    )
    chosen, (verdict,) = choose_plan([asked], whole(), (), ())
    assert chosen is None
    assert (verdict.phase, verdict.reason) == (ScalePlanPhase.REFUSED, "ReplicaGroups")
    assert verdict.message.endswith("in spec.replicaSpecs.worker.replicas of digits")


# --- what the status sums up ---------------------------------------------------------------------------------


def test_counts_restarts_and_the_newest_failure_are_of_all_groups() -> None:
    def failure(worker: str, seconds: float) -> JSON:
        time_ = later(seconds).isoformat().replace("+00:00", "Z")
        return {"worker": worker, "exitClass": "Unknown", "time": time_}

    groups = [
        group(0, restarts={"Unknown": 2}, lastFailure=failure("a", 5)),
        group(1, restarts={"Unknown": 1, "OOM": 1}, lastFailure=failure("b", 9)),
        group(2, replicaStatuses={"worker": {"desired": 2, "active": 1, "pending": 1}}, replicas=1),
    ]
    status = look(whole(), *groups).status_patch
    assert status["restarts"] == {"Unknown": 3, "OOM": 1}
    assert status["lastFailure"]["worker"] == "b"
    counts = status["replicaStatuses"]["worker"]
    assert (counts["desired"], counts["active"], counts["pending"]) == (6, 5, 1)
    assert status["replicas"] == 5
    assert status["selector"] == f"{names.LABEL_GROUPED_JOB}=digits,{names.LABEL_TYPE}=worker"


def test_conditions_say_who_trains_and_why_workers_are_missing() -> None:
    pending = group(
        2,
        phase="Pending",
        rendezvous={},
        reason="Unschedulable",
        message="no node has a GPU",
        replicaStatuses={"worker": {"desired": 2, "pending": 2}},
    )
    plan = look(whole(), group(0), group(1), pending)
    assert condition(plan, "Running")[:2] == ("True", "Running")
    assert condition(plan, "WorldFormed") == ("True", "Formed", "version 1: groups 0-1 train, without 2")
    assert condition(plan, "WorkersReady") == (
        "False",
        "Unschedulable",
        "2 workers not running yet; see digits-group-2",
    )
    assert plan.status_patch["groups"][2]["message"] == "Unschedulable: no node has a GPU"
    waiting = look(whole(minimum=3), group(0), group(1), pending)
    assert waiting.status_patch["reason"] == "Unschedulable"
    assert waiting.status_patch["message"].startswith("2 of 3 groups ready to train, and training needs 3")


def test_the_world_of_the_job_has_its_membership_and_phase_alone() -> None:
    of = after(whole(), look(whole(), group(0), group(1), group(2, restarts={"Unknown": 4})))
    spec = world_spec({"metadata": {}, "spec": of.spec.to_wire(), "status": of.status.to_wire()})
    assert spec.keys() == {"jobPhase", "replicas"}
    assert [place["index"] for place in spec["replicas"]["groups"]] == [0, 1, 2]


def test_a_group_that_only_gets_further_changes_nothing_but_what_is_for_people() -> None:
    groups = [group(0), group(1), group(2)]
    of = after(whole(), look(whole(), *groups))
    further = group(2, replicaGroup={"round": 1, "ready": True, "version": 1})
    patch = look(of, group(0), group(1), further).status_patch
    assert patch.keys() and patch.keys() <= FOR_PEOPLE


def at_step(step: int) -> JSON:
    """The goodput of a group that has come to a step."""
    return {"state": "Training", "since": later(0).isoformat(), "lastStep": step}


def part(**more: Any) -> JSON:
    return {"round": 1, "ready": True} | more


def test_late_groups_are_a_warning_until_they_are_back_or_restart() -> None:
    of = after(whole(), look(whole(), group(0), group(1), group(2)))
    waits = group(1, replicaGroup=part(version=1, lateVersion=1, lateGroups=[0]))
    plan = look(of, group(0), waits, group(2), seconds=10)
    assert [(event.type, event.reason) for event in plan.events] == [
        ("Warning", "GroupsChanged"),
        ("Warning", "GroupsLate"),
    ]
    of = after(of, plan)
    (warning,) = of.status.warnings
    assert warning.message.startswith("the other groups waited in vain for 0, ")
    assert (
        look(of, group(0), waits, group(2), seconds=20)
        .status_patch.keys()
        .isdisjoint(("warnings", "membership"))
    )
    restarting = group(0, rendezvous={"round": 2, "phase": "Forming"}, replicaGroup=part(ready=False))
    assert look(of, restarting, waits, group(2), seconds=20).status_patch["warnings"] == []
    back = group(0, replicaGroup=part(version=1, leftOutVersion=2))
    assert look(of, back, waits, group(2), seconds=20).status_patch["warnings"] == []
    failed = group(0, phase="Failed")
    assert look(of, failed, waits, group(2), seconds=20).status_patch["warnings"] == [], "it never comes back"


def test_an_exchange_that_breaks_again_and_again_is_a_warning_until_a_step_is_made() -> None:
    of, met = whole(), 0
    of = after(of, look(of, group(0), group(1)))
    for version in (1, 2, 3):
        together = [group(index, replicaGroup=part(version=version), goodput=at_step(7)) for index in (0, 1)]
        of = after(of, look(of, *together, seconds=10.0 * version))
        assert len(of.status.warnings) == (version > 1), "they have met, and made no step since"
        broke = group(1, replicaGroup=part(version=version, brokenVersion=version), goodput=at_step(7))
        plan = look(of, together[0], broke, seconds=10.0 * version)
        met += sum(event.reason == "ExchangeBroken" for event in plan.events)
        of = after(of, plan)
        assert of.status.membership is not None and of.status.membership.version == version + 1
        (warning,) = of.status.warnings
        assert f"version {version} failed" in warning.message and warning.since == later(10.0)
        assert ("versions in a row" in warning.message) == (version > 1)
        assert warning.data == ConditionData(count=version, step=7)
    assert met == 1, "one Event"
    behind = [group(0, replicaGroup=part(version=4)), group(1, replicaGroup=part(version=3, brokenVersion=3))]
    assert "warnings" not in look(of, *behind, seconds=50).status_patch
    together = [group(index, replicaGroup=part(version=4), goodput=at_step(8)) for index in (0, 1)]
    assert look(of, *together, seconds=60).status_patch["warnings"] == []


def test_a_broken_exchange_of_groups_without_known_steps_is_a_warning_until_all_have_met() -> None:
    of = after(whole(), look(whole(), group(0), group(1)))
    broke = group(1, replicaGroup=part(version=1, brokenVersion=1))
    of = after(of, look(of, group(0, replicaGroup=part(version=1)), broke, seconds=10))
    assert [each.type for each in of.status.warnings] == ["ExchangeBroken"]
    together = [group(index, replicaGroup=part(version=2)) for index in (0, 1)]
    assert look(of, *together, seconds=20).status_patch["warnings"] == []
