"""How long ago something was, in kubectl's words."""

from __future__ import annotations

from datetime import UTC, datetime

_MINUTE = 60
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_YEAR = 365 * _DAY


def parse_time(text: str) -> datetime:
    """Any RFC 3339 time; raises ValueError."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def human_duration(seconds: float) -> str:
    """`45s`, `3m12s`, `5h7m`, `12d`: two units at most, and one once the second stops to matter."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    if whole < 2 * _MINUTE:
        return f"{max(whole, 0)}s"
    if whole < 3 * _HOUR:
        return _two_units(whole, _MINUTE, "m", 1, "s", upto=10 * _MINUTE)
    if whole < 2 * _DAY:
        return _two_units(whole, _HOUR, "h", _MINUTE, "m", upto=8 * _HOUR)
    if whole < 2 * _YEAR:
        return _two_units(whole, _DAY, "d", _HOUR, "h", upto=8 * _DAY)
    return _two_units(whole, _YEAR, "y", _DAY, "d", upto=8 * _YEAR)


def _two_units(seconds: int, large: int, large_name: str, small: int, small_name: str, *, upto: int) -> str:
    rest = seconds % large // small
    text = f"{seconds // large}{large_name}"
    return text if rest == 0 or seconds >= upto else f"{text}{rest}{small_name}"


def age(timestamp: str | None, now: datetime) -> str:
    """The time since a timestamp, `<unknown>` without one."""
    if not timestamp:
        return "<unknown>"
    try:
        return human_duration((now - parse_time(timestamp)).total_seconds())
    except ValueError:
        return "<invalid>"
