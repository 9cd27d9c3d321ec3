"""Formats of strings that objects are held to: times, and bytes.

As lenient as Kubernetes is for CRDs: https://github.com/kubernetes/kube-openapi/tree/master/pkg/validation/strfmt.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from datetime import date

_QUANTITY = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:.[0-9]+)?(?:z|[+-][0-9]{2}:[0-9]{2})")


def is_quantity(text: str) -> bool:
    return _QUANTITY.fullmatch(text) is not None


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


def _is_bytes(text: str) -> bool:
    """Base64, over several lines too, or nothing."""
    try:
        base64.b64decode(text.replace("\n", "").replace("\r", ""), validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


CHECKS: dict[str, Callable[[str], bool]] = {"byte": _is_bytes, "date": _is_date, "date-time": _is_date_time}
"""Other formats are only words."""
