from __future__ import annotations

from typing import Any

import pytest

from crds.failure_policy import FailureAction, FailureRule
from reconcilers.failure.rules import action_for, of_pod, of_process
from reconcilers.observed.exit_class import classify_pod, end_of_deleted
from tests.reconcilers.build import failure, pod, terminated


def rule(action: str = "FailJob", **matchers: Any) -> FailureRule:
    return FailureRule.model_validate({"action": action} | matchers)


def exits(operator: str, *values: int, container: str | None = None) -> dict[str, Any]:
    named = {"containerName": container} if container else {}
    return {"onExitCodes": {"operator": operator, "values": list(values)} | named}


@pytest.mark.parametrize(
    ("matchers", "matches"),
    [
        (exits("In", 1, 3), True),
        (exits("In", 3), False),
        (exits("NotIn", 3), True),
        (exits("NotIn", 1), False),
        (exits("In", 1, container="main"), False),
        ({"onMessagePattern": "Value.*: b[a]d"}, True),
        ({"onMessagePattern": "(?i)LOSS IS NAN"}, True),
        ({"onMessagePattern": "^bad"}, False),
        (exits("In", 1) | {"onMessagePattern": "nothing of it"}, False),
        (exits("In", 1) | {"onMessagePattern": "bad"}, True),
        ({"onPodConditions": [{"type": "DisruptionTarget"}]}, False),
        ({"onMessagePattern": "(?=lookahead)"}, False),
        ({}, False),
    ],
)
def test_rules_match_process_failures(matchers: dict[str, Any], matches: bool) -> None:
    told = of_process(failure(log_tail="epoch 3: loss is nan"))
    assert (action_for([rule(**matchers)], told) is FailureAction.FAIL_JOB) is matches


@pytest.mark.parametrize(("asked", "matches"), [(-9, True), (137, True), (9, False)])
def test_a_signal_is_known_by_both_its_codes(asked: int, matches: bool) -> None:
    told = of_process(failure(exit_code=-9))
    assert (action_for([rule(**exits("In", asked))], told) is not None) is matches


@pytest.mark.parametrize(
    ("matchers", "matches"),
    [
        (exits("In", 42), True),
        (exits("In", 42, container="main"), True),
        (exits("In", 42, container="other"), False),
        (exits("NotIn", 42, container="main"), False),
        (exits("NotIn", 42), False),
        ({"onPodConditions": [{"type": "Absent"}, {"type": "DisruptionTarget"}]}, True),
        ({"onPodConditions": [{"type": "DisruptionTarget", "status": "False"}]}, False),
        ({"onMessagePattern": "no such file"}, True),
    ],
)
def test_rules_match_pod_ends(matchers: dict[str, Any], matches: bool) -> None:
    condition = {"type": "DisruptionTarget", "status": "True"}
    ended = pod(
        phase="Failed",
        conditions=[condition],
        containerStatuses=[terminated(42), terminated(0, name="other")],
    )
    told = of_pod(ended, classify_pod(ended), "no such file: data.csv")
    assert (action_for([rule(**matchers)], told) is FailureAction.FAIL_JOB) is matches


def test_the_first_rule_that_matches_decides() -> None:
    rules = [
        rule("Ignore", **exits("In", 7)),
        rule("Replace", **exits("In", 1)),
        rule("FailJob", **exits("In", 1)),
    ]
    assert action_for(rules, of_process(failure())) is FailureAction.REPLACE
    assert action_for(rules[:1], of_process(failure())) is None


def test_a_pod_that_is_gone_has_only_its_text() -> None:
    assert (
        action_for([rule(**exits("NotIn", 0))], of_pod(None, end_of_deleted(None), "the Pod was deleted"))
        is None
    )
    assert (
        action_for(
            [rule(onMessagePattern="deleted")], of_pod(None, end_of_deleted(None), "the Pod was deleted")
        )
        is not None
    )


def test_a_pattern_that_takes_others_for_ever_is_answered_at_once() -> None:
    told = of_process(failure(message="a" * 4_000))
    assert action_for([rule(onMessagePattern="(a+)+$b")], told) is None
