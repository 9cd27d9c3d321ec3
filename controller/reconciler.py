"""What a reconciler is, and nothing else.

A reconciler gets a name, never an event: it must ask what is true now, compare it with what is wanted,
and take one step closer. What it returns or raises says when it wants to be asked again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class Request(NamedTuple):
    """The object to look at. `namespace` is None for cluster-scoped resources."""

    namespace: str | None
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True)
class Result:
    """Done for now; `requeue_after_seconds` asks to be called again after that time at the latest."""

    requeue_after_seconds: float | None = None
    seconds_left: Callable[[], float] | None = None
    """Asked when that time is over: how much longer to wait for nothing else has to be looked at. 0 or less
    calls."""


class TerminalError(Exception):
    """Trying again cannot help until the object changes: logged and counted, not retried."""


class Reconciler(ABC):
    """Brings one kind of object closer to what its spec says.

    The runtime never calls `reconcile` for the same request twice at once. Raising anything but
    `TerminalError` or `InvalidStatus` means: again, with per-request exponential back-off.
    """

    @abstractmethod
    async def reconcile(self, request: Request) -> Result: ...


class ReconcileReporter(ABC):
    """Shows people how the looks at an object end, where those fail for a reason that nobody foresaw."""

    @abstractmethod
    async def failed(self, request: Request, error: Exception) -> None:
        """Report an error that the API server did not answer, or after which no other attempt follows."""

    @abstractmethod
    async def succeeded(self, request: Request) -> None:
        """Called after every look that ended well."""


class ReconcileTimeout(Exception):
    """A reconcile did not come to an end in time."""
