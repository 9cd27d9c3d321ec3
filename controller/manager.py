"""Manager: starts everything in order, and stops it in reverse.

Servers start first, so that probes and metrics show a slow start; then caches, which a standby keeps warm;
then leadership, with a new list of everything; and last the controllers, which need all of these. They
stop while the Lease cannot be renewed, and continue once it is, unless another process held it in between:
what they remember is then still valid. At the end they finish their current work while the Lease is held,
then the Lease is released, then the rest stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, ProcessCollector

from controller import clock
from controller.api.limiter import RequestLimiter
from controller.cache import Cache
from controller.client import AsyncClient
from controller.errors import ApiError
from controller.events import EventRecorder
from controller.leader.election import ElectionTiming
from controller.leader.elector import Elector, LeadershipSuspended
from controller.queue import metrics
from controller.queue.controller import Controller
from controller.resources import LEASES, Resource
from controller.serving.metrics_access import MetricsAccess
from controller.serving.servers import Listen, Ports, Readiness, serve
from controller.shares import MEMORY_UNITS
from controller.tasks import Background, LoopThread

PROGRESS_PERIOD_SECONDS = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ManagerOptions:
    name: str = "dlr-controller"
    """Source of Events, and name of the Lease."""
    namespace: str | None = None
    """Only namespace to watch; None for all."""
    label_selectors: Mapping[Resource, str] = field(default_factory=dict)
    """Label selector by resource; without one, all objects are watched."""
    memory_units: int = MEMORY_UNITS
    """Memory units for the objects of one namespace (`controller/shares.py`)."""
    listen: Listen = field(default_factory=Listen)
    metrics_auth: bool = False
    """Whether metrics require a bearer token that may get /metrics."""
    leader_election: bool = True
    lease_namespace: str | None = None
    """Namespace of the Lease; None for our own."""
    identity: str | None = None
    """Holder of the Lease; None for a new identity at each start."""
    election: ElectionTiming = field(default_factory=ElectionTiming)
    graceful_seconds: float = 30.0
    """Time for the controllers to finish their current work."""
    cache_sync_timeout_seconds: float = 120.0
    stalled_after_seconds: float = 120.0
    """Time without progress of a watch after which the process is not ready."""
    probe_period_seconds: float = 2.0
    """Longest time without a request before the API server is probed."""


class Manager:
    """Manager of controllers: pass it to each `ControllerBuilder`, then `run` it once.

    Reconcilers must use `client` and no other: it blocks writes while this process does not lead, updates
    the cache from them at once, and sends no more requests at a time than the server answers promptly.
    """

    def __init__(self, client: AsyncClient, options: ManagerOptions | None = None) -> None:
        self.options = options or ManagerOptions()
        self.contact = client.contact
        self.cache = Cache(
            client,
            namespace=self.options.namespace,
            label_selectors=self.options.label_selectors,
            memory_units=self.options.memory_units,
        )
        self.recorder = EventRecorder(client, self.options.name)
        self.metrics_registry = CollectorRegistry()
        self.reconcile_metrics = metrics.ReconcileMetrics(self.metrics_registry)
        self.queue_metrics = metrics.QueueMetrics(self.metrics_registry)
        self.health = Readiness()
        self.ports: Ports | None = None
        """Ports of the servers, once they listen."""
        self._lease_namespace = self.options.lease_namespace or client.connection.namespace
        self._raw_client = client
        self._lease_client = client.apart(
            call_timeout_seconds=self.options.election.renew_deadline_seconds,
            attempts=1,  # the elector counts from when each request was sent
        )
        self._elector = self._make_elector(self._lease_client) if self.options.leader_election else None
        guard = self._elector.check if self._elector else None
        self.client = client.guarded(guard, self.cache.note_write, RequestLimiter(), self.cache.shapes)
        self._controllers: list[Controller] = []
        counted = metrics.ClientMetrics(self.metrics_registry, client.connection.server).observe
        client.observers.append(counted)
        self._lease_client.observers.append(counted)
        self.metrics_registry.register(metrics.WatchCollector(self.cache))
        ProcessCollector(registry=self.metrics_registry)
        self._leader_gauge = metrics.leader_gauge(self.metrics_registry).labels(self.options.name)
        self._leader_gauge.set_function(lambda: float(self.is_leader))

    @property
    def is_leader(self) -> bool:
        """Whether the controllers may act; always True without leader election."""
        return self._elector is None or self._elector.is_leader

    def add(self, controller: Controller) -> None:
        if any(other.name == controller.name for other in self._controllers):
            raise ValueError(f"there are two controllers called {controller.name!r}")
        self._controllers.append(controller)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set. Raises LeadershipLost, ServeError, or any other fatal error."""
        access = MetricsAccess(self._raw_client) if self.options.metrics_auth else None
        async with serve(self.options.listen, self.health, self.metrics_registry, access) as self.ports:
            log.info("servers started ports=%s", self.ports)
            try:
                await self._run_watching(stop)
            finally:
                self.health.not_ready = "stopping"

    async def _run_watching(self, stop: asyncio.Event) -> None:
        async with Background() as background:
            background.start(self.recorder.run(), "events")
            background.start(self._probe(), "probe")
            for controller in self._controllers:
                for source in controller.sources:
                    self.cache.store(source.resource)
            background.start(self.cache.run(), "cache")
            synced = self.cache.wait_synced(self.options.cache_sync_timeout_seconds)
            if not await background.race(synced, stop):
                return
            self.health.not_ready = None
            background.start(self._follow_progress(), "progress")
            log.info("caches synced")
            await background.race(self._run_leading(stop))
            await self.recorder.flush(timeout_seconds=2.0)

    async def _run_leading(self, stop: asyncio.Event) -> None:
        if self._elector is None:
            await self._run_controllers(stop)
            return
        async with LoopThread("leadership") as thread:
            await self._run_elected(self._elector, thread, stop)

    async def _run_elected(self, elector: Elector, thread: LoopThread, stop: asyncio.Event) -> None:
        """Run the controllers while the Lease is held."""
        try:
            while not stop.is_set():
                try:
                    await self._run_term(elector, thread, stop)
                except LeadershipSuspended as suspended:
                    log.warning("controllers stopped until the lease is renewed: %s", suspended)
        finally:
            await thread.run(elector.release())
            await thread.run(self._lease_client.close())

    async def _run_term(self, elector: Elector, thread: LoopThread, stop: asyncio.Event) -> None:
        """Wait for the Lease, and run the controllers while it is held.

        The Lease has its own thread and connections, and the thread goes from acquiring to holding it
        without waiting for this one, so that no other work delays a renewal. The next term begins only
        here, when all work of this one has ended.

        Raises:
            LeadershipLost: the process should end.
            LeadershipSuspended: another term may follow.
        """
        elected = asyncio.Event()
        loop = asyncio.get_running_loop()

        async def campaign() -> None:
            await elector.acquire()
            loop.call_soon_threadsafe(elected.set)
            await elector.hold()

        async with Background() as holding:
            holding.start(thread.run(campaign()), "leadership")
            if not await holding.race(elected.wait(), stop):
                return
            self._announce(elector)
            if await holding.race(self._catch_up(), stop):
                await holding.race(self._run_controllers(stop))

    async def _catch_up(self) -> None:
        """List everything again, since a standby's watch may have hung, to see all that its predecessor
        wrote."""
        await self.cache.list_again()
        await self.cache.wait_synced(self.options.cache_sync_timeout_seconds)

    async def _run_controllers(self, stop: asyncio.Event) -> None:
        async with Background() as running:
            tasks = [
                running.start(controller.run(self.cache), f"controller {controller.name}")
                for controller in self._controllers
            ]
            log.info("controllers started names=%s", ",".join(c.name for c in self._controllers))
            await running.race(asyncio.get_running_loop().create_future(), stop)
            for controller in self._controllers:
                controller.stop()
            if tasks:
                _, late = await asyncio.wait(tasks, timeout=self.options.graceful_seconds)
                for task in late:
                    log.warning("did not finish in time, cancelled task=%s", task.get_name())

    def _announce(self, elector: Elector) -> None:
        lease = LEASES.manifest({"namespace": elector.namespace, "name": elector.name})
        self.recorder.event(lease, "Normal", "LeaderElection", f"{elector.identity} became leader")

    def _make_elector(self, client: AsyncClient) -> Elector:
        return Elector(
            client,
            namespace=self._lease_namespace,
            name=self.options.name,
            identity=self.options.identity,
            timing=self.options.election,
        )

    async def _follow_progress(self) -> None:
        """Update readiness: ready means that watches make progress. A leader without progress continues,
        because others may not see more."""
        while True:
            await asyncio.sleep(PROGRESS_PERIOD_SECONDS)
            self.health.not_ready = self.cache.stalled(self.options.stalled_after_seconds)

    async def _probe(self) -> None:
        """Keep `contact` up to date when there are no other requests.

        Reading our own Lease uses the server's storage, whether it exists or not. A version or health
        check does not, and would succeed on a server that cannot store a heartbeat.
        """
        period = self.options.probe_period_seconds
        while True:
            last = self.contact.last_answer
            quiet_seconds = period if last is None else clock.monotonic() - last
            if period - quiet_seconds > 0.001:
                await asyncio.sleep(period - quiet_seconds)
                continue
            try:
                await self._raw_client.get(LEASES, self.options.name, self._lease_namespace)
            except ApiError as error:
                log.debug("probe error=%s", error)
                await asyncio.sleep(period)
