"""Why a Pod that has a node does not start: what its status says, and what only its Events say.

A kubelet says in a container's status that an image cannot be pulled, or that a Secret of its environment is
missing. That a volume cannot be mounted (its Secret, ConfigMap or claim is missing) stands in an Event alone:
https://kubernetes.io/docs/tasks/debug/debug-application/debug-pods/. So the Events of a Pod that is late are
read; of a job's Pods, one at a time, only now and then, and ever more rarely: an API server has no index of
Events, so each reading goes through all of the namespace's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from controller.cache import Cache
from controller.client import Client
from controller.errors import ClientError
from controller.resources import ELASTICJOBS, EVENTS, PODS
from controller.store import Memory
from crds.model import Condition
from reconcilers.observations import Observations

Object = dict[str, Any]

STARTED = "Started"
"""Condition of an ElasticWorker, only while something keeps its Pod from starting."""
LATE_SECONDS = 10.0
"""A Pod that has a node and has not started for so long may have a reason that only its Events tell."""
AGAIN_SECONDS = 60.0
ASK_AFTER_SECONDS = (10.0, 60.0, 300.0)
"""From one reading for a job's Pods to the next; the last again and again. When nobody was late for twice as
long as that, it begins anew."""
REPORTERS = ("kubelet", "attachdetach-controller")
"""Who works on a Pod that has a node; what others have said, such as the scheduler, is over then."""
AMID_FAILURES = "SandboxChanged"
"""A Normal Event that a kubelet sends between two Warnings of a sandbox that cannot be made."""
IMAGE_PULL = ("ErrImagePull", "ImagePullBackOff")
USUAL = (None, "ContainerCreating", "PodInitializing")


class Hindrance(NamedTuple):
    """What keeps a Pod from starting."""

    reason: str
    message: str


NOTHING = Hindrance("", "")
"""Its Events were read, and nothing keeps it from starting any more."""


def hindrance_of(pod: Object, known: Condition | None) -> Hindrance | None:
    """What the status of a Pod that waits for its containers says. Pure.

    Args:
        known: what was said of it before. While an image is tried again and again, the kubelet has two
            reasons in turn, and we keep to what was said first: it names the cause.
    """
    status = pod.get("status", {})
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        waiting = container.get("state", {}).get("waiting") or {}
        reason = waiting.get("reason")
        if reason in USUAL:
            continue
        text = f"{container['name']}: {reason}: {waiting.get('message', '')}".rstrip(": ")
        if reason not in IMAGE_PULL:
            return Hindrance(reason, text)
        if known is not None and known.reason == IMAGE_PULL[-1]:
            return Hindrance(known.reason, known.message)
        return Hindrance(IMAGE_PULL[-1], text)
    return None


class Asked(NamedTuple):
    """The Events of a job's Pods were read."""

    at: float
    """Monotonic seconds."""
    pod: str
    """Of which Pod they were, by its uid."""
    times: int = 1


def next_reading(last: Asked | None, pod: str, now: float) -> Asked | None:
    """The reading to make now; None if it is too early for one. Pure.

    Another Pod has its turn before the one of the last reading, which may just be slow.
    """
    if last is None or now - last.at >= 2 * ASK_AFTER_SECONDS[-1]:
        return Asked(now, pod)
    interval = ASK_AFTER_SECONDS[min(last.times, len(ASK_AFTER_SECONDS)) - 1]
    interval += AGAIN_SECONDS / 2 if pod == last.pod else 0.0
    return Asked(now, pod, last.times + 1) if now - last.at >= interval else None


class LatePods:
    """The Events of Pods that are late."""

    def __init__(self, client: Client, cache: Cache, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._monotonic = monotonic
        self._starting = Observations(cache.store(PODS), monotonic)
        jobs = cache.store(ELASTICJOBS)
        self._asked: Memory[Asked] = jobs.memory()

    async def hindrance_of(self, pod: Object, owner: Object) -> tuple[Hindrance | None, float | None]:
        """What its Events say, if it is late; and seconds until it might be, or is to be looked at again.

        None if they were not read, `NOTHING` if they say of nothing that lasts.
        """
        if not _is_starting(pod):
            return None, None
        age_seconds = self._starting.age_seconds(pod["metadata"]["uid"], True)
        if age_seconds < LATE_SECONDS:
            return None, LATE_SECONDS - age_seconds
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


def warning_of(events: Iterable[Object]) -> Hindrance:
    """The last word of those who work on a Pod that has a node, if that is a warning. Pure.

    Once a kubelet pulls the image, the volumes are mounted, whatever it said of them before.
    """
    words = (e for e in events if _reporter(e) in REPORTERS and e.get("reason") != AMID_FAILURES)
    newest = max(words, key=_told_at, default=None)
    if newest is None or newest.get("type") != "Warning":
        return NOTHING
    return Hindrance(newest.get("reason") or "Warning", newest.get("message") or "")


def _reporter(event: Object) -> str | None:
    component = (event.get("source") or {}).get("component") or event.get("reportingComponent")
    return str(component) if component else None


def _told_at(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"])


def _is_starting(pod: Object) -> bool:
    """It has a node and has not started, and its status does not say why."""
    if not pod["spec"].get("nodeName") or pod.get("status", {}).get("phase", "Pending") != "Pending":
        return False
    return "deletionTimestamp" not in pod["metadata"] and hindrance_of(pod, None) is None
