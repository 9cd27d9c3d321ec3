"""The parts of a fleet whose nodes pass with each other, directly or by way of others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from healthcheck.fleet import NodeName
from healthcheck.trials import Trial


class Components:
    """Connected components of the graph in which a trial that passed joins its members."""

    def __init__(
        self, names: Sequence[NodeName], trials: Iterable[Trial], joined: Sequence[NodeName] = ()
    ) -> None:
        """
        Args:
            names: in rank order, which decides between components of one size.
            trials: all trials.
            joined: nodes known to reach each other.
        """
        self._parent = {name: name for name in names}
        if joined:
            self._join(joined)
        for trial in trials:
            if trial.passed:
                self._join(trial.members)
        members: dict[NodeName, list[NodeName]] = {}
        for name in self._parent:
            members.setdefault(self._root(name), []).append(name)
        self.by_size: tuple[tuple[NodeName, ...], ...] = tuple(
            tuple(found) for found in sorted(members.values(), key=lambda found: -len(found))
        )
        """The largest first."""
        self._of: Mapping[NodeName, int] = {
            name: number for number, found in enumerate(self.by_size) for name in found
        }

    def __contains__(self, name: NodeName) -> bool:
        return name in self._of

    def of(self, name: NodeName) -> int:
        """The node's component, by its place in `by_size`."""
        return self._of[name]

    def size(self, name: NodeName) -> int:
        return len(self.by_size[self._of[name]])

    def is_in_main(self, name: NodeName) -> bool:
        """Whether the node is in the largest component, if any two nodes have passed at all."""
        return self._of[name] == 0 and self.size(name) > 1

    def are_cut(self, a: NodeName, b: NodeName) -> bool:
        """Whether both pass with somebody, and no chain of passes leads from one to the other."""
        return self._of[a] != self._of[b] and self.size(a) > 1 and self.size(b) > 1

    def _root(self, name: NodeName) -> NodeName:
        while self._parent[name] != name:
            self._parent[name] = name = self._parent[self._parent[name]]
        return name

    def _join(self, names: Sequence[NodeName]) -> None:
        first = self._root(names[0])
        for other in names[1:]:
            self._parent.setdefault(other, other)
            self._parent[self._root(other)] = first
