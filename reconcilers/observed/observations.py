"""How long something has been as it is, by our own clock alone.

Clocks of nodes differ, so an age is never taken from a time that somebody else wrote: it counts from when we
first saw the value, as in Kubernetes' own leader election. A new controller starts counting afresh, which
can only make it more patient.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from controller.store import ObjectMemory, Store


class Observations:
    """Values last seen of the objects of a store, each with its first time on the monotonic clock."""

    def __init__(self, store: Store, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._seen: ObjectMemory[tuple[Hashable, float]] = store.memory()

    def age_seconds(self, uid: str, value: Hashable, now: float | None = None) -> float:
        """How long the object has had this very value; 0.0 when it is new, or the object not there.

        Args:
            now: on the same clock, of who asks for many objects.
        """
        now = self._monotonic() if now is None else now
        known = self._seen.get(uid)
        if known is None or known[0] != value:
            known = self._seen.put(uid, (value, now))
        return now - known[1]
