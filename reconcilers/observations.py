"""How long something has been as it is, by our own clock alone.

Clocks of nodes differ, so an age is never taken from a time that somebody else wrote: it counts from when we
first saw the value, as in Kubernetes' own leader election. A new controller starts counting afresh, which
can only make it more patient.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from reconcilers.recent import Recent


class Observations:
    """For each key, the value last seen and since when, on the monotonic clock."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._seen: Recent[Hashable, tuple[Hashable, float]] = Recent()

    def age_seconds(self, key: Hashable, value: Hashable) -> float:
        """How long `key` has had this very value; 0.0 when it is new."""
        now = self._monotonic()
        known = self._seen.get(key)
        if known is None or known[0] != value:
            known = self._seen.put(key, (value, now))
        return now - known[1]
