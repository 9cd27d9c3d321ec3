"""Reads the Events of Pods that are late to start; what is made of them is in `start.py`."""

from __future__ import annotations

from collections.abc import Callable

from controller.cache import Cache
from controller.client import Client
from controller.errors import ClientError
from controller.resources import EVENTS, PODS, Object
from controller.store import Memory
from reconcilers.observed.observations import Observations
from reconcilers.observed.start import (
    AGAIN_SECONDS,
    LATE_SECONDS,
    Asked,
    Hindrance,
    is_starting,
    next_reading,
    unfinished_before_training,
    warning_of,
)
from reconcilers.runtime.kinds import ELASTICJOBS


class LatePods:
    """The Events of Pods that are late."""

    def __init__(self, client: Client, cache: Cache, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._monotonic = monotonic
        self._starting = Observations(cache.store(PODS), monotonic)
        jobs = cache.store(ELASTICJOBS)
        self._asked: Memory[Asked] = jobs.memory()

    async def hindrance_of(self, pod: Object, owner: Object) -> tuple[Hindrance | None, float | None]:
        """Why it does not start, if it is late; and seconds until it might be, or is to be looked at again.

        A container that runs before training is the reason, or what its Events say: None if they were not
        read, `NOTHING` if they say of nothing that lasts.
        """
        if not is_starting(pod):
            return None, None
        age_seconds = self._starting.age_seconds(pod["metadata"]["uid"], True)
        if age_seconds < LATE_SECONDS:
            return None, LATE_SECONDS - age_seconds
        if (container := unfinished_before_training(pod)) is not None:
            return container, None
        uid = owner["metadata"]["uid"]
        reading = next_reading(self._asked.get(uid), pod["metadata"]["uid"], self._monotonic())
        if reading is None:
            return None, AGAIN_SECONDS
        self._asked.put(uid, reading)
        return await self._warning(pod), AGAIN_SECONDS

    async def _warning(self, pod: Object) -> Hindrance | None:
        """None if we may not read Events."""
        metadata = pod["metadata"]
        selector = f"involvedObject.uid={metadata['uid']}"
        try:
            found = await self._client.list(EVENTS, metadata["namespace"], field_selector=selector)
        except ClientError:
            return None
        return warning_of(found["items"])
