"""A Secret's `stringData`: plain text that is written into `data`, and never read back."""

from __future__ import annotations

import base64

from localcluster.resource import JSON


def completed(obj: JSON) -> JSON:
    """The Secret as it is kept; `stringData` wins over `data`, as in Kubernetes."""
    plain = obj.get("stringData")
    if not isinstance(plain, dict):
        return obj
    encoded = {
        key: base64.b64encode(value.encode()).decode() if isinstance(value, str) else value
        for key, value in plain.items()
    }
    rest = {key: value for key, value in obj.items() if key != "stringData"}
    return rest | {"data": (obj.get("data") or {}) | encoded}
