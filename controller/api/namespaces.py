"""Namespaces that are being deleted: the API server refuses every new object in them, and takes all others.

A controller that goes on there only makes work: each Pod that goes wakes its owner, which makes the next,
which is refused. So from the first such refusal on, what belongs to that namespace is left alone.
"""

from __future__ import annotations

import logging

from controller import clock
from controller.errors import NamespaceTerminating

log = logging.getLogger(__name__)

RECHECK_SECONDS = 10.0
"""After that one more object is tried: another namespace may have been made under the name."""


class TerminatingNamespaces:
    """Known by the refusals of this process: to watch namespaces would take a right across the cluster."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def seconds_left(self, namespace: str | None) -> float:
        """Return for how many seconds nothing may be made there; 0.0 if it is not being deleted."""
        until = self._until.get(namespace or "")
        return 0.0 if until is None else max(until - clock.monotonic(), 0.0)

    def check(self, namespace: str | None) -> None:
        """Raises NamespaceTerminating in place of the server."""
        if self.seconds_left(namespace):
            message = f"namespace {namespace} is being terminated"
            raise NamespaceTerminating(403, "Forbidden", message)

    def note(self, namespace: str | None) -> None:
        """The server has refused to create something there."""
        now = clock.monotonic()
        lately = {name: until for name, until in self._until.items() if until + RECHECK_SECONDS > now}
        if namespace not in lately:
            log.info("namespace is being terminated, nothing more is made in it namespace=%s", namespace)
        self._until = lately | {namespace or "": now + RECHECK_SECONDS}
