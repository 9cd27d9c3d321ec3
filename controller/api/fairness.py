"""Turns between namespaces and flows: one with a thousand requests does not delay one with a single request.

A flow is related work, such as the work for one job (the term is from Kubernetes' API Priority and
Fairness). Namespaces take turns, however much work each has; so do the flows of a namespace; within a flow
the order is first come, first served.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")
_Turns = OrderedDict[str | None, OrderedDict[Hashable, deque[T]]]
"""Flows by namespace, in turn order."""

Flow = tuple[str | None, Hashable]
"""Namespace and name of a flow, usually of the object that the work is for."""

current_flow: ContextVar[Flow] = ContextVar("current_flow", default=(None, None))
"""Flow of the running task, inherited by tasks that it starts."""


class FairQueue(Generic[T]):
    """Queue of items by flow.

    Args:
        goes_first: returns whether the items of a namespace come before those of others.
    """

    def __init__(self, goes_first: Callable[[str], bool] | None = None) -> None:
        self._goes_first = goes_first
        self._first: _Turns[T] = OrderedDict()
        self._others: _Turns[T] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, flow: Flow, item: T) -> None:
        namespace, name = flow
        is_first = self._goes_first is not None and namespace is not None and self._goes_first(namespace)
        flows = (self._first if is_first else self._others).setdefault(namespace, OrderedDict())
        flows.setdefault(name, deque()).append(item)
        self._length += 1

    def pop(self) -> T:
        """Return the oldest item of the flow whose turn it is.

        Raises:
            IndexError: the queue is empty.
        """
        turns = self._first or self._others
        if not turns:
            raise IndexError("the queue is empty")
        namespace, flows = turns.popitem(last=False)
        name, items = flows.popitem(last=False)
        item = items.popleft()
        if items:
            flows[name] = items
        if flows:
            turns[namespace] = flows
        self._length -= 1
        return item

    def clear(self) -> None:
        self._first.clear()
        self._others.clear()
        self._length = 0
