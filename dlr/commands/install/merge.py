"""What to change of a live object so that it is as a manifest says: kubectl's three-way merge.

`kubectl apply` keeps the manifest that it applied last in an annotation, so that the next one can tell a
field that the manifest no longer has from one that somebody else set. Annotation and rules are the same here,
so that `dlr install` and `kubectl apply` may follow each other, and no server-side apply is needed.
https://kubernetes.io/docs/tasks/manage-kubernetes-objects/declarative-config/#how-apply-calculates-differences-and-merges-changes

As with kubectl, lists of containers and the like are merged by the key that tells their elements apart, and
any other list is replaced. One difference: such another list is left alone if its elements have all that the
manifest says, and maybe more, such as the API server's defaults.
"""

from __future__ import annotations

import json
from typing import Any

JSON = dict[str, Any]

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "topologySpreadConstraints": "topologyKey",
}
"""By field, what tells a list's elements apart (`x-kubernetes-patch-merge-key`). Where the same name is
another list's, such as a NetworkPolicy's `ports`, its elements lack the key.
https://kubernetes.io/docs/reference/generated/kubernetes-api/v1.33/#podspec-v1-core"""

_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""What Go's encoder, and so kubectl, escapes in JSON and Python's does not."""


def annotated(manifest: JSON) -> JSON:
    """The manifest with itself in the annotation, letter for letter as kubectl writes it."""
    metadata = manifest["metadata"]
    annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if k != LAST_APPLIED}
    plain = {**manifest, "metadata": {**metadata, "annotations": annotations}}
    text = json.dumps(_as_in_go(plain), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for character, escape in _ESCAPES.items():
        text = text.replace(character, escape)
    return {**plain, "metadata": {**metadata, "annotations": {**annotations, LAST_APPLIED: f"{text}\n"}}}


def _as_in_go(value: Any) -> Any:
    """Return the value with whole numbers as integers: 10 for 10.0, as Go prints it."""
    if isinstance(value, dict):
        return {key: _as_in_go(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_as_in_go(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def last_applied(live: JSON) -> JSON:
    """What was applied to a live object last; {} if nothing was, or if it cannot be read."""
    text = (live["metadata"].get("annotations") or {}).get(LAST_APPLIED, "{}")
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def three_way(original: JSON, modified: JSON, current: JSON) -> JSON:
    """The JSON merge patch (RFC 7396) from `current` to what `modified` says; {} if nothing is to change.

    original: what was applied last; fields that it has and `modified` has not are removed
    modified: what is to be applied, without nulls; its fields are set
    current: the live object; fields that neither of the others has stay
    """
    patch: JSON = {}
    for key, wanted in modified.items():
        live: Any = current.get(key)
        before: Any = original.get(key)
        if isinstance(wanted, dict) and isinstance(live, dict):
            inner = three_way(before if isinstance(before, dict) else {}, wanted, live)
            if inner:
                patch[key] = inner
        elif _is_keyed(key, before, wanted, live):
            elements = _merged(_MERGE_KEYS[key], before or [], wanted, live)
            if not _equal(elements, live):
                patch[key] = elements
        elif key not in current or not _is_settled(before, wanted, live):
            patch[key] = wanted
    for key in original:
        if key in current and key not in modified:
            before, live = original[key], current[key]
            keyed = _is_keyed(key, before, [], live)
            patch[key] = (_merged(_MERGE_KEYS[key], before, [], live) or None) if keyed else None
    return patch


def _is_keyed(field: str, before: Any, wanted: Any, live: Any) -> bool:
    """Whether the lists under a field can be merged by a key: each element has it, and no two the same."""
    key = _MERGE_KEYS.get(field)
    lists = [[] if before is None else before, wanted, live]
    if key is None or not all(isinstance(each, list) for each in lists):
        return False
    if not all(isinstance(element, dict) and key in element for each in lists for element in each):
        return False
    return all(len({element[key] for element in each}) == len(each) for each in lists)


def _merged(key: str, before: list[JSON], wanted: list[JSON], live: list[JSON]) -> list[JSON]:
    """The three-way merge of lists: our elements in our order, and others' where they stood between them."""
    original, modified, current = (
        {each[key]: each for each in elements} for elements in (before, wanted, live)
    )
    ours = iter(
        [
            _patched(found, three_way(original.get(name, {}), element, found))
            for name, element in modified.items()
            for found in [current.get(name, {})]
        ]
    )
    merged = []
    for name, element in current.items():
        if name in modified:
            merged.append(next(ours))
        elif name not in original:
            merged.append(element)
    return [*merged, *ours]


def _patched(current: JSON, patch: JSON) -> JSON:
    """The object after a JSON merge patch."""
    changed = {
        key: _patched(current[key], value)
        if isinstance(value, dict) and isinstance(current.get(key), dict)
        else value
        for key, value in patch.items()
    }
    return {key: value for key, value in (current | changed).items() if value is not None}


def covers(live: Any, wanted: Any) -> bool:
    """Whether `live` says all that `wanted` does: fields may be more, elements of a list may not."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(
            key in live and covers(live[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(live, list) and len(live) == len(wanted) and all(map(covers, live, wanted))
    if isinstance(wanted, bool) or isinstance(live, bool):
        return live is wanted
    return bool(live == wanted)


def _is_settled(before: Any, wanted: Any, live: Any) -> bool:
    """Whether a value can stay as it is: what is more in a list's elements is nothing that we set earlier."""
    if isinstance(wanted, list) and before is not None and not _equal(before, wanted):
        return _equal(live, wanted)
    return covers(live, wanted)


def _equal(left: Any, right: Any) -> bool:
    return covers(left, right) and covers(right, left)
