"""`spec.failurePolicy.rules`: the first rule that matches a failure says what becomes of it.

Cheap matchers come first, and no rule after the one that matches is looked at; `patterns.py` bounds the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crds.agent_report import AgentFailure
from crds.elasticjob import ElasticJob
from crds.failure_policy import ExitCodeOperator, FailureAction, FailureRule, OnExitCodes, OnPodCondition
from reconcilers.failure.patterns import Pattern, Unfit, patterns_of, searched
from reconcilers.observed.containers import training_container_name
from reconcilers.observed.exit_class import PodEnd, failed_containers


@dataclass(frozen=True)
class Happened:
    """What the rules look at."""

    exits: tuple[tuple[str | None, frozenset[int]], ...] = ()
    """The containers, or processes, that failed: the container's name, and all numbers of its exit code."""
    blamed: str | None = None
    """The container whose end it is: rules that name none go by its exit code."""
    conditions: frozenset[tuple[str, str]] = frozenset()
    """Type and status of the Pod's."""
    text: str = ""


def of_process(failure: AgentFailure) -> Happened:
    """A training process's end. Its container lives: rules that name one do not match."""
    code = failure.exit_code
    exits = () if code is None else ((None, frozenset({code, 128 - code} if code < 0 else {code})),)
    return Happened(exits=exits, text=f"{failure.message}\n{failure.log_tail}")


def of_pod(pod: Mapping[str, Any] | None, end: PodEnd, message: str) -> Happened:
    """A Pod's end, or that of a container in it; None if it is gone."""
    if pod is None:
        return Happened(text=message)
    conditions = pod.get("status", {}).get("conditions", ())
    own = {} if end.exit_code is None else {end.container: end.exit_code}
    codes = {name: ended.get("exitCode", 0) for name, ended in failed_containers(pod)} | own
    return Happened(
        exits=tuple((name, frozenset({code})) for name, code in codes.items()),
        blamed=end.container or training_container_name(pod),
        conditions=frozenset((c.get("type", ""), c.get("status", "")) for c in conditions),
        text=message,
    )


def action_for(rules: Sequence[FailureRule], happened: Happened) -> FailureAction | None:
    """Return the action of the first rule that matches; None if none does. All matchers of a rule must match,
    and a pattern that is not applied matches nothing."""
    text = searched(happened.text)
    for rule, pattern in zip(rules, patterns_of(rules), strict=True):
        if _matches(rule, pattern, happened, text):
            return rule.action
    return None


def rules_of(job: ElasticJob) -> list[FailureRule]:
    return job.spec.failure_policy.rules


def _matches(rule: FailureRule, pattern: Pattern | Unfit | None, happened: Happened, text: bytes) -> bool:
    if not (rule.on_exit_codes or rule.on_pod_conditions or pattern):
        return False
    return (
        (rule.on_exit_codes is None or _exits_as(rule.on_exit_codes, happened))
        and (not rule.on_pod_conditions or any(_is_so(each, happened) for each in rule.on_pod_conditions))
        and (pattern is None or (isinstance(pattern, Pattern) and pattern.is_in(text)))
    )


def _exits_as(asked: OnExitCodes, happened: Happened) -> bool:
    values = frozenset(asked.values)
    for container, codes in happened.exits:
        wanted = happened.blamed if asked.container_name is None else asked.container_name
        if container == wanted and bool(codes & values) is (asked.operator is ExitCodeOperator.IN):
            return True
    return False


def _is_so(asked: OnPodCondition, happened: Happened) -> bool:
    return (asked.type, asked.status) in happened.conditions
