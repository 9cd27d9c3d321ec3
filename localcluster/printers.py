"""Columns and cells that `kubectl get` shows of Pods, nodes, Events and Leases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from localcluster.client.clock import parse_timestamp
from localcluster.resource import JSON

NONE = "<none>"
_UNITS = (("y", 365 * 86400), ("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_TWO_UNITS_UPTO = 10
"""Number of units above which the next smaller unit is not shown."""


@dataclass(frozen=True)
class Column:
    """A column of a Table."""

    name: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0
    """Above 0: only in wide output."""


@dataclass(frozen=True)
class Printer:
    """A kind's columns, and its cells in the same order."""

    columns: tuple[Column, ...]
    cells: Callable[[JSON, datetime], list[Any]]


NAME = Column("Name", format="name")
AGE = Column("Age")


def name_of(obj: JSON) -> str:
    return str(obj["metadata"].get("name", ""))


def age(text: str | None, now: datetime) -> str:
    """The time since a timestamp in kubectl's words: `45s`, `3m12s`, `5h7m`, `12d`."""
    try:
        seconds = max(int((now - parse_timestamp(text or "")).total_seconds()), 0)
    except (ValueError, TypeError):
        return "<unknown>"
    for (unit, size), (smaller, small) in pairwise(_UNITS):
        if seconds >= size * (2 if unit in "md" else 1):
            rest = seconds % size // small
            return f"{seconds // size}{unit}" + (
                f"{rest}{smaller}" if rest and seconds < _TWO_UNITS_UPTO * size else ""
            )
    return f"{seconds}s"


def age_of(obj: JSON, now: datetime) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


def at(obj: Any, *path: str) -> Any:
    """Return the value at a path of fields; None if there is none."""
    for part in path:
        obj = obj.get(part) if isinstance(obj, dict) else None
    return obj


def _printer(cells: Callable[[JSON, datetime], list[Any]], *columns: str) -> Printer:
    """A printer with NAME first; a column with a `+` is for wide output."""
    written = (Column(each.removeprefix("+"), priority=int(each.startswith("+"))) for each in columns)
    return Printer((NAME, *written), lambda obj, now: [name_of(obj), *cells(obj, now)])


def pod_reason(pod: JSON) -> str:
    """A Pod's STATUS, of its containers' states."""
    status = pod.get("status") or {}
    reason: str = status.get("reason") or status.get("phase") or "Unknown"
    for container in reversed(status.get("containerStatuses") or ()):
        reason = _reason_of(container) or reason
    for number, container in enumerate(status.get("initContainerStatuses") or ()):
        if not container.get("ready"):
            count = len(pod["spec"]["initContainers"])
            reason = f"Init:{_reason_of(container) or f'{number}/{count}'}"
            break
    over = status.get("phase") in ("Succeeded", "Failed")
    return "Terminating" if pod["metadata"].get("deletionTimestamp") and not over else reason


def _reason_of(container: JSON) -> str:
    """Why a container does not run; nothing for one that runs, or is about to."""
    state = container.get("state") or {}
    if (waiting := at(state, "waiting", "reason")) is not None:
        return "" if waiting == "PodInitializing" else str(waiting)
    ended = state.get("terminated")
    return "" if ended is None else str(ended.get("reason") or f"ExitCode:{ended.get('exitCode', 0)}")


def _pod(pod: JSON, now: datetime) -> list[Any]:
    containers = at(pod, "status", "containerStatuses") or []
    return [
        f"{sum(bool(each.get('ready')) for each in containers)}/{len(pod['spec'].get('containers') or ())}",
        pod_reason(pod),
        str(sum(each.get("restartCount", 0) for each in containers)),
        age_of(pod, now),
        at(pod, "status", "podIP") or NONE,
        at(pod, "spec", "nodeName") or NONE,
    ]


def _node(node: JSON, now: datetime) -> list[Any]:
    conditions = {each["type"]: each["status"] for each in at(node, "status", "conditions") or []}
    status = "Ready" if conditions.get("Ready") == "True" else "NotReady"
    if at(node, "spec", "unschedulable"):
        status += ",SchedulingDisabled"
    return [status, NONE, age_of(node, now), at(node, "status", "nodeInfo", "kubeletVersion") or ""]


def _event(event: JSON, now: datetime) -> list[Any]:
    first = event.get("eventTime") or event["metadata"].get("creationTimestamp")
    last = at(event, "series", "lastObservedTime") or event.get("lastTimestamp") or first
    involved = event.get("involvedObject") or {}
    return [
        age(last, now),
        event.get("type", ""),
        event.get("reason", ""),
        f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}",
        str(event.get("message") or "").strip(),
        at(event, "series", "count") or event.get("count") or 1,
        name_of(event),
    ]


_EVENT_COLUMNS = (
    *map(Column, ("Last Seen", "Type", "Reason", "Object", "Message")),
    Column("Count", type="integer", priority=1),
    Column("Name", priority=1),
)

PRINTERS: dict[str, Printer] = {
    "pods": _printer(_pod, "Ready", "Status", "Restarts", "Age", "+IP", "+Node"),
    "nodes": _printer(_node, "Status", "Roles", "Age", "Version"),
    "events": Printer(_EVENT_COLUMNS, _event),
    "leases.coordination.k8s.io": _printer(
        lambda obj, now: [at(obj, "spec", "holderIdentity") or "", age_of(obj, now)], "Holder", "Age"
    ),
}
"""Printers by group-resource, as messages name it; other built-in kinds have name and age."""
