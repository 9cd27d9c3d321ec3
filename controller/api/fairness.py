"""Turns between flows: who wants a thousand things waits for each no longer than who wants one.

A flow is what belongs together, here the work for one job (the word is that of Kubernetes' API priority and
fairness). Within a flow it is first come, first served; between flows they take turns.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")

current_flow: ContextVar[Hashable] = ContextVar("current_flow", default=None)
"""For whom the running task works; tasks that it starts work for the same."""


class FairQueue(Generic[T]):
    """Items by flow."""

    def __init__(self) -> None:
        self._flows: OrderedDict[Hashable, deque[T]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, flow: Hashable, item: T) -> None:
        self._flows.setdefault(flow, deque()).append(item)
        self._length += 1

    def pop(self) -> T:
        """The oldest item of the flow whose turn it is. Raises IndexError if there is none."""
        if not self._flows:
            raise IndexError("the queue is empty")
        flow, items = self._flows.popitem(last=False)
        item = items.popleft()
        if items:
            self._flows[flow] = items
        self._length -= 1
        return item

    def clear(self) -> None:
        self._flows.clear()
        self._length = 0
