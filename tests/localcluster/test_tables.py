"""Tables: the columns that `kubectl get` shows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from localcluster.ages import human_duration
from localcluster.builtin import BUILTIN_TYPES
from localcluster.jsonpath import JsonPathError, compile_path
from localcluster.resource import ResourceType
from localcluster.tables import TableRenderer

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def ago(**delta) -> str:
    return (NOW - timedelta(**delta)).strftime("%Y-%m-%dT%H:%M:%SZ")


def meta(name: str = "a", **more) -> dict:
    return {"name": name, "creationTimestamp": ago(minutes=5), **more}


def shown(plural: str, obj: dict, *, wide: bool = False) -> dict:
    """Column name to cell, as a person sees them."""
    resource_type = next(t for t in BUILTIN_TYPES if t.group_resource == plural)
    table = TableRenderer(resource_type).table([obj], NOW)
    cells = table["rows"][0]["cells"]
    assert len(cells) == len(table["columnDefinitions"])
    return {
        column["name"]: cell
        for column, cell in zip(table["columnDefinitions"], cells, strict=True)
        if wide or column["priority"] == 0
    }


def container(
    name: str = "m", *, restarts: int = 0, ready: bool = False, last: dict | None = None, **state
) -> dict:
    return {"name": name, "restartCount": restarts, "ready": ready, "state": state, "lastState": last or {}}


RUNNING = {"startedAt": ago(minutes=4)}


def pod(phase: str, *containers: dict, init: tuple[dict, ...] = (), spec: dict | None = None, **more) -> dict:
    names = [{"name": each["name"]} for each in containers] or [{"name": "m"}]
    return {
        "metadata": meta(**more.pop("metadata", {})),
        "spec": {
            "containers": names,
            "initContainers": [{"name": each["name"]} for each in init],
            "nodeName": "node-0",
            **(spec or {}),
        },
        "status": {
            "phase": phase,
            "containerStatuses": list(containers),
            "initContainerStatuses": list(init),
            "podIP": "127.0.0.2",
            **more,
        },
    }


POD_CASES = {
    "pending": (pod("Pending"), "0/1", "Pending", "0"),
    "running": (pod("Running", container(running=RUNNING, ready=True)), "1/1", "Running", "0"),
    "one of two ready": (
        pod("Running", container("a", running=RUNNING, ready=True), container("b", running=RUNNING)),
        "1/2",
        "Running",
        "0",
    ),
    "completed": (
        pod("Succeeded", container(terminated={"exitCode": 0, "reason": "Completed"})),
        "0/1",
        "Completed",
        "0",
    ),
    "error": (pod("Failed", container(terminated={"exitCode": 1, "reason": "Error"})), "0/1", "Error", "0"),
    "crash loop": (
        pod(
            "Running",
            container(
                waiting={"reason": "CrashLoopBackOff"},
                restarts=3,
                last={"terminated": {"finishedAt": ago(seconds=42)}},
            ),
        ),
        "0/1",
        "CrashLoopBackOff",
        "3 (42s ago)",
    ),
    "initializing": (
        pod(
            "Pending",
            container(waiting={"reason": "PodInitializing"}),
            init=(
                container("i", terminated={"exitCode": 0, "reason": "Completed"}),
                container("j", running=RUNNING),
            ),
        ),
        "0/1",
        "Init:1/2",
        "0",
    ),
    "init failed": (
        pod("Pending", init=(container("i", terminated={"exitCode": 1, "reason": "Error"}, restarts=2),)),
        "0/1",
        "Init:Error",
        "2",
    ),
    "terminating": (
        pod(
            "Running", container(running=RUNNING, ready=True), metadata={"deletionTimestamp": ago(seconds=1)}
        ),
        "1/1",
        "Terminating",
        "0",
    ),
    "on a lost node": (
        pod("Running", reason="NodeLost", metadata={"deletionTimestamp": ago(seconds=1)}),
        "0/1",
        "Unknown",
        "0",
    ),
    "gated": (
        pod("Pending", conditions=[{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]),
        "0/1",
        "SchedulingGated",
        "0",
    ),
}


@pytest.mark.parametrize("case", POD_CASES)
def test_pod_is_shown_as_kubectl_shows_it(case) -> None:
    obj, ready, status, restarts = POD_CASES[case]
    assert shown("pods", obj) == {
        "Name": "a",
        "Ready": ready,
        "Status": status,
        "Restarts": restarts,
        "Age": "5m",
    }


def test_wide_pod_has_address_and_node() -> None:
    wide = shown("pods", pod("Running"), wide=True)
    assert (wide["IP"], wide["Node"], wide["Nominated Node"]) == ("127.0.0.2", "node-0", "<none>")


def test_node_status_and_roles() -> None:
    node = {
        "metadata": meta(labels={"node-role.kubernetes.io/worker": ""}),
        "spec": {"unschedulable": True},
        "status": {
            "conditions": [{"type": "Ready", "status": "False"}],
            "nodeInfo": {"kubeletVersion": "v1.37.0"},
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        },
    }
    assert shown("nodes", node) == {
        "Name": "a",
        "Status": "NotReady,SchedulingDisabled",
        "Roles": "worker",
        "Age": "5m",
        "Version": "v1.37.0",
    }


def test_event_shows_its_object_and_last_time() -> None:
    event = {
        "metadata": meta(),
        "type": "Warning",
        "reason": "BackOff",
        "message": "again ",
        "count": 4,
        "firstTimestamp": ago(minutes=3),
        "lastTimestamp": ago(seconds=10),
        "involvedObject": {"kind": "Pod", "name": "p"},
        "source": {"component": "kubelet", "host": "node-0"},
    }
    assert shown("events", event) == {
        "Last Seen": "10s",
        "Type": "Warning",
        "Reason": "BackOff",
        "Object": "pod/p",
        "Message": "again",
    }
    assert shown("events", event, wide=True)["Source"] == "kubelet, node-0"


@pytest.mark.parametrize("resource_type", BUILTIN_TYPES, ids=lambda t: t.group_resource)
def test_every_builtin_kind_is_shown_even_when_bare(resource_type) -> None:
    table = TableRenderer(resource_type).table([{"metadata": {"name": "a"}}], NOW)
    assert len(table["rows"][0]["cells"]) == len(table["columnDefinitions"])


CUSTOM = ResourceType(
    group="g.example.com",
    version="v1",
    kind="Thing",
    plural="things",
    singular="thing",
    custom=True,
    printer_columns=(
        {"name": "Rank", "type": "integer", "jsonPath": ".spec.index"},
        {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
        {"name": "On", "type": "boolean", "jsonPath": ".spec.on"},
        {"name": "Since", "type": "date", "jsonPath": ".status.since", "priority": 1},
        {"name": "Names", "type": "string", "jsonPath": ".spec.names[*]"},
    ),
)


def test_custom_columns_are_read_by_their_paths_and_empty_ones_are_null() -> None:
    thing = {
        "metadata": meta(),
        "spec": {"index": 3, "on": False, "names": ["a", "b"]},
        "status": {
            "conditions": [{"type": "X", "status": "1"}, {"type": "Ready", "status": "True"}],
            "since": ago(hours=3),
        },
    }
    renderer = TableRenderer(CUSTOM)
    assert renderer.row(thing, NOW)["cells"] == ["a", 3, "True", False, "3h", "a b"]
    assert renderer.row({"metadata": meta()}, NOW)["cells"] == ["a", None, None, None, None, None]


def test_row_carries_as_much_of_the_object_as_is_asked() -> None:
    renderer = TableRenderer(CUSTOM)
    obj = {"metadata": meta(), "spec": {}}
    assert renderer.row(obj, NOW)["object"]["kind"] == "PartialObjectMetadata"
    assert renderer.row(obj, NOW, "Object")["object"] is obj
    assert "object" not in renderer.row(obj, NOW, "None")
    assert renderer.table([], NOW, with_columns=False)["columnDefinitions"] == []


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".a", [{"b": [1, {"c": 2}], "x.y": 3}]),
        ("{.a.b[0]}", [1]),
        (".a.b[-1].c", [2]),
        (".a['x.y']", [3]),
        (r".a.x\.y", [3]),
        (".a.b[*]", [1, {"c": 2}]),
        (".a.b[?(@.c==2)].c", [2]),
        ("$.a.b[5]", []),
        (".nothing.here", []),
    ],
)
def test_json_path_finds(path, expected) -> None:
    assert compile_path(path)({"a": {"b": [1, {"c": 2}], "x.y": 3}}) == expected


@pytest.mark.parametrize("path", ["a", ".a[", ".a[?(@.b>1)]", "..a", ""])
def test_unsupported_json_path_is_refused(path) -> None:
    with pytest.raises(JsonPathError):
        compile_path(path)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (121, "2m1s"),
        (601, "10m"),
        (3 * 3600 - 1, "179m"),
        (3 * 3600 + 60, "3h1m"),
        (8 * 3600 + 60, "8h"),
        (47 * 3600, "47h"),
        (49 * 3600, "2d1h"),
        (8 * 86400 + 3600, "8d"),
        (800 * 86400, "2y70d"),
        (9 * 365 * 86400 + 86400, "9y"),
    ],
)
def test_durations_are_worded_as_kubectl_words_them(seconds, text) -> None:
    assert human_duration(seconds) == text
