"""Ages of observed values, by the controller's own clock alone.

Clocks of nodes differ, so an age never follows from another machine's timestamp: it counts from the first
observation of the value, as in Kubernetes' own leader election. A new controller counts from zero, which can
only make it more patient.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from controller.store import ObjectMemory, Store


class Observations:
    """Last values of a store's objects, each with the monotonic time of its first observation."""

    def __init__(self, store: Store, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._seen: ObjectMemory[tuple[Hashable, float]] = store.memory()

    def age_seconds(self, uid: str, value: Hashable, now: float | None = None) -> float:
        """Return how long the object has had this value; 0.0 if it is new, or the object not in the store.

        Args:
            now: the monotonic time, for callers that read the clock once for many objects.
        """
        now = self._monotonic() if now is None else now
        seen = self._seen.get(uid)
        if seen is None or seen[0] != value:
            seen = self._seen.put(uid, (value, now))
        return now - seen[1]
