"""Which columns `kubectl get` shows of each built-in kind, and what stands in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from localcluster.ages import age
from localcluster.pod_summary import summarize
from localcluster.resource import JSON

NONE = "<none>"
UNKNOWN = "<unknown>"


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


NAME = Column("Name", format="name", description="Name must be unique within a namespace.")
AGE = Column("Age", description="How long ago the object was created.")


def _wide(name: str) -> Column:
    return Column(name, priority=1)


def name_of(obj: JSON) -> str:
    return str(obj["metadata"].get("name", ""))


def age_of(obj: JSON, now: datetime) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


def _at(obj: JSON, *path: str) -> Any:
    value: Any = obj
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _joined(pairs: JSON | None) -> str:
    return ",".join(f"{key}={value}" for key, value in (pairs or {}).items()) or NONE


def _printer(cells: Callable[[JSON, datetime], list[Any]], *columns: Column | str) -> Printer:
    """A printer with NAME first; plain strings are columns of text."""
    written = (Column(column) if isinstance(column, str) else column for column in columns)
    return Printer((NAME, *written), lambda obj, now: [name_of(obj), *cells(obj, now)])


def _pod(pod: JSON, now: datetime) -> list[Any]:
    summary = summarize(pod, now)
    gates = _at(pod, "spec", "readinessGates") or []
    conditions = _at(pod, "status", "conditions") or []
    met = {each["type"] for each in conditions if each.get("status") == "True"}
    passed = sum(gate["conditionType"] in met for gate in gates)
    return [
        f"{summary.ready_containers}/{summary.containers}",
        summary.reason,
        summary.restarts_text,
        age_of(pod, now),
        _at(pod, "status", "podIP") or NONE,
        _at(pod, "spec", "nodeName") or NONE,
        _at(pod, "status", "nominatedNodeName") or NONE,
        f"{passed}/{len(gates)}" if gates else NONE,
    ]


_ROLE_PREFIX = "node-role.kubernetes.io/"


def _node(node: JSON, now: datetime) -> list[Any]:
    conditions = {each["type"]: each["status"] for each in _at(node, "status", "conditions") or []}
    words = {"True": "Ready", "False": "NotReady"}
    status = words.get(conditions.get("Ready", ""), "NotReady" if "Ready" in conditions else "Unknown")
    if _at(node, "spec", "unschedulable"):
        status += ",SchedulingDisabled"
    labels = _at(node, "metadata", "labels") or {}
    roles = sorted(key.removeprefix(_ROLE_PREFIX) for key in labels if key.startswith(_ROLE_PREFIX))
    addresses = {each["type"]: each["address"] for each in _at(node, "status", "addresses") or []}
    info = _at(node, "status", "nodeInfo") or {}
    return [
        status,
        ",".join(role for role in roles if role) or NONE,
        age_of(node, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", NONE),
        addresses.get("ExternalIP", NONE),
        info.get("osImage") or UNKNOWN,
        info.get("kernelVersion") or UNKNOWN,
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


def _event(event: JSON, now: datetime) -> list[Any]:
    series = event.get("series") or {}
    first = event.get("firstTimestamp") or event.get("eventTime")
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or first
    involved = event.get("involvedObject") or event.get("regarding") or {}
    source = event.get("source") or {}
    reporter = source.get("component") or event.get("reportingComponent") or event.get("reportingController")
    return [
        age(last or event["metadata"].get("creationTimestamp"), now),
        event.get("type", ""),
        event.get("reason", ""),
        f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}",
        involved.get("fieldPath", ""),
        ", ".join(part for part in (reporter, source.get("host")) if part),
        str(event.get("message") or event.get("note") or "").strip(),
        age(first or event["metadata"].get("creationTimestamp"), now),
        series.get("count") or event.get("count") or 1,
        name_of(event),
    ]


_EVENT_COLUMNS = (
    Column("Last Seen"),
    Column("Type"),
    Column("Reason"),
    Column("Object"),
    _wide("Subobject"),
    _wide("Source"),
    Column("Message"),
    _wide("First Seen"),
    Column("Count", type="integer", priority=1),
    Column("Name", priority=1),
)


def _port_text(port: JSON) -> str:
    node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port['port']}{node_port}/{port.get('protocol', 'TCP')}"


def _service(service: JSON, now: datetime) -> list[Any]:
    spec = service.get("spec") or {}
    ports = ",".join(_port_text(port) for port in spec.get("ports") or [])
    return [
        spec.get("type", "ClusterIP"),
        spec.get("clusterIP") or NONE,
        ",".join(spec.get("externalIPs") or []) or NONE,
        ports or NONE,
        age_of(service, now),
        _joined(spec.get("selector")),
    ]


def _disruption_budget(budget: JSON, now: datetime) -> list[Any]:
    spec = budget.get("spec") or {}
    return [
        str(spec.get("minAvailable", "N/A")),
        str(spec.get("maxUnavailable", "N/A")),
        _at(budget, "status", "disruptionsAllowed") or 0,
        age_of(budget, now),
    ]


def _priority_class(priority_class: JSON, now: datetime) -> list[Any]:
    return [
        priority_class.get("value", 0),
        bool(priority_class.get("globalDefault")),
        age_of(priority_class, now),
        priority_class.get("preemptionPolicy", ""),
    ]


_EVENT_PRINTER = Printer(_EVENT_COLUMNS, _event)

PRINTERS: dict[str, Printer] = {
    "pods": _printer(
        _pod,
        "Ready",
        "Status",
        "Restarts",
        AGE,
        _wide("IP"),
        _wide("Node"),
        _wide("Nominated Node"),
        _wide("Readiness Gates"),
    ),
    "nodes": _printer(
        _node,
        "Status",
        "Roles",
        AGE,
        "Version",
        _wide("Internal-IP"),
        _wide("External-IP"),
        _wide("OS-Image"),
        _wide("Kernel-Version"),
        _wide("Container-Runtime"),
    ),
    "namespaces": _printer(
        lambda obj, now: [_at(obj, "status", "phase") or "", age_of(obj, now)], "Status", AGE
    ),
    "events": _EVENT_PRINTER,
    "events.events.k8s.io": _EVENT_PRINTER,
    "configmaps": _printer(
        lambda obj, now: [len(obj.get("data") or {}) + len(obj.get("binaryData") or {}), age_of(obj, now)],
        Column("Data", type="integer"),
        AGE,
    ),
    "secrets": _printer(
        lambda obj, now: [obj.get("type", ""), len(obj.get("data") or {}), age_of(obj, now)],
        "Type",
        Column("Data", type="integer"),
        AGE,
    ),
    "serviceaccounts": _printer(
        lambda obj, now: [len(obj.get("secrets") or []), age_of(obj, now)],
        Column("Secrets", type="integer"),
        AGE,
    ),
    "services": _printer(_service, "Type", "Cluster-IP", "External-IP", "Port(s)", AGE, _wide("Selector")),
    "leases.coordination.k8s.io": _printer(
        lambda obj, now: [_at(obj, "spec", "holderIdentity") or "", age_of(obj, now)], "Holder", AGE
    ),
    "poddisruptionbudgets.policy": _printer(
        _disruption_budget,
        "Min Available",
        "Max Unavailable",
        Column("Allowed Disruptions", type="integer"),
        AGE,
    ),
    "priorityclasses.scheduling.k8s.io": _printer(
        _priority_class,
        Column("Value", type="integer"),
        Column("Global-Default", type="boolean"),
        AGE,
        "PreemptionPolicy",
    ),
    "customresourcedefinitions.apiextensions.k8s.io": _printer(
        lambda obj, now: [obj["metadata"].get("creationTimestamp", "")], Column("Created At")
    ),
}
"""By group-resource, as messages name it."""
