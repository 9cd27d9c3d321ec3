"""The life of one Pod on its node, from being bound to being deleted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from controller.errors import Conflict, NotFound, Refused, Unavailable
from controller.resources import PODS
from localcluster.client.clock import parse_timestamp, utc_now
from localcluster.kubelet.container_life import ContainerLife, PodWorld
from localcluster.kubelet.errors import ConfigError, MountError
from localcluster.kubelet.grace import Grace
from localcluster.kubelet.preparation import Preparation
from localcluster.kubelet.reporter import StatusReporter
from localcluster.kubelet.services import NodeServices
from localcluster.kubelet.states import (
    ContainerRecord,
    Terminated,
    fresh_records,
    init_containers,
    is_over,
    main_containers,
    recover_records,
    restart_policy,
    restarts,
)
from localcluster.kubelet.status import PodFacts, Verdict, pod_status
from localcluster.quantities import is_sidecar
from localcluster.resource import JSON

REMOVED_GRACE_SECONDS = 1.0
"""For a Pod whose object is already gone: somebody forced its deletion."""
DEFAULT_GRACE_SECONDS = 30.0
FIRST_RETRY_SECONDS = 0.2
LONGEST_RETRY_SECONDS = 5.0
DEADLINE = Verdict("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")

log = logging.getLogger(__name__)


class PodWorker:
    """`run` is its task; `update`, `removed` and `vanish` tell it what happened to the Pod."""

    def __init__(self, services: NodeServices, pod: JSON) -> None:
        self._services = services
        self._pod = pod
        status = pod.get("status") or {}
        known = bool(status.get("containerStatuses"))
        self._records = recover_records(pod, utc_now()) if known else fresh_records(pod)
        self._started_at = parse_timestamp(status["startTime"]) if status.get("startTime") else utc_now()
        self._address = services.addresses.keep_or_take(status.get("podIP"))
        self._preparation = Preparation(services, pod, self._address)
        self._reporter = StatusReporter(services.client, pod, self._status)
        self._world: PodWorld | None = None
        self._lives: dict[str, ContainerLife] = {}
        self._verdict: Verdict | None = None
        self._finished = False
        self._grace: Grace | None = None
        self._stop = asyncio.Event()
        self._gone = asyncio.Event()
        self._deadline: asyncio.TimerHandle | None = None
        self.update(pod)

    # --- what happens to the Pod ---

    def update(self, pod: JSON) -> None:
        """A newer version of the object."""
        self._pod = pod
        self._set_deadline()
        self._reporter.seen(pod)
        if "deletionTimestamp" in pod["metadata"]:
            self._request_stop(pod["metadata"].get("deletionGracePeriodSeconds") or 0)

    def removed(self) -> None:
        """The object is gone."""
        self._gone.set()
        self._request_stop(REMOVED_GRACE_SECONDS)

    async def vanish(self) -> None:
        """The node lost its power: every process dies at once, and nobody reports it."""
        await asyncio.gather(*(life.kill() for life in self._lives.values()))

    def _request_stop(self, grace_seconds: float) -> None:
        if self._grace is None:
            self._grace = Grace(grace_seconds)
        else:
            self._grace.shorten(grace_seconds)
        self._stop.set()

    def _set_deadline(self) -> None:
        """spec.activeDeadlineSeconds, which may be set or shortened later."""
        if self._deadline is not None:
            self._deadline.cancel()
        seconds = self._pod["spec"].get("activeDeadlineSeconds")
        if seconds is not None:
            left = seconds - (utc_now() - self._started_at).total_seconds()
            self._deadline = asyncio.get_running_loop().call_later(max(left, 0), self._exceed_deadline)

    def _exceed_deadline(self) -> None:
        if self._finished or self._stop.is_set():
            return
        self._verdict = DEADLINE
        self._services.warning(self._pod, DEADLINE.reason, DEADLINE.message)
        self._request_stop(self._pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS))

    # --- its life ---

    async def run(self) -> None:
        """Until the object is gone."""
        beside = [
            asyncio.create_task(self._reporter.run()),
            asyncio.create_task(self._preparation.keep_tokens_fresh()),
        ]
        life = asyncio.create_task(self._live())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({life, stop}, return_when=asyncio.FIRST_COMPLETED)
            await self._stop_containers(life)
            self._finished = True
            self._services.hosts_files.forget(self._address)
            if not self._gone.is_set():
                await self._reporter.flush()
            await self._until_deleted()
        finally:
            for task in (*beside, life, stop):
                task.cancel()
            if self._deadline is not None:
                self._deadline.cancel()
            self._services.hosts_files.forget(self._address)  # its life may have been cut short
            self._services.addresses.free(self._address)
            self._services.devices.give_back(f"{self._pod['metadata']['uid']}/")

    async def _live(self) -> None:
        """Init containers in order, then the others together, until all have ended."""
        if self._stop.is_set() or is_over(self._pod, self._records):
            return
        await self._prepared()
        await asyncio.sleep(self._services.latencies.sandbox_seconds)
        async with asyncio.TaskGroup() as group:
            sidecars = []
            for container in init_containers(self._pod):
                if self._stop.is_set():
                    return
                life = self._new_life(container, init=True)
                if is_sidecar(container):
                    sidecars.append(life)
                    running = group.create_task(life.run())
                    up = group.create_task(life.up.wait())
                    await asyncio.wait({running, up}, return_when=asyncio.FIRST_COMPLETED)
                    up.cancel()
                elif await life.run() != 0:
                    break
            else:
                await self._run_main_containers()
            for life in reversed(sidecars):
                await life.stop(Grace(self._own_grace_seconds))

    async def _run_main_containers(self) -> None:
        if self._stop.is_set():
            return
        mains = [
            self._new_life(container, init=False)
            for container in main_containers(self._pod)
            if not self._stays_ended(container)
        ]
        await asyncio.gather(*(life.run() for life in mains))

    def _stays_ended(self, container: JSON) -> bool:
        """Whether an earlier kubelet saw its end, and the policy leaves it so."""
        state = self._records[container["name"]].state
        policy = restart_policy(self._pod, container, init=False)
        return isinstance(state, Terminated) and not restarts(policy, state.exit_code)

    def _new_life(self, container: JSON, *, init: bool) -> ContainerLife:
        name = container["name"]
        policy = restart_policy(self._pod, container, init=init)
        life = ContainerLife(container, self._records[name], policy, self._prepared, self._record_changed)
        self._lives[name] = life
        return life

    async def _prepared(self) -> PodWorld:
        """The Pod's world; what is missing may still come, so it is asked for until the Pod is stopped.

        A container that restarts while the API server is away finds the world as it was.
        """
        retry_seconds = FIRST_RETRY_SECONDS
        while True:
            try:
                self._world = await self._preparation.world()
                return self._world
            except Unavailable as failure:
                if self._world is not None:
                    return self._world
                log.warning("pod waits for the API server pod=%s error=%s", self._name, failure)
            except (MountError, ConfigError, Refused, OSError) as failure:
                self._services.warning(self._pod, "FailedMount", str(failure))
                self._reporter.changed()
            await asyncio.sleep(retry_seconds)
            retry_seconds = min(2 * retry_seconds, LONGEST_RETRY_SECONDS)

    async def _stop_containers(self, life: asyncio.Task[None]) -> None:
        """Main containers first, then sidecars, last started first."""
        if not life.done():
            grace = self._grace or Grace(self._own_grace_seconds)
            sidecars = {c["name"] for c in init_containers(self._pod) if is_sidecar(c)}
            lives = list(self._lives.values())
            await asyncio.gather(*(each.stop(grace) for each in lives if each.name not in sidecars))
            for each in reversed(lives):
                if each.name in sidecars:
                    await each.stop(grace)
            life.cancel()
            await asyncio.wait({life})
        if not life.cancelled() and (fault := life.exception()) is not None:
            # A fault of ours must not leave the Pod running for ever in the API.
            log.error("pod failed pod=%s", self._name, exc_info=fault)
            self._verdict = Verdict("KubeletError", "the kubelet failed to run the Pod; see its log")
            await self.vanish()

    async def _until_deleted(self) -> None:
        """A finished Pod stays until somebody deletes it; then its object goes, for nothing runs any more."""
        await self._stop.wait()
        while "deletionTimestamp" not in self._pod["metadata"] and not self._gone.is_set():
            self._stop.clear()
            await self._stop.wait()
        metadata = self._pod["metadata"]
        path = PODS.path(metadata["namespace"], metadata["name"])
        retry_seconds = FIRST_RETRY_SECONDS
        while not self._gone.is_set():
            try:
                await self._services.client.delete(path, uid=metadata["uid"], grace_period_seconds=0)
                return
            except Refused as failure:
                if not isinstance(failure, NotFound | Conflict):
                    log.error("pod not deleted pod=%s error=%s", self._name, failure)
                return
            except Unavailable:  # until it answers: the Pod would stay Terminating for ever
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._gone.wait(), retry_seconds)
                retry_seconds = min(2 * retry_seconds, LONGEST_RETRY_SECONDS)

    # --- what is said of it ---

    def _record_changed(self, name: str, record: ContainerRecord) -> None:
        self._records[name] = record
        self._reporter.changed()

    def _status(self, conditions: Sequence[JSON], now: datetime) -> JSON:
        facts = PodFacts(
            pod=self._pod,
            records=dict(self._records),
            started_at=self._started_at,
            address=self._address,
            verdict=self._verdict,
            finished=self._finished,
            known_conditions=conditions,
        )
        return pod_status(facts, now)

    @property
    def _own_grace_seconds(self) -> float:
        return float(self._pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_SECONDS))

    @property
    def _name(self) -> str:
        metadata = self._pod["metadata"]
        return f"{metadata['namespace']}/{metadata['name']}"
