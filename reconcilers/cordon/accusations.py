"""The number of nodes of an NVLink domain that are accused at about the same time.

The accusation of a node triggers a look at all accused nodes of its domain, each of which needs the number:
so it is cached, and only nodes that have changed are read again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from controller.cache import Cache
from controller.resources import NODES, Object
from reconcilers.cordon.domains import TOGETHER
from reconcilers.cordon.findings import NodeFindings
from reconcilers.observed.domains import AUTO, domain_of

BY_DOMAIN = "domain"
"""Index of Nodes by their NVLink domain."""


@dataclass
class _Domain:
    """The accused nodes of one domain."""

    times: list[datetime] = field(default_factory=list)
    """Times of the accusations, ascending."""
    accused_at: dict[str, datetime] = field(default_factory=dict)
    """Times of the accusations, by node."""
    outdated: set[str] = field(default_factory=set)
    """Nodes to read before the next count."""


class Accusations:
    """Counts the accused nodes of domains, for all users of one cache, which needs the index `BY_DOMAIN`."""

    def __init__(self, cache: Cache) -> None:
        self._nodes = cache.store(NODES)
        self._accused_at = cache.shared(NodeFindings).accused_at
        self._domains: dict[str, _Domain] = {}

    def outdate(self, node: Object) -> None:
        """Read a node again before the next count. Call it for each change of a raw Node that may concern its
        accusation, with the Node before and after the change."""
        domain = domain_of(node, AUTO)
        if not self._nodes.count(BY_DOMAIN, domain):
            self._domains.pop(domain, None)
        elif domain in self._domains:
            self._domains[domain].outdated.add(node["metadata"]["name"])

    def outdate_named(self, names: Iterable[str]) -> None:
        """Read nodes of these names again, whose findings have changed."""
        for name in names if self._domains else ():
            if (node := self._nodes.get(None, name)) is not None:
                self.outdate(node)

    def together(self, domain: str, at: datetime, *, but: str) -> int:
        """Count the nodes of a domain other than `but` that are accused at about this time."""
        found = self._domains.get(domain)
        if found is None:
            names = {node["metadata"]["name"] for node in self._nodes.by_index(BY_DOMAIN, domain)}
            found = self._domains[domain] = _Domain(outdated=names)
        while found.outdated:
            self._update(found, domain, found.outdated.pop())
        first, last = at - TOGETHER, at + TOGETHER
        own = found.accused_at.get(but)
        is_counted = own is not None and first <= own <= last
        return bisect_right(found.times, last) - bisect_left(found.times, first) - is_counted

    def _update(self, found: _Domain, domain: str, name: str) -> None:
        if (before := found.accused_at.pop(name, None)) is not None:
            del found.times[bisect_left(found.times, before)]
        node = self._nodes.get(None, name)
        if node is None or domain_of(node, AUTO) != domain:
            return
        if (at := self._accused_at(node)) is not None:
            found.accused_at[name] = at
            insort(found.times, at)
