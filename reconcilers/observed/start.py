"""Reasons why a Pod that has a node does not start, from its status and its Events. Pure.

A kubelet reports a missing image or Secret in a container's status, but a volume that cannot be mounted only
in an Event. So the Events of a late Pod are read (`maker.py`), of a job's Pods one at a time and ever more
rarely: the API server goes through all Events of the namespace for each.
https://kubernetes.io/docs/tasks/debug/debug-application/debug-pods/
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from controller.resources import Object
from crds.model import Condition
from crds.names import LABEL_CHECK, key_secret
from reconcilers.observed.containers import (
    CRASH_LOOP,
    PULL_SECRETS,
    Role,
    containers_of,
    exit_words,
    words_of,
)

_RANK_PREFIX = re.compile(r"^(?:\[rank\d+\]: ?)+")
_PROGRESS_BAR = re.compile(r"\d%\||\|\s*\d+/\d+\s|\[\d+:\d+(?::\d+)?<")
"""As tqdm, rich and pip draw them."""


STARTED = "Started"
"""Condition of an ElasticWorker, only while something keeps its Pod from starting."""
LATE_SECONDS = 10.0
"""Time that a Pod has been on its node without a start before its Events are read."""
AGAIN_SECONDS = 60.0
ASK_AFTER_SECONDS = (10.0, 60.0, 300.0)
"""Intervals between readings for a job's Pods; the last one repeats. After twice the last one without a late
Pod, they start over."""
REPORTERS = ("kubelet", "attachdetach-controller")
"""Components that work on a Pod that has a node; Events of others, such as the scheduler, are out of date."""
AMID_FAILURES = "SandboxChanged"
"""Reason of a Normal Event that a kubelet sends between two Warnings of a sandbox that cannot be made."""
MISSING_KEY = f'secret "{key_secret("")}'
"""Kubelet's text about a container whose key is missing: https://kubernetes.io/docs/concepts/configuration/secret/."""
IMAGE_PULL = ("ErrImagePull", "ImagePullBackOff")
USUAL = (None, "ContainerCreating", "PodInitializing")


class Hindrance(NamedTuple):
    """Cause that keeps a Pod from starting."""

    reason: str
    message: str


RUNS_BEFORE = "PodInitializing"
"""Reason of a Pod whose training container waits for another container."""
NOTHING = Hindrance("", "")
"""Its Events were read, and nothing keeps it from starting any more."""


def hindrance_of(pod: Object, before: Condition | None) -> Hindrance | None:
    """Return what keeps a Pod's containers from starting, by its status; None without one.

    Args:
        before: its condition so far. While it retries an image, the kubelet alternates between two reasons;
            we keep the first, which names the cause.
    """
    status = pod.get("status", {})
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        waiting = container.get("state", {}).get("waiting") or {}
        reason = waiting.get("reason")
        if reason in USUAL:
            continue
        why = _crash(container) if reason == CRASH_LOOP else waiting.get("message", "")
        text = f"{container['name']}: {reason}: {why}".rstrip(": ")
        if MISSING_KEY in text:
            return Hindrance(reason, f"{text}: {_new_key(pod)}")
        if reason not in IMAGE_PULL:
            return Hindrance(reason, text)
        if before is not None and before.reason == IMAGE_PULL[-1]:
            return Hindrance(before.reason, before.message)
        return Hindrance(IMAGE_PULL[-1], f"{text} ({_pull_secrets(pod)})")
    return None


def unfinished_before_training(pod: Object) -> Hindrance | None:
    """Return the init container or native sidecar that training still waits for; None without one."""
    for container in containers_of(pod):
        if container.role is Role.INIT and container.is_running:
            return Hindrance(RUNS_BEFORE, f"the init container {container.name} still runs")
        is_sidecar = container.role is Role.SIDECAR and container.is_running
        if is_sidecar and not container.has_passed_startup:
            message = f"the native sidecar {container.name} runs and its startupProbe has not passed"
            return Hindrance(RUNS_BEFORE, message)
    return None


def _pull_secrets(pod: Object) -> str:
    """Return the Pod's pull secrets, as a clause. The kubelet names a missing one only in an Event."""
    found = [str(each.get("name")) for each in pod["spec"].get(PULL_SECRETS) or ()]
    return f"pull secrets of the Pod: {', '.join(found)}" if found else "the Pod has no pull secret"


def _crash(container: Object) -> str:
    """Return the last end of a container in a crash loop, in words."""
    end = (container.get("lastState") or {}).get("terminated") or {}
    words = last_line(words_of(end)) or end.get("reason", "")
    return f"{exit_words(end.get('exitCode'))}: {words}".rstrip(": ")


def lacks_key(pod: Object) -> bool:
    """Whether a Pod waits for the Secret with the key of its job or check."""
    found = hindrance_of(pod, None)
    return found is not None and MISSING_KEY in found.message


def _new_key(pod: Object) -> str:
    """Return the advice for a key whose Secret was deleted while other Pods run with it."""
    if LABEL_CHECK in (pod["metadata"].get("labels") or {}):
        return (
            "it was deleted, and is made again once no Pod of the check runs with its key; if one does, "
            "make the NodeCheck again"
        )
    return (
        "it was deleted, and is made again once no Pod of the job runs with its key; if one does, "
        "suspend and resume the job"
    )


class EventsRead(NamedTuple):
    """Last reading of Events for a job's Pods."""

    at: float
    """Monotonic seconds."""
    pod: str
    """Uid of the Pod whose Events were read."""
    times: int = 1


def next_reading(last: EventsRead | None, pod: str, now: float) -> EventsRead | None:
    """Return the reading to make now; None if it is too early for one.

    Another Pod is read before the one of the last reading, which may just be slow.
    """
    if last is None or now - last.at >= 2 * ASK_AFTER_SECONDS[-1]:
        return EventsRead(now, pod)
    interval = ASK_AFTER_SECONDS[min(last.times, len(ASK_AFTER_SECONDS)) - 1]
    interval += AGAIN_SECONDS / 2 if pod == last.pod else 0.0
    return EventsRead(now, pod, last.times + 1) if now - last.at >= interval else None


def newest_warning(events: Iterable[Object]) -> Hindrance:
    """Return the newest Event of `REPORTERS` if it is a Warning; `NOTHING` otherwise.

    An older Warning no longer applies: a kubelet that pulls the image, say, has mounted the volumes.
    """
    reports = (e for e in events if _reporter(e) in REPORTERS and e.get("reason") != AMID_FAILURES)
    newest = max(reports, key=_time_of, default=None)
    if newest is None or newest.get("type") != "Warning":
        return NOTHING
    return Hindrance(newest.get("reason") or "Warning", newest.get("message") or "")


def _reporter(event: Object) -> str | None:
    component = (event.get("source") or {}).get("component") or event.get("reportingComponent")
    return str(component) if component else None


def _time_of(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"])


def is_starting(pod: Object) -> bool:
    """Whether it has a node and has not started, and its status does not say why."""
    if not pod["spec"].get("nodeName") or pod.get("status", {}).get("phase", "Pending") != "Pending":
        return False
    return "deletionTimestamp" not in pod["metadata"] and hindrance_of(pod, None) is None


def last_line(text: str) -> str:
    """Return the last line that is neither blank nor a progress bar, without torch's rank prefix; else ""."""
    drawn = (line.rstrip("\r").rpartition("\r")[2].strip() for line in reversed(text.splitlines()))
    plain = (_RANK_PREFIX.sub("", line) for line in drawn)
    return next((line for line in plain if line and not _PROGRESS_BAR.search(line)), "")
