"""The numbers of a report within the limits that the CRD of ElasticWorkers sets.

Training processes write any number into their progress records. The API server refuses a report as a whole
for one number that is out of bounds, and then nobody learns anything of the worker.
"""

from __future__ import annotations

import math
from typing import Any

from crds.protocol import MAX_INTEGER, MAX_NUMBER, MAX_SECONDS

_NAMED_BY_OTHERS = ("numbers", "figures")
"""Fields with numbers by name, where a name says nothing of the number."""


def within_limits(value: Any, name: str = "") -> Any:
    """Return a part of a report with each number that is out of bounds at its bound.

    Args:
        value: the part, as it is to be written.
        name: its field. Fields with `seconds` in their name are durations.
    """
    if isinstance(value, dict):
        has_fields = name not in _NAMED_BY_OTHERS
        return {key: within_limits(each, key if has_fields else "") for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [within_limits(each, name) for each in value]
    if isinstance(value, int):
        return value if isinstance(value, bool) else max(-MAX_INTEGER, min(value, MAX_INTEGER))
    if not isinstance(value, float):
        return value
    if math.isnan(value):
        return 0.0
    if "seconds" in name.lower():
        return max(0.0, min(value, MAX_SECONDS))
    return max(-MAX_NUMBER, min(value, MAX_NUMBER))
