"""The kind PodGroup, as scheduler-plugins brings it along, and the controller that keeps its status."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import yaml

from controller.errors import NotFound, Refused, Unavailable
from localcluster import manifests
from localcluster.client.api import POD_GROUPS, ApiClient
from localcluster.client.informer import Change, Informer, key_of
from localcluster.resource import JSON
from localcluster.scheduler.gangs import GroupKey, group_of, min_member

DEFINITION_FILE = Path(__file__).with_name("pod_groups.yaml")
RETRY_SECONDS = 1.0
FINAL_PHASES = frozenset({"Finished", "Failed"})

log = logging.getLogger(__name__)


async def install(client: ApiClient) -> None:
    """Have the kind served; an API server that is away is waited for."""
    definition: JSON = yaml.safe_load(DEFINITION_FILE.read_text())
    while True:
        try:
            await manifests.apply(client, [definition])
            return
        except Unavailable:
            await asyncio.sleep(RETRY_SECONDS)


def status_of(group: JSON, pods: Iterable[JSON]) -> JSON:
    """Return the status of a group of these Pods; a finished group stays finished. Pure."""
    before: JSON = group.get("status") or {}
    if before.get("phase") in FINAL_PHASES:
        return before
    phases = Counter((pod.get("status") or {}).get("phase") for pod in pods)
    running, succeeded, failed = (phases[phase] for phase in ("Running", "Succeeded", "Failed"))
    needed = min_member(group)
    if succeeded >= needed > 0:
        phase = "Finished"
    elif failed and failed + running + succeeded >= needed:
        phase = "Failed"
    elif phases.total() < needed or not phases:
        phase = "Pending"
    else:
        phase = "Running" if running + succeeded >= needed else "Scheduling"
    return before | {"phase": phase, "running": running, "succeeded": succeeded, "failed": failed}


class PodGroupController:
    """Level-triggered: each change of a PodGroup or of a Pod in one has its status looked at again."""

    def __init__(self, client: ApiClient, pods: Informer, pod_groups: Informer) -> None:
        self._client = client
        self._pods = pods
        self._pod_groups = pod_groups
        self._waiting: dict[GroupKey, None] = {}
        self._changed = asyncio.Event()
        pods.add_handler(self._pod_changed)
        pod_groups.add_handler(lambda _change, group: self._look_at(key_of(group)))

    async def run(self) -> None:
        await asyncio.gather(self._pods.synced.wait(), self._pod_groups.synced.wait())
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._waiting:
                key = next(iter(self._waiting))
                del self._waiting[key]
                await self._keep(key)

    def _pod_changed(self, _change: Change, pod: JSON) -> None:
        if (key := group_of(pod)) is not None:
            self._look_at(key)

    def _look_at(self, key: GroupKey) -> None:
        self._waiting[key] = None
        self._changed.set()

    async def _keep(self, key: GroupKey) -> None:
        group = self._pod_groups.get(*key)
        if group is None:
            return
        status = status_of(group, (pod for pod in self._pods.list() if group_of(pod) == key))
        if status == group.get("status"):
            return
        try:
            await self._client.patch(POD_GROUPS.path(*key, "status"), {"status": status})
        except Refused as failure:
            if not isinstance(failure, NotFound):
                log.warning("status not written podgroup=%s/%s error=%s", *key, failure)
        except Unavailable:
            await asyncio.sleep(RETRY_SECONDS)
            self._look_at(key)
