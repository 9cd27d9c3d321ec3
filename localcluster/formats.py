"""Formats of times and bytes: in CRDs as lenient as Kubernetes' strfmt, in its own kinds as strict as Go.

https://github.com/kubernetes/kube-openapi/tree/master/pkg/validation/strfmt. No other format is checked.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from datetime import date

from localcluster.patterns import searcher

Check = Callable[[str], bool]


def _matches(pattern: str) -> Check:
    search = searcher(pattern)
    return lambda text: search(text) is not None


is_quantity = _matches(r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:[KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?$")

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:.[0-9]+)?(?:z|[+-][0-9]{2}:[0-9]{2})")
_GO_TIME = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:[.,][0-9]+)?(?:Z|[+-]([0-9]{2}):([0-9]{2}))")


def _is_date(text: str) -> bool:
    if not _DATE.fullmatch(text):
        return False
    try:
        # Python has no year 0, which was a leap year as 2000.
        date.fromisoformat(f"2000{text[4:]}" if text.startswith("0000") else text)
    except ValueError:
        return False
    return True


def _is_date_time(text: str) -> bool:
    """Kubernetes reads up to a second `t`, and looks at no zone: `2026-01-01t00:00:00+99:99t x` is a time."""
    day, *times = text.lower().split("t")
    found = _TIME.fullmatch(times[0]) if times and _is_date(day) else None
    return found is not None and found[1] <= "23" and found[2] <= "59" and found[3] <= "59"


def _is_go_time(text: str) -> bool:
    """What Go reads as RFC 3339: the times of Kubernetes' own kinds."""
    day, _, time = text.partition("T")
    found = _GO_TIME.fullmatch(time) if _is_date(day) else None
    if found is None or found[1] > "23" or found[2] > "59" or found[3] > "59":
        return False
    return (found[4] or "") <= "24" and (found[5] or "") <= "60"


_SPAN = r"(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|μs|ms|s|m|h)"
_GO_DURATION = _matches(rf"^[+-]?(?:(?:{_SPAN})+|0)$")
_LOOSE_SPAN = re.compile(r"([0-9]+)[ \t\n\f\r]*([A-Za-zµ]+)")
_EXACT_UNITS = {"ns", "us", "µs", "ms", "s", "m", "h", "hr", "d", "w", "wk"}
_UNITS = ("nano", "micro", "milli", "sec", "min", "hour", "day", "week")


def _is_duration(text: str) -> bool:
    """Go's `1h30m`, or any text with a number and a unit in it, as `2 days`."""
    if _GO_DURATION(text):
        return True
    spans = _LOOSE_SPAN.findall(text)
    if any(int(number) >= 2**63 for number, _ in spans):
        return False
    return any(unit.lower() in _EXACT_UNITS or unit.lower().startswith(_UNITS) for _, unit in spans)


def _is_go_bytes(text: str) -> bool:
    """What Go reads into bytes: base64, over several lines too, or nothing."""
    try:
        base64.b64decode(text.replace("\n", "").replace("\r", ""), validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


_CUSTOM: dict[str, Check] = {
    "byte": _matches("^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})$"),
    "date": _is_date,
    "datetime": _is_date_time,
    "duration": _is_duration,
}
_OF_KUBERNETES: dict[str, Check] = {"byte": _is_go_bytes, "datetime": _is_go_time}


def format_check(name: str, *, custom: bool) -> Check | None:
    """The check of a format, in the schema of a CRD or of Kubernetes' own kinds; None where there is none."""
    return (_CUSTOM if custom else _OF_KUBERNETES).get(name.replace("-", ""))
