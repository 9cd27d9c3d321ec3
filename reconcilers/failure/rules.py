"""`spec.failurePolicy.rules`: the first rule that matches a failure decides its consequence. Pure.

Cheap matchers come first, and rules after a match are not read. RE2 takes time in proportion to the text and
to the compiled pattern, which counted repetition can make arbitrarily large. So a pattern that may be large
is refused before it is compiled, the instructions of all patterns of a job are limited, and so is the text.
In the worst case an instruction takes 6 ns for each byte of the text: 30 ms for all patterns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import re2

from controller.wording import counted
from crds.agent_report import MAX_TEXT, AgentFailure
from crds.elasticjob import ElasticJob
from crds.failure_policy import ExitCodeOperator, FailureAction, FailureRule, OnExitCodes
from crds.texts import shortened
from reconcilers.observed.containers import training_container_name
from reconcilers.observed.exit_class import PodEnd, failed_containers

MOST_INSTRUCTIONS = 600
"""Most instructions of all compiled patterns of a job."""
MOST_REPETITIONS = 99
"""Largest product of the counts in a pattern, such as 20 for `(?:[a-f]{4}-){5}`."""
MOST_BYTES = 2 * (MAX_TEXT + 4) + 1
"""Most bytes of a text that are searched: a message and the end of a log, if all is ASCII."""
MAX_ERROR = 80
"""Most bytes of RE2's message about an invalid pattern."""
MOST_COMPILED = 256
"""Size of the cache of compiled patterns."""

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.never_capture = True
_OPTIONS.max_mem = 64 << 10
"""With more memory, RE2 builds more states for a hostile pattern before it falls back to its NFA."""

_COUNT = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_UNICODE_CLASS = re.compile(r"(?<!\\)(?:\\\\)*\\[pP]")


@dataclass(frozen=True)
class Pattern:
    """A compiled pattern."""

    compiled: Any
    instructions: int

    def is_in(self, text: bytes) -> bool:
        return self.compiled.search(text) is not None


@dataclass(frozen=True)
class Unfit:
    """A pattern that is not applied."""

    reason: str


def searched(text: str) -> bytes:
    """Return the part of a text in which patterns are searched: all of it, or its beginning and its end."""
    data = text.encode(errors="replace")
    half = MOST_BYTES // 2
    return data if len(data) <= MOST_BYTES else data[:half] + b"\n" + data[-half:]


def patterns_of(rules: Iterable[FailureRule]) -> Iterator[Pattern | Unfit | None]:
    """Yield the pattern of each rule of a job; None for a rule without one."""
    left = MOST_INSTRUCTIONS
    for rule in rules:
        found = None if rule.on_message_pattern is None else _compiled(rule.on_message_pattern)
        if isinstance(found, Pattern) and found.instructions > left:
            found = Unfit(_too_large(found.instructions, left))
        if isinstance(found, Pattern):
            left -= found.instructions
        yield found


def unfit_patterns(rules: Sequence[FailureRule]) -> list[str]:
    """Describe the patterns of a job that are not applied, each with its path."""
    return [
        f"spec.failurePolicy.rules[{place}].onMessagePattern is not applied: it {found.reason}"
        for place, found in enumerate(patterns_of(rules))
        if isinstance(found, Unfit)
    ]


@lru_cache(maxsize=MOST_COMPILED)
def _compiled(pattern: str) -> Pattern | Unfit:
    if _UNICODE_CLASS.search(pattern):
        return Unfit(r"has a class of Unicode characters (\p): write the characters, as [a-zé]")
    if repetitions(pattern) > MOST_REPETITIONS:
        return Unfit(f"repeats by counts with a product above {MOST_REPETITIONS}: use * or + instead")
    try:
        compiled = re2.compile(pattern, _OPTIONS)
    except re2.error as error:
        words = shortened(error.args[0].decode(errors="replace"), MAX_ERROR)
        return Unfit(_too_large(None, MOST_INSTRUCTIONS) if "too large" in words else f"is no RE2: {words}")
    return Pattern(compiled, max(compiled.programsize, compiled.reverseprogramsize))


def repetitions(pattern: str) -> int:
    """Return how many copies of a part of the pattern its counts make at most."""
    product = 1
    for least, most in _COUNT.findall(pattern):
        product *= max(1, int(least), int(most or 0))
        if product > MOST_REPETITIONS:
            break
    return product


def _too_large(instructions: int | None, left: int) -> str:
    size = "too many instructions" if instructions is None else counted(instructions, "instruction")
    return (
        f"compiles to {size}, and those before it leave {left} of a job's {MOST_INSTRUCTIONS}: "
        "make it shorter, with * instead of counts"
    )


@dataclass(frozen=True)
class Happened:
    """Facts of an end that rules match."""

    exits: tuple[tuple[str | None, frozenset[int]], ...] = ()
    """Failed containers or processes: the container's name, and all notations of its exit code."""
    blamed: str | None = None
    """The container that ended, for rules that name none."""
    conditions: frozenset[tuple[str, str]] = frozenset()
    """Type and status of the Pod's conditions."""
    text: str = ""


def of_process(failure: AgentFailure) -> Happened:
    """Return the facts of a training process's end. Rules that name a container do not match: that lives."""
    code = failure.exit_code
    exits = () if code is None else ((None, frozenset({code, 128 - code} if code < 0 else {code})),)
    return Happened(exits=exits, text=f"{failure.message}\n{failure.log_tail}")


def of_pod(pod: Mapping[str, Any] | None, end: PodEnd, message: str) -> Happened:
    """Return the facts of a Pod's end, or of a container's; `pod` is None if it is gone."""
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
    conditions = {(each.type, each.status) for each in rule.on_pod_conditions}
    return (
        (rule.on_exit_codes is None or _exits_as(rule.on_exit_codes, happened))
        and (not rule.on_pod_conditions or not conditions.isdisjoint(happened.conditions))
        and (pattern is None or (isinstance(pattern, Pattern) and pattern.is_in(text)))
    )


def _exits_as(asked: OnExitCodes, happened: Happened) -> bool:
    values = frozenset(asked.values)
    for container, codes in happened.exits:
        wanted = happened.blamed if asked.container_name is None else asked.container_name
        if container == wanted and bool(codes & values) is (asked.operator is ExitCodeOperator.IN):
            return True
    return False
