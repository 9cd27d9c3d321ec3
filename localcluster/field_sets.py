"""Sets of an object's fields, in the form of `fieldsV1`: a tree whose keys are the steps of a path.

A leaf is a member of the set. A node with the key "." is a member, too, beside the members below it; other
nodes only lead to their members. https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/object-meta/
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from localcluster.resource import JSON

SELF = "."
"""The key that makes a node with members below it a member too."""


def union(one: JSON, other: JSON) -> JSON:
    return _below(one, other, lambda in_one, in_other: in_one or in_other)


def intersection(one: JSON, other: JSON) -> JSON:
    return _below(one, other, lambda in_one, in_other: in_one and in_other)


def difference(one: JSON, other: JSON) -> JSON:
    return _below(one, other, lambda in_one, in_other: in_one and not in_other)


def node(children: JSON, *, member: bool) -> JSON | None:
    """Return the tree of a path; None if neither it nor anything below it is a member."""
    if not children:
        return {} if member else None
    return {SELF: {}, **children} if member else children


def paths(fields: JSON, prefix: str = "") -> Iterator[str]:
    """Yield the members as Kubernetes writes them in its messages: `.spec.containers[name="a"].image`."""
    for key, inner in sorted(fields.items()):
        if key != SELF:
            path = prefix + _step(key)
            if _is_member(inner):
                yield path
            yield from paths(inner, path)


def _below(one: JSON, other: JSON, rule: Callable[[bool, bool], bool]) -> JSON:
    found = {}
    for key in {**one, **other}:
        if key != SELF and (both := _combined(one.get(key), other.get(key), rule)) is not None:
            found[key] = both
    return found


def _combined(one: JSON | None, other: JSON | None, rule: Callable[[bool, bool], bool]) -> JSON | None:
    member = rule(_is_member(one), _is_member(other))
    return node(_below(one or {}, other or {}, rule), member=member)


def _is_member(tree: JSON | None) -> bool:
    return tree is not None and (not tree or SELF in tree)


def _step(key: str) -> str:
    kind, _, text = key.partition(":")
    if kind == "f":
        return f".{text}"
    if kind == "k":
        named = (f"{name}={json.dumps(value)}" for name, value in sorted(json.loads(text).items()))
        return f"[{','.join(named)}]"
    return f"[={text}]" if kind == "v" else f"[{text}]"
