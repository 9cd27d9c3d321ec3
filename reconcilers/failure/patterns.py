"""Patterns of a job's failure rules: compiled within limits, and why others are not applied.

RE2 takes time in proportion to the text and to the compiled pattern, which counted repetition makes as large
as one likes. So what may be large is refused before it is compiled, the instructions of all patterns of a job
are limited, and so is the text. In the worst case an instruction takes 6 ns for each byte of the text: 30 ms
for all patterns of a job. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import re2

from controller.wording import counted
from crds.agent_report import MAX_TEXT
from crds.failure_policy import FailureRule
from crds.texts import shortened

MOST_INSTRUCTIONS = 600
"""Instructions of all compiled patterns of a job."""
MOST_REPETITIONS = 99
"""Product of the counts in a pattern, such as 20 of `(?:[a-f]{4}-){5}`."""
MOST_BYTES = 2 * (MAX_TEXT + 4) + 1
"""Bytes of a text that are searched: a message and the end of a log, where all is ASCII."""
MAX_ERROR = 80
"""Bytes of what RE2 says of a pattern that is none."""
MOST_COMPILED = 256
"""Patterns that stay compiled."""

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.never_capture = True
_OPTIONS.max_mem = 64 << 10
"""With more memory, RE2 builds more states for a hostile pattern before it does without any."""

_COUNT = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_UNICODE_CLASS = re.compile(r"(?<!\\)(?:\\\\)*\\[pP]")


@dataclass(frozen=True)
class Pattern:
    """A pattern that can be searched."""

    compiled: Any
    instructions: int

    def is_in(self, text: bytes) -> bool:
        return self.compiled.search(text) is not None


@dataclass(frozen=True)
class Unfit:
    """Why a pattern is not applied."""

    reason: str


def searched(text: str) -> bytes:
    """Return the part of a text that patterns are searched in: all of it, or its beginning and its end."""
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
