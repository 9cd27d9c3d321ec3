"""Set with random choice in constant time."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator


class Bag:
    """Set of numbers; all operations take constant time."""

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._all = list(numbers)
        self._place = {number: place for place, number in enumerate(self._all)}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[int]:
        return iter(self._all)

    def __contains__(self, number: object) -> bool:
        return number in self._place

    def add(self, number: int) -> None:
        if number not in self._place:
            self._place[number] = len(self._all)
            self._all.append(number)

    def discard(self, number: int) -> None:
        place = self._place.pop(number, None)
        if place is None:
            return
        last = self._all.pop()
        if last != number:
            self._all[place] = last
            self._place[last] = place

    def pick(self, rng: random.Random) -> int:
        """Return a random number; the bag must not be empty."""
        return self._all[int(rng.random() * len(self._all))]
