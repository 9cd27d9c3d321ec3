"""One life of the controller over an `Api`: the real reconcilers, wakers and caches, and a scheduler of one thread.

`setup.add_all` registers with it as with a Manager, so what wakes whom is as in production. It can be killed before or
after any of its writes, its caches can lag, and every choice of order can be drawn from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from controller.cache import Cache
from controller.errors import ApiError
from controller.queue.controller import Controller, WatchSource
from controller.reconciler import Request, Result, TerminalError
from controller.resources import Resource
from controller.store import Change
from controller.watch.informer import Informer
from reconcilers.observed.options import CordonOptions, PodOptions
from reconcilers.runtime.clock import Clock
from reconcilers.setup import WATCHED_BY_LABEL, add_all
from reconcilers.worker.dialling import Dials
from tests.reconcilers.api import Api, Client, Event, Write, _key
from tests.reconcilers.build import NOW

JSON = dict[str, Any]
Wish = tuple[str, Request]
"""A controller, and what it is to look at."""
FIRST_RETRY_SECONDS = 0.005
LONGEST_LAG = 40
"""Looks. Then all is told, or a cache that believes in what is gone would be served for ever."""


class Killed(BaseException):
    """The controller, with SIGKILL."""


@dataclass
class Lag:
    """How far behind the caches are while there is something else to do; `of` limits it to some resources."""

    versions: int = 0
    of: tuple[Resource, ...] = ()
    seed: int | None = None
    """For each look another lag, `versions` at most; and another order of work."""

    def __post_init__(self) -> None:
        self.dice = None if self.seed is None else random.Random(self.seed)

    def behind(self, resource: Resource) -> int:
        if self.of and resource not in self.of:
            return 0
        return self.versions if self.dice is None else self.dice.randint(0, self.versions)

    def pick(self, count: int) -> int:
        return 0 if self.dice is None else self.dice.randrange(count)


@dataclass
class Process:
    api: Api
    lag: Lag = field(default_factory=Lag)
    before_write: Callable[[Write], None] = lambda write: None
    """Raises Killed to die there."""
    after_write: Callable[[Write], None] = lambda write: None
    cordon: CordonOptions | None = None
    queues: bool = False
    dials: Dials | None = None
    dead: bool = False
    errors: list[str] = field(default_factory=list)
    """What no reconciler should ever raise."""

    def __post_init__(self) -> None:
        api = self.api
        self._started = api.seconds
        self._ready: dict[Wish, None] = {}
        self._delayed: dict[Wish, float] = {}
        self._failures: dict[Wish, int] = {}
        self._looks = 0
        self._controllers: dict[str, Controller] = {}
        self.cache = LaggingCache(api, self.lag)
        self.client = GuardedClient(self)
        self.contact = SimpleNamespace(since=self._started)
        manager = SimpleNamespace(
            client=self.client,
            cache=self.cache,
            recorder=_Recorder(self),
            contact=self.contact,
            is_leader=True,
            metrics_registry=SimpleNamespace(register=lambda collector: None),
            queue_metrics=SimpleNamespace(observer=lambda name: None, follow=lambda name, queue: None),
            reconcile_metrics=SimpleNamespace(announce=lambda name, workers: None),
            add=lambda controller: self._controllers.update({controller.name: controller}),
        )
        clock = Clock(lambda: NOW + timedelta(seconds=api.seconds), lambda: api.seconds)
        pods = PodOptions(agent=None, random=random.Random(0))
        add_all(manager, self.cordon, pods, clock, self.dials, queues=self.queues)  # type: ignore[arg-type]
        for controller in self._controllers.values():
            for source in controller.sources:
                self.cache.store(source.resource)
        self.cache.begin()
        for controller in self._controllers.values():
            for source in controller.sources:
                handler = self._handler(controller, source)
                self.cache.add_handler(source.resource, handler)
                for obj in self.cache.store(source.resource).list():
                    handler(Change(None, obj))

    def _handler(self, controller: Controller, source: WatchSource) -> Callable[[Change], None]:
        def handle(change: Change) -> None:
            for request in sorted(source.requests(change), key=str):
                self._add((controller.name, request))

        return handle

    def _add(self, wish: Wish) -> None:
        self._delayed.pop(wish, None)
        self._ready.setdefault(wish)

    def wake(self, controller: str, request: Request) -> None:
        """Have a controller look at something, for a reason that is no change of an object."""
        self._add((controller, request))

    def woken(self, controller: str) -> list[Request]:
        """Return what a controller is to look at now."""
        return [request for name, request in self._ready if name == controller]

    def take(self, controller: str, request: Request) -> None:
        """Take that off what is to be looked at."""
        del self._ready[controller, request]

    async def step(self) -> bool:
        """One look at something; False if there is nothing to be looked at now.

        Raises:
            Killed: during that look.
        """
        self._looks += 1
        self.cache.deliver() if self._looks % LONGEST_LAG else self.cache.catch_up()
        for wish in [w for w, due in self._delayed.items() if due <= self.api.seconds]:
            self._add(wish)
        if not self._ready:
            return False
        wish = list(self._ready)[self.lag.pick(len(self._ready))]
        del self._ready[wish]
        await self._look(wish)
        return True

    async def reconcile(self, controller: str, request: Request) -> Result:
        try:
            return await self._controllers[controller]._loop._reconciler.reconcile(request)
        except BaseException as error:
            if self.dead:
                raise Killed from error
            raise

    async def _look(self, wish: Wish) -> None:
        name, request = wish
        try:
            result = await self.reconcile(name, request)
        except Exception as error:
            self._failed(wish, error)
            return
        assert not self.dead, f"{name} goes on after its death"
        self._failures.pop(wish, None)
        if result.requeue_after_seconds is not None:
            self._again(wish, result.requeue_after_seconds)

    def _failed(self, wish: Wish, error: Exception) -> None:
        """As in controller/queue/loop.py."""
        if not isinstance(error, ApiError):
            self.errors.append(f"{wish[0]} {wish[1]}: {type(error).__name__}: {error}")
        if isinstance(error, TerminalError):
            return
        failures = self._failures.get(wish, 0)
        self._failures[wish] = failures + 1
        self._again(wish, FIRST_RETRY_SECONDS * 2.0 ** min(failures, 17))

    def _again(self, wish: Wish, seconds: float) -> None:
        if seconds <= 0:
            self._add(wish)
        elif wish not in self._ready:
            due = self.api.seconds + seconds
            self._delayed[wish] = min(due, self._delayed.get(wish, due))

    @property
    def next_due(self) -> float | None:
        return min(self._delayed.values(), default=None)

    def die(self) -> None:
        self.dead = True
        raise Killed


class LaggingCache(Cache):
    """The real one, whose informers are told by the `Api` instead of by a watch."""

    def __init__(self, api: Api, lag: Lag) -> None:
        super().__init__(None, label_selectors=WATCHED_BY_LABEL, monotonic=lambda: api.seconds)  # type: ignore[arg-type]
        self._api = api
        self._lag = lag
        self._positions: dict[Resource, int] = {}

    def begin(self) -> None:
        """List everything: who takes the lead does, a standby too (`Manager._catch_up`)."""
        for resource, informer in self._informers.items():
            log = self._api.log.get(resource, [])
            objects = self._api.objects.get(resource, {})
            items = [informer.intake.read(obj) for obj in objects.values() if informer._is_watched(obj)]
            for change in informer.store.replace_stepwise(items):
                informer.intake.tell(change)
            self._move(informer, len(log), log[-1].obj["metadata"]["resourceVersion"] if log else "0")
            informer.synced.set()

    def deliver(self) -> None:
        """What the watches have told by now."""
        for resource, informer in self._informers.items():
            pending = len(self._api.log.get(resource, ())) - self._positions[resource]
            for _ in range(pending - self._lag.behind(resource) if pending else 0):
                self._deliver_one(resource, informer)

    def catch_up(self, *only: Resource) -> bool:
        """All there is of these kinds, or of every kind; whether there was any."""
        late = False
        for resource, informer in self._informers.items():
            if only and resource not in only:
                continue
            while self._positions[resource] < len(self._api.log.get(resource, ())):
                self._deliver_one(resource, informer)
                late = True
        return late

    def deliver_one(self, resource: Resource) -> None:
        """The oldest change that this watch has not told yet, if there is any."""
        if self._positions[resource] < len(self._api.log.get(resource, ())):
            self._deliver_one(resource, self._informers[resource])

    def _deliver_one(self, resource: Resource, informer: Informer) -> None:
        position = self._positions[resource]
        entry = self._api.log[resource][position]
        is_watched, store = informer._is_watched(entry.obj), informer.store
        if is_watched or store.get(*_key(entry.obj)) is not None:
            is_gone = entry.deleted or not is_watched
            (informer.intake.delete if is_gone else informer.intake.apply)(entry.obj, _key(entry.obj))
        self._move(informer, position + 1, entry.obj["metadata"]["resourceVersion"])

    def _move(self, informer: Informer, position: int, version: str) -> None:
        self._positions[informer.resource] = position
        informer._reflector.version = version


class GuardedClient(Client):
    """`controller.client.AsyncClient`, guarded."""

    def __init__(self, process: Process) -> None:
        super().__init__(process.api)
        self._process = process

    def live(self) -> None:
        if self._process.dead:
            raise Killed  # another write of the same look, side by side with the one that it was killed at

    def write(self, write: Write) -> JSON:
        """Only what changes something counts as a write: to be killed after another is to be killed before it."""
        self.live()
        process, version = self._process, self._api.version
        process.before_write(write)
        answer = self._api.apply(write)
        if self._api.version != version:
            process.after_write(write)
        if write.verb != "delete":
            process.cache.note_write(write.resource, answer)
        return answer


class _Recorder:
    def __init__(self, process: Process) -> None:
        self._process = process

    def event(self, obj: JSON, type_: str, reason: str, message: str) -> None:
        if not self._process.dead:
            event = Event(obj["kind"], obj["metadata"]["name"], type_, reason, message)
            self._process.api.events.append(event)
