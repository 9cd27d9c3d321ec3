"""What the tests of one check gave on each node, as far as it is the node's own: for its record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from healthcheck.fleet import Link, NodeName


@dataclass
class NodeTests:
    """A node's tests with others in one check."""

    passed: int = 0
    failed: int = 0
    """Failed tests, whatever was to blame."""
    failed_with: list[NodeName] = field(default_factory=list)
    """Partners of failures that nothing else explains, each once, in the order of tests."""


@dataclass(frozen=True)
class Explained:
    """What the check has named, so that a failure in which it took part is no accident."""

    nodes: Collection[NodeName]
    """Faulty nodes, and those of faulty racks and parts."""
    links: Collection[Link]
    all: bool = False
    """Whether any node may be of a faulty part, since not all of them are named."""

    def __contains__(self, members: object) -> bool:
        assert isinstance(members, Sequence)
        return (
            self.all
            or any(name in self.nodes for name in members)
            or any(frozenset(pair) in self.links for pair in combinations(members, 2))
        )


def tests_by_node(
    tests: Iterable[tuple[Sequence[NodeName], bool]], explained: Explained
) -> dict[NodeName, NodeTests]:
    """Linear in the number of tests.

    Args:
        tests: members of each, and whether it passed. Where a member dropped out, it was none.
        explained: by what the check has named.
    """
    found: defaultdict[NodeName, NodeTests] = defaultdict(NodeTests)
    for members, passed in tests:
        for name in members:
            found[name].passed += passed
            found[name].failed += not passed
        if passed or len(members) != 2 or members in explained:
            continue
        for name, other in (members, members[::-1]):
            if other not in found[name].failed_with:
                found[name].failed_with.append(other)
    return dict(found)
