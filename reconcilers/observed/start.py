"""Why a Pod that has a node does not start: what its status says, and what only its Events say. Pure.

A kubelet reports in a container's status that an image or a Secret of its environment is missing, and in an
Event alone that a volume cannot be mounted. So the Events of a Pod that is late are read (`maker.py`), of a
job's Pods one at a time and ever more rarely: each reading goes through all Events of the namespace.
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
"""A Pod that has a node and has not started for so long may have a reason that only its Events tell."""
AGAIN_SECONDS = 60.0
ASK_AFTER_SECONDS = (10.0, 60.0, 300.0)
"""From one reading for a job's Pods to the next; the last again and again. When nobody was late for twice as
long as that, it begins anew."""
REPORTERS = ("kubelet", "attachdetach-controller")
"""Who works on a Pod that has a node; what others have said, such as the scheduler, is over then."""
AMID_FAILURES = "SandboxChanged"
"""A Normal Event that a kubelet sends between two Warnings of a sandbox that cannot be made."""
MISSING_KEY = f'secret "{key_secret("")}'
"""What a kubelet says of a container without its key: https://kubernetes.io/docs/concepts/configuration/secret/."""
IMAGE_PULL = ("ErrImagePull", "ImagePullBackOff")
USUAL = (None, "ContainerCreating", "PodInitializing")


class Hindrance(NamedTuple):
    """What keeps a Pod from starting."""

    reason: str
    message: str


RUNS_BEFORE = "PodInitializing"
"""Reason of a Pod whose training container waits for one that runs first."""
NOTHING = Hindrance("", "")
"""Its Events were read, and nothing keeps it from starting any more."""


def hindrance_of(pod: Object, known: Condition | None) -> Hindrance | None:
    """What the status of a Pod that waits for its containers says.

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
        why = _crash(container) if reason == CRASH_LOOP else waiting.get("message", "")
        text = f"{container['name']}: {reason}: {why}".rstrip(": ")
        if MISSING_KEY in text:
            return Hindrance(reason, f"{text}: {_new_key(pod)}")
        if reason not in IMAGE_PULL:
            return Hindrance(reason, text)
        if known is not None and known.reason == IMAGE_PULL[-1]:
            return Hindrance(known.reason, known.message)
        return Hindrance(IMAGE_PULL[-1], f"{text} ({_pull_secrets(pod)})")
    return None


def unfinished_before_training(pod: Object) -> Hindrance | None:
    """The init container that runs, or the native sidecar that has not started: training starts after it."""
    for container in containers_of(pod):
        if container.role is Role.INIT and container.is_running:
            return Hindrance(RUNS_BEFORE, f"the init container {container.name} still runs")
        is_sidecar = container.role is Role.SIDECAR and container.is_running
        if is_sidecar and not container.has_passed_startup:
            message = f"the native sidecar {container.name} runs and its startupProbe has not passed"
            return Hindrance(RUNS_BEFORE, message)
    return None


def _pull_secrets(pod: Object) -> str:
    """What the Pod gives the kubelet for private registries. A misspelt name stands only in an Event."""
    found = [str(each.get("name")) for each in pod["spec"].get(PULL_SECRETS) or ()]
    return f"pull secrets of the Pod: {', '.join(found)}" if found else "the Pod has no pull secret"


def _crash(container: Object) -> str:
    """How a container ended that is started again and again."""
    end = (container.get("lastState") or {}).get("terminated") or {}
    words = last_line(words_of(end)) or end.get("reason", "")
    return f"{exit_words(end.get('exitCode'))}: {words}".rstrip(": ")


def lacks_key(pod: Object) -> bool:
    """Whether a Pod waits for the Secret with the key of its job or check."""
    found = hindrance_of(pod, None)
    return found is not None and MISSING_KEY in found.message


def _new_key(pod: Object) -> str:
    """What to do when that Secret was deleted while other Pods run with the key."""
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
    """The Events of a job's Pods were read."""

    at: float
    """Monotonic seconds."""
    pod: str
    """Uid of the Pod that they are of."""
    times: int = 1


def next_reading(last: EventsRead | None, pod: str, now: float) -> EventsRead | None:
    """The reading to make now; None if it is too early for one.

    Another Pod has its turn before the one of the last reading, which may just be slow.
    """
    if last is None or now - last.at >= 2 * ASK_AFTER_SECONDS[-1]:
        return EventsRead(now, pod)
    interval = ASK_AFTER_SECONDS[min(last.times, len(ASK_AFTER_SECONDS)) - 1]
    interval += AGAIN_SECONDS / 2 if pod == last.pod else 0.0
    return EventsRead(now, pod, last.times + 1) if now - last.at >= interval else None


def warning_of(events: Iterable[Object]) -> Hindrance:
    """The last word of those who work on a Pod that has a node, if that is a warning.

    Once a kubelet pulls the image, the volumes are mounted, whatever it said of them before.
    """
    words = (e for e in events if _reporter(e) in REPORTERS and e.get("reason") != AMID_FAILURES)
    newest = max(words, key=_time_of, default=None)
    if newest is None or newest.get("type") != "Warning":
        return NOTHING
    return Hindrance(newest.get("reason") or "Warning", newest.get("message") or "")


def _reporter(event: Object) -> str | None:
    component = (event.get("source") or {}).get("component") or event.get("reportingComponent")
    return str(component) if component else None


def _time_of(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"])


def is_starting(pod: Object) -> bool:
    """It has a node and has not started, and its status does not say why."""
    if not pod["spec"].get("nodeName") or pod.get("status", {}).get("phase", "Pending") != "Pending":
        return False
    return "deletionTimestamp" not in pod["metadata"] and hindrance_of(pod, None) is None


def last_line(text: str) -> str:
    """The last that is neither blank nor a progress bar, without the rank that torch puts before it; "" if
    there is none."""
    drawn = (line.rstrip("\r").rpartition("\r")[2].strip() for line in reversed(text.splitlines()))
    said = (_RANK_PREFIX.sub("", line) for line in drawn)
    return next((line for line in said if line and not _PROGRESS_BAR.search(line)), "")
