"""Regular expressions as Kubernetes reads them: in the syntax of RE2, which is Go's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import re2

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 256 << 20
"""Room for each pattern that Go compiles: its limits are 1,000 repetitions and 128 MiB."""


def searcher(pattern: str) -> Callable[[str], Any]:
    """A function that says whether a text has the pattern somewhere; raises ValueError for a bad pattern."""
    try:
        found: Callable[[str], Any] = re2.compile(pattern, _OPTIONS).search
    except re2.error as error:
        text = error.args[0]
        shown = text.decode(errors="replace") if isinstance(text, bytes) else text
        raise ValueError(f"error parsing regexp: {shown}") from None
    return found
