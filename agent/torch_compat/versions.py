"""Versions of torch, and their features."""

from __future__ import annotations

import re

REFORMING = (2, 14)
"""Oldest torch whose process groups can be formed again in living processes."""


def minor_version(version: str) -> tuple[int, int]:
    """Return the first two numbers of `torch.__version__`, such as `2.6.0+cu124`; zeros for none."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return (0, 0) if numbers is None else (int(numbers[1]), int(numbers[2]))


def can_reform_groups(version: str) -> bool:
    """Whether process groups can be formed again in living processes."""
    return minor_version(version) >= REFORMING


def why_none_lives_on(version: str) -> str:
    """Return the reason why no process survives a peer's death with this torch; empty if they do."""
    if can_reform_groups(version):
        return ""
    return f"processes live on from torch {'.'.join(map(str, REFORMING))} on, and this is torch {version}"
