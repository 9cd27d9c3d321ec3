"""Times, durations and numbers in words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from controller.wording import counted, printable

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FRACTIONS_SECONDS = 9.95
"""Duration below which fractions of a second are shown."""


def plain(text: str) -> str:
    """Return one line without control characters."""
    return printable(text.strip())


def in_command(metadata: Mapping[str, Any], name: str = "") -> str:
    """Return a command's arguments for an object, with its namespace: `digits -n research`.

    Args:
        name: name of another object in the same namespace.
    """
    return f"{name or metadata['name']} -n {metadata['namespace']}"


def printable_line(line: str) -> str:
    """Return a line without control characters, with its indentation."""
    return line[: len(line) - len(line.lstrip())].expandtabs(4) + plain(line)


def significant(value: float) -> str:
    """Return three significant digits without an exponent: 0.0303, 5.85, 612, 2250."""
    return f"{value:.3g}" if 1e-4 <= abs(value) < 999.5 else f"{value:.0f}"


def parse_time(text: str | None) -> datetime | None:
    """Parse a time; None for an empty or invalid text, since any process of a Pod may have written it."""
    try:
        moment = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return moment if moment is not None and moment.tzinfo is not None else None


def age(since: str | None, now: datetime) -> str | None:
    moment = parse_time(since)
    return None if moment is None else duration((now - moment).total_seconds())


def duration(seconds: float) -> str:
    """Return at most two units, as in kubectl's ages: 47s, 3m12s, 5h4m, 2d3h."""
    whole = max(0, int(seconds))
    for unit, size, smaller, smaller_size in (
        ("d", 86_400, "h", 3_600),
        ("h", 3_600, "m", 60),
        ("m", 60, "s", 1),
    ):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size}{unit}" + (f"{rest}{smaller}" if rest else "")
    return f"{whole}s"


def loss(seconds: float) -> str:
    """Return a duration that may be a fraction of a second: 0.04s, 2.1s, 47s, 3m12s."""
    return f"{round(max(0.0, seconds), 2):.2g}s" if seconds < FRACTIONS_SECONDS else duration(seconds)


def percent_done(done: int, total: int) -> str:
    """Return `45%`, rounded down, so that 100% means complete."""
    return f"{min(done, total) * 100 // total}%"


def utc_now() -> datetime:
    return datetime.now(UTC)


def counted_by_thousands(number: int, one: str, many: str = "") -> str:
    """Return a count such as `1 worker` or `1,000 workers`."""
    return counted(number, one, many).replace(str(number), f"{number:,}", 1)
