"""Patterns of failure rules: whatever a tenant writes, compiling and searching take a small, bounded time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.failure_policy import FailureRule
from reconcilers.failure.rules import (
    MOST_BYTES,
    MOST_INSTRUCTIONS,
    Happened,
    Pattern,
    action_for,
    patterns_of,
    searched,
    unfit_patterns,
)
from tests.counting import cpu_seconds
from tests.hostile.strategies import PATTERNS

TEXTS = {
    "one letter": "a" * 8_192,
    "two letters": "".join("ab"[number * number // 7 % 2] for number in range(8_192)),
    "words": "RuntimeError: CUDA error\n" * 330,
    "beyond ASCII": "é€a\N{SNOWMAN}" * 2_048,
}
HOSTILE = (
    r"(?:.?){99}x",
    r"(?i)(?:[^a]?){99}x",
    r"(?:\pL?){400}x",
    r"(?s).*a.{30}",
    r"(?:.*a){50}x",
    r"[ab]*a[ab]{90}x",
    r"(?i)\C{99}(?s:.)+[a-zé-ſ]",
    r"a(?:(?:(?:\b*)*?){99})*\C{3,}",
    r"(?:a?){50}" * 20,
    "a" * 250,
    ".*a" * 80,
    r"(?:(?:\b*)|a)" * 10 + "{99}",
)
MOST_SECONDS = 0.5
"""Far above the 30 ms that it takes, and far below the minute of 20 patterns without limits."""


def rules(patterns: Sequence[str]) -> list[FailureRule]:
    return [FailureRule.model_validate({"action": "FailJob", "onMessagePattern": each}) for each in patterns]


@given(st.lists(PATTERNS, max_size=8), st.sampled_from(sorted(TEXTS)) | st.text(max_size=50))
def test_rules_cost_no_more_than_their_instructions_times_the_text(patterns: list[str], text: str) -> None:
    found = rules(patterns)
    fit = [each for each in patterns_of(found) if isinstance(each, Pattern)]
    assert sum(each.instructions for each in fit) <= MOST_INSTRUCTIONS
    assert len(fit) + len(unfit_patterns(found)) == len(found)
    assert all(each.instructions > 0 and each.compiled.options.max_mem <= 256 << 10 for each in fit)
    assert len(searched(TEXTS.get(text, text))) <= MOST_BYTES < 8_300
    action_for(found, Happened(text=TEXTS.get(text, text)))


@pytest.mark.parametrize("pattern", HOSTILE)
def test_twenty_hostile_patterns_cost_little(pattern: str) -> None:
    many = [f"{pattern[:250]}{number}" for number in range(20)]

    def all_of_a_look() -> None:
        for text in TEXTS.values():
            action_for(rules(many), Happened(text=text))

    assert cpu_seconds(all_of_a_look, times=1) < MOST_SECONDS * len(TEXTS)
