from __future__ import annotations

from typing import Any

import pytest

from crds.failure_policy import FailureAction, FailureRule
from reconcilers.conditions.pods import PATTERNS_NOT_APPLIED
from reconcilers.failure.rules import (
    MOST_BYTES,
    action_for,
    of_pod,
    of_process,
    searched,
    unfit_patterns,
)
from reconcilers.observed.exit_class import classify_pod, end_of_deleted
from tests.reconcilers.build import failure, job, pod, terminated
from tests.reconcilers.judging import judge, warnings


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


def patterns(*found: str) -> list[FailureRule]:
    return [rule(onMessagePattern=pattern) for pattern in found]


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(unclosed", "is no RE2: missing )"),
        ("(?:.?){1000}x", "product above 99"),
        ("(?:(?:a{10}){10}){10}", "product above 99"),
        (r"(?i)(?:\pL?){4}x", r"Unicode characters (\p)"),
        (r"\\\PN", r"Unicode characters (\p)"),
        (".{90}", "compiles to 724 instructions, and those before it leave 592"),
        ("(?:\\b*|a)" * 20 + "{99}", "compiles to"),
    ],
)
def test_a_pattern_that_costs_too_much_is_not_applied_and_the_job_says_so(pattern: str, why: str) -> None:
    told = of_process(failure(message="x" * 4_000))
    rules = patterns("none", pattern, "x+")
    assert action_for(rules, told) is FailureAction.FAIL_JOB and action_for(rules[:2], told) is None
    of = job(failurePolicy={"rules": [each.to_wire() for each in rules]})
    after, events = judge(of, PATTERNS_NOT_APPLIED)
    message = warnings(after)[PATTERNS_NOT_APPLIED].message
    assert (
        message.startswith("spec.failurePolicy.rules[1].onMessagePattern is not applied: it ")
        and why in message
    )
    assert [event.reason for event in events] == [PATTERNS_NOT_APPLIED]


@pytest.mark.parametrize("pattern", ["(a+)+$b", r"C:\\pkg", r"\d{4}-\d{2}-\d{2}", "(?i)" + "k" * 140, "é{2}"])
def test_other_patterns_are_applied(pattern: str) -> None:
    assert unfit_patterns(patterns(pattern)) == []


def test_all_patterns_of_a_job_are_small_together() -> None:
    found = unfit_patterns(patterns(*(f"{number:02}" + "abcd" * 20 for number in range(20))))
    assert len(found) == 20 - 600 // 86 and found[0].startswith("spec.failurePolicy.rules[6].")


def test_the_beginning_and_the_end_of_a_long_text_are_searched() -> None:
    told = of_process(failure(message="é" * 4_095 + "!", log_tail="\N{SNOWMAN}" * 4_095 + "?"))
    assert len(searched(told.text)) == MOST_BYTES
    assert [action_for(patterns(each), told) is not None for each in ("^é", "!", r"\?$", "\N{SNOWMAN}")] == [
        True,
        False,
        True,
        True,
    ]
