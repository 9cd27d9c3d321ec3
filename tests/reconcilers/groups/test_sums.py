"""Warnings and conditions of all groups in one of a type, and requests that only one group can answer."""

from __future__ import annotations

from typing import Any

import pytest

from crds import names
from crds.job_status import MAX_WARNINGS
from crds.model import MAX_CONDITION_MESSAGE
from reconcilers.conditions.table import WARNINGS
from tests.reconcilers.build import later
from tests.reconcilers.test_groups_plan import TIME, after, condition, group, look, whole

JSON = dict[str, Any]


def warning(type_: str, message: str, seconds: float = 0, **more: Any) -> JSON:
    since = later(seconds).isoformat().replace("+00:00", "Z")
    return {"type": type_, "message": message, "since": since} | more


def checked(status: str, reason: str, message: str) -> JSON:
    said = {"type": "NodesChecked", "status": status, "reason": reason, "message": message}
    return {"conditions": [said | {"lastTransitionTime": TIME}]}


def test_warnings_of_one_type_are_one_with_the_words_of_the_first() -> None:
    slow = [warning("Slow", "0.4 s, not 0.2 s", 9), warning("Slow", "0.5 s, not 0.2 s", 5)]
    failing = warning("CheckpointsFailing", "disk full", reason="StorageFails")
    groups = [group(0, warnings=[slow[0]]), group(1), group(2, warnings=[failing, slow[1]])]
    told = look(whole(), *groups, seconds=10).status_patch["warnings"]
    assert [(each["type"], each["message"]) for each in told] == [
        ("CheckpointsFailing", "group 2: disk full"),
        ("Slow", "groups 0,2, of the first: 0.4 s, not 0.2 s"),
    ]
    assert told[0]["reason"] == "StorageFails"
    assert told[1]["since"] == slow[1]["since"]


def test_a_warning_that_no_group_has_any_more_is_gone() -> None:
    of = after(whole(), look(whole(), group(0, warnings=[warning("Slow", "x")]), group(1), group(2)))
    assert of.status.warnings
    assert not after(of, look(of, group(0), group(1), group(2))).status.warnings


def test_warnings_of_a_thousand_groups_are_bounded() -> None:
    every = [warning(kind.type, "x" * 900) for kind in WARNINGS]
    groups = [group(index, warnings=every) for index in range(1_000)]
    told = look(whole(groups=1_000), *groups).status_patch["warnings"]
    assert len(told) == len(WARNINGS) <= MAX_WARNINGS
    assert max(len(each["message"]) for each in told) <= MAX_CONDITION_MESSAGE


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ([{}, {}, {}], None),
        (
            [checked("True", "Fresh", "all fresh"), {}, checked("True", "Fresh", "all fresh")],
            ("True", "Fresh", "groups 0,2, of the first: all fresh"),
        ),
        (
            [checked("True", "AllHealthy", "ok"), checked("Unknown", "Checking", "check a tests"), {}],
            ("Unknown", "Checking", "group 1: check a tests"),
        ),
        (
            [
                checked("Unknown", "CheckRefused", "no right"),
                checked("Unknown", "Checking", "check a tests"),
                checked("False", "FaultyNodes", "node-3 is faulty"),
            ],
            ("False", "FaultyNodes", "group 2: node-3 is faulty"),
        ),
    ],
)
def test_nodes_are_checked_as_they_are_in_the_worst_group(groups: list[JSON], told: Any) -> None:
    plan = look(whole(), *(group(index, **each) for index, each in enumerate(groups)))
    types = [each["type"] for each in plan.status_patch["conditions"]]
    assert (condition(plan, "NodesChecked") if "NodesChecked" in types else None) == told


def test_nothing_was_scaled_before_anything_was_requested_whatever_dies() -> None:
    of = after(whole(), look(whole(), group(0), group(1), group(2)))
    of = after(of, look(of, group(0), group(1, rendezvous={"round": 1, "phase": "Reforming"}), group(2)))
    assert "Scaled" not in [each.type for each in of.status.conditions]


def test_a_job_is_scaled_once_all_wanted_groups_train_and_the_others_are_gone() -> None:
    three = [group(0), group(1), group(2)]
    of = after(whole(), look(whole(), *three))
    smaller = of.model_copy(update={"spec": whole(groups=2).spec})
    plan = look(smaller, *three)
    assert condition(plan, "Scaled") == ("False", "Scaling", "group 2 still to go")
    smaller = after(smaller, plan)
    plan = look(smaller, *three[:2])
    assert condition(plan, "Scaled") == ("True", "AsAsked", "")
    larger = after(smaller, plan).model_copy(update={"spec": whole(groups=4).spec})
    plan = look(larger, *three[:2])
    assert condition(plan, "Scaled") == ("False", "Scaling", "groups 2-3 not training yet")
    assert condition(look(after(larger, plan), *three, group(3)), "Scaled")[0] == "True"


def test_a_group_whose_pods_still_get_new_resources_is_named() -> None:
    resizes = {"type": "Scaled", "status": "False", "reason": "Scaling", "message": "worker 1 is old"}
    plan = look(whole(), group(0), group(1, conditions=[resizes | {"lastTransitionTime": TIME}]), group(2))
    assert condition(plan, "Scaled") == ("False", "Scaling", "group 1: worker 1 is old")


def test_a_request_to_the_whole_job_is_withdrawn_with_a_sentence_that_names_a_group() -> None:
    of, name = whole(), names.ANNOTATION_STACKS
    metadata = of.metadata.model_copy(update={"annotations": {name: "now", "a": "b"}})
    of = of.model_copy(update={"metadata": metadata})
    plan = look(of, group(0), group(1), group(2))
    (act,) = plan.refused
    assert (act.name, act.body) == ("digits", {"metadata": {"annotations": {name: None}}})
    (event,) = (each for each in plan.events if each.reason == "RequestRefused")
    assert event.type == "Warning"
    assert event.message.endswith(f"annotate one of its groups, as digits-group-0, with {name}")
    assert not plan.is_for_people


def test_only_a_group_that_is_missed_is_worth_a_warning() -> None:
    three = [group(0), group(1), group(2)]
    of = after(whole(), look(whole(), *three))

    def types(plan: Any) -> list[tuple[str, str]]:
        return [(each.type, each.message) for each in plan.events if each.reason == "GroupsChanged"]

    lost = group(1, rendezvous={"round": 1, "phase": "Reforming", "brokenRound": 1})
    assert types(look(of, group(0), lost, group(2))) == [
        ("Warning", "version 2: groups 0,2 train, without 1")
    ]
    finished = group(1, phase="Succeeded")
    assert types(look(of, group(0), finished, group(2)))[0][0] == "Normal"
    smaller = of.model_copy(update={"spec": whole(groups=2).spec})
    assert types(look(smaller, *three)) == [("Normal", "version 2: groups 0-1 train")]
