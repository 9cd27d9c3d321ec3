"""One training process's progress record (crds/progress_record.py), as its agent reads it."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.monitor.stepping import StepReport
from crds.progress_record import (
    BUSY_UNTIL,
    CHECKPOINT,
    CHECKPOINT_AT,
    COUNTED,
    COUNTED_AT,
    FIRST_COUNTED,
    FIRST_COUNTED_AT,
    FIRST_STEP,
    FIRST_STEP_AT,
    NON_FINITE,
    NUMBERS_FORMAT,
    PROGRESS_FORMAT,
    SAMPLES,
    START_UNKNOWN,
    STEP,
    STEP_AT,
)

FIRST_COUNT_SECONDS = 10.0
"""So long a first step that was counted waits for the second, or for the script's own report of it."""

_RECORD = struct.Struct(f"{PROGRESS_FORMAT}{NUMBERS_FORMAT}")
RECORD_BYTES = _RECORD.size
_NUMBERS = struct.Struct(PROGRESS_FORMAT).size // 8


@dataclass(frozen=True)
class Record:
    """What one process's file says."""

    step: StepReport | None = None
    checkpoint: StepReport | None = None
    busy_until: float | None = None
    first: StepReport | None = None
    counted: tuple[StepReport, StepReport] | None = None
    """The first and the newest step that were counted."""
    start_unknown: bool = False
    non_finite_step: int | None = None
    samples_per_step: int = 0
    numbers: Mapping[str, float] = field(default_factory=dict)


def read_record(path: Path) -> Record:
    try:
        words = _RECORD.unpack(path.read_bytes())
    except (OSError, struct.error):
        return Record()
    first, newest = (
        _told(words[FIRST_COUNTED], words[FIRST_COUNTED_AT]),
        _told(words[COUNTED], words[COUNTED_AT]),
    )
    return Record(
        _told(words[STEP], words[STEP_AT]),
        _told(words[CHECKPOINT], words[CHECKPOINT_AT]),
        words[BUSY_UNTIL] or None,
        _told(words[FIRST_STEP], words[FIRST_STEP_AT]),
        (first, newest) if first and newest else None,
        start_unknown=bool(words[START_UNKNOWN]),
        non_finite_step=words[NON_FINITE] - 1 if words[NON_FINITE] > 0 else None,
        samples_per_step=max(words[SAMPLES], 0),
        numbers=dict(_numbers(words[_NUMBERS:])),
    )


def _numbers(told: Sequence[Any]) -> Iterator[tuple[str, float]]:
    """The name and value of each; a script may write anything there."""
    for value, name in zip(told[::2], told[1::2], strict=True):
        if (text := name.rstrip(b"\0").decode(errors="ignore")) and math.isfinite(value):
            yield text, value


def is_believed(counted: tuple[StepReport, StepReport]) -> bool:
    """Whether a script that reports its steps itself would have reported the first by now."""
    first, newest = counted
    return newest.step != first.step or time.monotonic() - first.at >= FIRST_COUNT_SECONDS


def later(counted: tuple[StepReport, StepReport], ahead: int) -> tuple[StepReport, StepReport]:
    """Shift a count to that of a process that began so many steps later."""
    first, newest = counted
    return StepReport(first.at, first.step + ahead), StepReport(newest.at, newest.step + ahead)


def _told(step: int, at: float) -> StepReport | None:
    return None if at == 0.0 or step < 0 else StepReport(at, step)
