"""A dictionary that keeps what was used last: what reconcilers remember of objects must not outgrow them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

CAPACITY = 20_000
"""More than the workers and jobs of one controller. What is forgotten is found out again."""


class Recent(Generic[K, V]):
    def __init__(self, capacity: int = CAPACITY) -> None:
        self._items: OrderedDict[K, V] = OrderedDict()
        self._capacity = capacity

    def get(self, key: K) -> V | None:
        if key not in self._items:
            return None
        self._items.move_to_end(key)
        return self._items[key]

    def put(self, key: K, value: V) -> V:
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > self._capacity:
            self._items.popitem(last=False)
        return value
