"""Queues of checks that wait for others (`claims.py`), so that a check that makes way triggers a single look,
however many wait for it. Pure.

A check waits at one place: a node that it does not get. When another makes way there, the first of the queue
looks again. If it gets the node, the rest waits for it. If it now waits at another place, or for no check any
more, the next one looks.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from controller.reconciler import Request


class QueuePlace(NamedTuple):
    namespace: str | None
    """Namespace of the checks that wait there, since claims may block one namespace and not another."""
    node: str


class Queues:
    """The places at which checks wait, by the checks' names."""

    def __init__(self) -> None:
        self._queues: dict[QueuePlace, list[tuple[Any, Request]]] = {}
        """Heaps; an entry is valid while its check waits at the place."""
        self._places: dict[Request, QueuePlace] = {}
        """Place at which each check waits."""
        self._behind: dict[Request, set[QueuePlace]] = {}
        """Places at which others wait for a check, by that check."""
        self._called: dict[Request, list[QueuePlace]] = {}
        """Checks that have yet to look, with the places where they were first."""

    def wait(self, check: Request, order: Any, in_the_way: Mapping[str, Request]) -> None:
        """Let a check wait until others make way.

        Args:
            order: sort key; the smaller looks first.
            in_the_way: the check that blocks it on each node.
        """
        before = [each.node for each in (self._places.get(check), *self._called.get(check, ())) if each]
        node = next((each for each in before if each in in_the_way), None)
        place = QueuePlace(check.namespace, min(in_the_way) if node is None else node)
        self._behind.setdefault(in_the_way[place.node], set()).add(place)
        if self._places.get(check) != place:
            self._places[check] = place
            heapq.heappush(self._queues.setdefault(place, []), (order, check))

    def end_look(self, check: Request, taken: Collection[str]) -> list[Request]:
        """End the look of a check; return the checks that look next.

        Args:
            taken: nodes that the check has got.
        """
        called: list[Request] = []
        if taken:
            self._places.pop(check, None)
        for place in self._called.pop(check, ()):
            if place.node in taken:
                self._behind.setdefault(check, set()).add(place)
            elif self._places.get(check) != place:
                called += self._call(place)
        return called

    def made_way(self, check: Request, kept: Collection[str] = ()) -> list[Request]:
        """Note that a check has ended, or has released nodes; return the checks that look next.

        Args:
            kept: nodes that it still has.
        """
        places = {place for place in self._behind.get(check, ()) if place.node not in kept}
        if kept:
            self._behind.get(check, set()).difference_update(places)
            return self._call_all(places, check.namespace)
        self._behind.pop(check, None)
        self._places.pop(check, None)
        places.update(self._called.pop(check, ()))
        return self._call_all(places, check.namespace)

    def namespaces_behind(self, check: Request) -> set[str]:
        """Return the namespaces with checks that wait for this one."""
        return {place.namespace for place in self._behind.get(check, ()) if place.namespace is not None}

    def _call_all(self, places: Iterable[QueuePlace], last: str | None) -> list[Request]:
        """Take the first check of each queue, to look. One of namespace `last`, which has just had the node,
        comes after one of another namespace."""
        called, first = list[Request](), dict[str, Request]()
        for place in sorted(places, key=lambda place: place.namespace == last):
            if place.namespace == last and (other := first.get(place.node)) is not None:
                self._called[other].append(place)
                continue
            for check in self._call(place):
                first.setdefault(place.node, check)
                called.append(check)
        return called

    def _call(self, place: QueuePlace) -> list[Request]:
        """Take the first check of a queue, to look; none if it is empty."""
        queue = self._queues.get(place, [])
        while queue:
            _, check = heapq.heappop(queue)
            if self._places.get(check) == place:
                del self._places[check]
                self._called.setdefault(check, []).append(place)
                return [check]
        self._queues.pop(place, None)
        return []
