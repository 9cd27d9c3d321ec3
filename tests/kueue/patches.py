"""Merge patches and JSON patches of an object, without changing it."""

from __future__ import annotations

import copy
from typing import Any

from tests.kueue.objects import Object
from tests.reconcilers.api import merged


def patched(obj: Object, patch: Object | list[Object]) -> Object:
    """Return the object with a merge patch (a dict) or a JSON patch (a list) applied."""
    if isinstance(patch, dict):
        return merged(obj, patch)
    new = copy.deepcopy(obj)
    for operation in patch:
        _apply(new, operation)
    return new


def _apply(obj: Object, operation: Object) -> None:
    *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
    target: Any = obj
    for part in parents:
        target = target[int(part)] if isinstance(target, list) else target[part]
    if isinstance(target, list):
        index = len(target) if last == "-" else int(last)
        if operation["op"] == "add":
            target.insert(index, operation["value"])
        elif operation["op"] == "remove":
            del target[index]
        else:
            target[index] = operation["value"]
    elif operation["op"] == "remove":
        del target[last]
    elif operation["op"] in ("add", "replace"):
        target[last] = operation["value"]
    else:
        raise NotImplementedError(operation["op"])
