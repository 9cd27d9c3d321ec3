"""Interface of a reconciler.

A reconciler gets a name, never an event: it must read the current state, compare it with the desired one,
and take one step closer. Its result or error determines when it is called again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class Request(NamedTuple):
    """Object to reconcile. `namespace` is None for cluster-scoped resources."""

    namespace: str | None
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True)
class Result:
    """Result of a reconcile; `requeue_after_seconds` requests another call after that time at the latest."""

    requeue_after_seconds: float | None = None
    seconds_left: Callable[[], float] | None = None
    """Called when that time is over: returns how much longer to wait if nothing else happened. 0 or less
    starts the reconcile."""


class TerminalError(Exception):
    """An error that no retry can fix until the object changes: logged and counted, not retried."""


class Reconciler(ABC):
    """Brings objects of one kind closer to their spec.

    The runtime never runs `reconcile` twice at once for the same request. Any error but `TerminalError` or
    `InvalidStatus` causes a retry, with exponential back-off per request.
    """

    @abstractmethod
    async def reconcile(self, request: Request) -> Result: ...


class ReconcileReporter(ABC):
    """Reports unexpected failures of reconciles to people."""

    @abstractmethod
    async def failed(self, request: Request, error: Exception) -> None:
        """Report an error that is not the API server's, or after which there is no retry."""

    @abstractmethod
    async def succeeded(self, request: Request) -> None:
        """Note that a reconcile succeeded; called after each one."""


class ReconcileTimeout(Exception):
    """A reconcile did not end in time."""
