"""All controllers over an API server in memory, and the words of `cluster.Hollow` for users, kubelets and agents.

Nothing waits for real: where a test waits, the controllers look at what there is, and the clock jumps to what is due.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from controller.errors import NotFound
from controller.resources import EVENTS, NAMESPACES, PODS, Resource
from reconcilers.observed.options import CordonOptions
from tests.reconcilers.api import NAMESPACE, Api, Client
from tests.reconcilers.build import NOW
from tests.reconcilers.cluster import Hollow
from tests.reconcilers.process import Lag, Process

JSON = dict[str, Any]
PATIENCE_SECONDS = 7_200.0


class User(Client):
    """The API as a client of its own sees it; of Events, their names."""

    async def list(self, resource: Resource, *args: Any, **more: Any) -> JSON:
        if resource == EVENTS:
            return {"items": [{"metadata": {"name": f"{event.name}.x"}} for event in self._api.events]}
        return await super().list(resource, *args, **more)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        grace_period_seconds: int = 30,
        **_: Any,
    ) -> None:
        if grace_period_seconds:
            await super().delete(resource, name, namespace)
        else:
            self._api.remove(resource, self._api.get(resource, name, namespace))


class Played(Hollow):
    """Plays users, kubelets and agents, and lets the controllers look whenever it waits."""

    def __init__(self) -> None:
        self.api = Api()
        super().__init__(User(self.api))  # type: ignore[arg-type]
        self.process: Process | None = None
        self.api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})

    def begin(self, lag: Lag | None = None, cordon: CordonOptions | None = None) -> Process:
        """Start a controller, in place of the one that ran."""
        self.end()
        self.process = Process(self.api, lag or Lag(), cordon=cordon)
        return self.process

    def end(self) -> None:
        """No controller runs from now on."""
        if self.process is not None:
            assert not self.process.errors
        self.process = None

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.api.seconds)

    async def until(self, what: str, check: Callable[[], Any], patience: float = PATIENCE_SECONDS) -> Any:
        """What `check` returns once it is truthy."""
        deadline = self.api.seconds + patience
        while True:
            with suppress(NotFound):
                if found := await check():
                    return found
            assert await self._move(deadline), f"waited {patience:g} s for: {what}"

    async def event(self, name: str, reason: str) -> str:
        """What an Event of this object says."""

        async def found() -> tuple[str] | None:
            messages = [e.message for e in self.api.events if (e.name, e.reason) == (name, reason)]
            return (messages[0],) if messages else None

        (message,) = await self.until(f"Event {reason} of {name}", found)
        return str(message)

    async def warning(self, job: str, type_: str, *reasons: str) -> str:
        """What a warning of this job says, for one of these reasons."""

        async def found() -> str | None:
            warnings = (await self.status(job)).get("warnings", ())
            told = (w for w in warnings if w["type"] == type_ and (not reasons or w["reason"] in reasons))
            return next((each["message"] for each in told), None)

        return str(await self.until(f"{type_} of {job} by {reasons}", found))

    async def settle(self, seconds: float = 0.0) -> None:
        """Let the controllers do all that is due within this time."""
        end = self.api.seconds + seconds
        while await self._move(end):
            pass
        self.api.seconds = end

    async def _move(self, deadline: float) -> bool:
        """One look, or a jump to the next; False if there is none before the deadline."""
        assert self.process is not None, "nobody looks"
        self.api.collect_garbage()
        if await self.process.step() or self.process.cache.catch_up():
            return True
        due = self.process.next_due
        if due is None or due > deadline:
            return False
        self.api.seconds = max(due, self.api.seconds)
        return True

    async def bind(self, pod: str, node: str) -> None:
        await self.until(f"Pod {pod}", lambda: self.client.get(PODS, pod, NAMESPACE))
        self.api.patch(PODS, pod, {"spec": {"nodeName": node}})
