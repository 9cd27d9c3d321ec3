"""Trees of fields behave as the sets of paths that they stand for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcluster.field_sets import difference, intersection, node, paths, union

JSON = dict[str, Any]

PATHS = st.sets(st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(tuple), max_size=8)


def tree(members: set[tuple[str, ...]]) -> JSON:
    found = {}
    for first in {path[0] for path in members}:
        below = tree({path[1:] for path in members if path[0] == first and len(path) > 1})
        if (inner := node(below, member=(first,) in members)) is not None:
            found[f"f:{first}"] = inner
    return found


@given(PATHS, PATHS)
def test_a_tree_has_the_members_that_the_sets_have(one: set[Any], other: set[Any]) -> None:
    for combined, expected in (
        (union(tree(one), tree(other)), one | other),
        (intersection(tree(one), tree(other)), one & other),
        (difference(tree(one), tree(other)), one - other),
    ):
        assert combined == tree(expected)
        assert set(paths(combined)) == {"".join(f".{step}" for step in path) for path in expected}


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("f:image", ".image"),
        ('k:{"containerPort":80,"protocol":"TCP"}', '[containerPort=80,protocol="TCP"]'),
        ('v:"example.com/guard"', '[="example.com/guard"]'),
    ],
)
def test_a_path_is_written_as_kubernetes_does(key: str, path: str) -> None:
    assert list(paths({"f:spec": {key: {}}})) == [f".spec{path}"]
