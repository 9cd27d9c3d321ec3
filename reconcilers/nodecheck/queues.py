"""Checks that wait for others (`claims.py`), in queues: one look follows when a check makes way, however many
wait for it. Pure.

A check waits at one place: a node that it does not get. When another makes way there, the first of the queue
looks again. If it gets the node, the rest waits for it. If it waits at another
place now, or for no check any more, the next one looks.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from controller.reconciler import Request


class QueuePlace(NamedTuple):
    namespace: str | None
    """Namespace of the checks that wait there. Others may begin where these may not."""
    node: str


class Queues:
    """Which checks wait where, by the names of the checks."""

    def __init__(self) -> None:
        self._queues: dict[QueuePlace, list[tuple[Any, Request]]] = {}
        """Heaps. An entry counts while its check waits at the place."""
        self._places: dict[Request, QueuePlace] = {}
        """Where each check waits."""
        self._behind: dict[Request, set[QueuePlace]] = {}
        """Places at which checks wait for a check, by that check."""
        self._called: dict[Request, list[QueuePlace]] = {}
        """Checks that are to look because they were first there."""

    def wait(self, check: Request, order: Any, in_the_way: Mapping[str, Request]) -> None:
        """Let a check wait until others make way.

        Args:
            order: the smaller looks first.
            in_the_way: a check that it has to wait for, by node.
        """
        before = [each.node for each in (self._places.get(check), *self._called.get(check, ())) if each]
        node = next((each for each in before if each in in_the_way), None)
        place = QueuePlace(check.namespace, min(in_the_way) if node is None else node)
        self._behind.setdefault(in_the_way[place.node], set()).add(place)
        if self._places.get(check) != place:
            self._places[check] = place
            heapq.heappush(self._queues.setdefault(place, []), (order, check))

    def looked(self, check: Request, taken: Collection[str]) -> list[Request]:
        """Take note that the look of a check is over. Return those that look next.

        Args:
            taken: nodes that it has got by it.
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
        """Take note that a check has ended, or is through with nodes. Return those that look next.

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
        """Return the namespaces in which checks wait for a check."""
        return {place.namespace for place in self._behind.get(check, ()) if place.namespace is not None}

    def _call_all(self, places: Iterable[QueuePlace], last: str | None) -> list[Request]:
        """Take the first of each queue out, to look; that of the namespace which has just had the node after
        the look of another."""
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
        """Take the first of a queue out, to look; nobody if it is empty."""
        queue = self._queues.get(place, [])
        while queue:
            _, check = heapq.heappop(queue)
            if self._places.get(check) == place:
                del self._places[check]
                self._called.setdefault(check, []).append(place)
                return [check]
        self._queues.pop(place, None)
        return []
