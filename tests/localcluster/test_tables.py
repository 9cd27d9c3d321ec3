"""Tables: the columns that `kubectl get` shows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from localcluster.builtin import BUILTIN_TYPES
from localcluster.printers import age, pod_reason
from localcluster.resource import ResourceType
from localcluster.tables import TableRenderer

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
META = {"name": "a", "creationTimestamp": "2026-01-02T02:59:05Z"}


def ago(**delta: int) -> str:
    return (NOW - timedelta(**delta)).strftime("%Y-%m-%dT%H:%M:%SZ")


def shown(plural: str, obj: dict[str, Any]) -> dict[str, Any]:
    """Column name to cell."""
    resource_type = next(t for t in BUILTIN_TYPES if t.group_resource == plural)
    table = TableRenderer(resource_type).table([obj], NOW)
    names = [column["name"] for column in table["columnDefinitions"]]
    return dict(zip(names, table["rows"][0]["cells"], strict=True))


def container(**state: dict[str, Any]) -> dict[str, Any]:
    return {"name": "m", "restartCount": 2, "ready": "running" in state, "state": state}


RUNNING = container(running={})
COMPLETED = container(terminated={"exitCode": 0, "reason": "Completed"})
DONE = COMPLETED | {"ready": True}
LOOPING = container(waiting={"reason": "CrashLoopBackOff"})
WAITING = container(waiting={"reason": "PodInitializing"})
PULLING = {**container(running={}), "ready": False}


def pod(
    phase: str, *containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **metadata: Any
) -> Any:
    return {
        "metadata": META | metadata,
        "spec": {"containers": [{}], "initContainers": [{} for _ in init], "nodeName": "node-0"},
        "status": {"phase": phase, "containerStatuses": [*containers], "initContainerStatuses": [*init]},
    }


@pytest.mark.parametrize(
    ("obj", "reason"),
    [
        (pod("Running", RUNNING), "Running"),
        (pod("Succeeded", COMPLETED), "Completed"),
        (pod("Failed", container(terminated={"exitCode": 3})), "ExitCode:3"),
        (pod("Running", LOOPING), "CrashLoopBackOff"),
        (pod("Pending", WAITING, init=(DONE, PULLING)), "Init:1/2"),
        (pod("Pending", WAITING, init=(container(terminated={"reason": "Error"}),)), "Init:Error"),
        (pod("Running", RUNNING, deletionTimestamp="x"), "Terminating"),
        (pod("Failed", COMPLETED, deletionTimestamp="x"), "Completed"),
    ],
)
def test_the_status_of_a_pod_is_of_its_containers(obj: dict[str, Any], reason: str) -> None:
    assert pod_reason(obj) == reason


def test_pods_nodes_and_events_have_columns_of_their_own() -> None:
    assert shown("pods", pod("Running", RUNNING)) == {
        **{"Name": "a", "Ready": "1/1", "Status": "Running", "Restarts": "2", "Age": "5m"},
        **{"IP": "<none>", "Node": "node-0"},
    }
    status = {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1"}}
    node = {"metadata": META, "spec": {"unschedulable": True}, "status": status}
    cordoned = "Ready,SchedulingDisabled"
    assert [*shown("nodes", node).values()] == ["a", cordoned, "<none>", "5m", "v1"]
    about = {"kind": "Pod", "name": "p"}
    event = {"metadata": META, "type": "Warning", "reason": "BackOff", "message": "again ", "count": 4}
    event |= {"involvedObject": about, "lastTimestamp": ago(seconds=10)}
    assert [*shown("events", event).values()] == ["10s", "Warning", "BackOff", "pod/p", "again", 4, "a"]


def test_every_builtin_kind_is_shown_even_when_bare() -> None:
    for resource_type in BUILTIN_TYPES:
        assert shown(resource_type.group_resource, {"metadata": {"name": "a"}, "spec": {}})


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
        {"name": "Names", "type": "string", "jsonPath": ".spec.names"},
        {"name": "Each", "type": "string", "jsonPath": ".spec.names[*]"},
    ),
)


def test_custom_columns_are_read_by_their_paths_and_empty_ones_are_null() -> None:
    conditions = [{"type": "X", "status": "1"}, {"type": "Ready", "status": "True"}]
    spec = {"index": 3, "on": False, "names": ["a", "b"]}
    thing = {"metadata": META, "spec": spec, "status": {"conditions": conditions, "since": ago(hours=3)}}
    renderer = TableRenderer(CUSTOM)
    assert renderer.row(thing, NOW)["cells"] == ["a", 3, "True", False, "3h", '["a","b"]', None]
    assert renderer.row({"metadata": META}, NOW)["cells"] == ["a", *[None] * 6]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (119, "119s"),
        (121, "2m1s"),
        (47 * 3600, "47h"),
        (49 * 3600, "2d1h"),
    ],
)
def test_ages_are_worded_as_kubectl_words_them(seconds: int, text: str) -> None:
    assert age(ago(seconds=seconds), NOW) == text


@pytest.mark.parametrize("text", [None, "", "yesterday"])
def test_what_is_no_time_has_no_age(text: str | None) -> None:
    assert age(text, NOW) == "<unknown>"
