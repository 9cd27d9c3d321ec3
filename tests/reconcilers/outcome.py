"""What of a run's end, its worlds and its Events must not depend on crashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from controller.resources import ELASTICJOBS, ELASTICWORKERS, LEASES, PODS
from tests.reconcilers.api import Api, Event

JSON = dict[str, Any]
Told = Counter[tuple[str, str, str, str]]
"""How often each reason was told of each object: kind, name, type, reason."""

VOLATILE = frozenset(
    "uid podUid resourceVersion generation observedGeneration jobGeneration creationTimestamp message logTail "
    "lastTransitionTime lastHeartbeatTime time since startTime completionTime createTime finishTime formedAt "
    "reformingSince heldUntil suspectedAt renewTime seconds goodput deletionGracePeriodSeconds "
    "createdAt runningAt endedAt annotations requestedAt".split()
)
"""Times, ids, and prose that names them."""


def end_state(api: Api) -> dict[str, JSON]:
    """Every object that is there, by kind and name, without what is volatile."""
    there = {obj["metadata"]["uid"] for objects in api.objects.values() for obj in objects.values()}
    found = {}
    for resource, objects in api.objects.items():
        for obj in objects.values():
            state = _pod(obj) if resource is PODS else _stable(obj)
            owners = obj["metadata"].get("ownerReferences", ())
            state["orphan"] = any(owner["uid"] not in there for owner in owners)
            state["annotations"] = sorted(obj["metadata"].get("annotations") or ())
            found[f"{resource.kind} {obj['metadata']['name']}"] = state
    return found


def differences(expected: Any, found: Any, path: str = "") -> Iterator[str]:
    """Where two states differ, one line each."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted(expected.keys() | found.keys(), key=str):
            inner = f"{path}.{key}" if path else str(key)
            if key not in expected:
                yield f"{inner}: is {_short(found[key])}, and should not be"
            elif key not in found:
                yield f"{inner}: is missing, and should be {_short(expected[key])}"
            else:
                yield from differences(expected[key], found[key], inner)
    elif expected != found:
        yield f"{path}: is {_short(found)}, and should be {_short(expected)}"


def worlds(api: Api) -> list[tuple[str, int, tuple[int, ...], tuple[int, ...]]]:
    """Every world that was formed, in order: job, round, members and their incarnations."""
    found = []
    for entry in api.log.get(ELASTICJOBS, ()):
        world = entry.obj.get("status", {}).get("rendezvous") or {}
        if world.get("phase") == "Formed":
            formed = world["round"], tuple(world["members"]), tuple(world["incarnations"])
            found.append((entry.obj["metadata"]["uid"], *formed))
    return list(dict.fromkeys(found))


def told(events: list[Event]) -> Told:
    return Counter((event.kind, event.name, event.type, event.reason) for event in events)


def unsound(api: Api) -> Iterator[str]:
    """What is wrong at any quiet moment, whatever happened before."""
    for worker in api.list(ELASTICWORKERS):
        name, status = worker["metadata"]["name"], worker.get("status", {})
        if status.get("phase") != "Running":
            continue
        lease = api.find(LEASES, name)
        if lease is None:
            yield f"{name} runs and has no Lease"
        elif lease["metadata"]["ownerReferences"][0]["uid"] != worker["metadata"]["uid"]:
            yield f"{name}: its Lease is another worker's"


def _pod(pod: JSON) -> JSON:
    return {
        "node": pod["spec"].get("nodeName"),
        "phase": pod["status"]["phase"],
        "leaving": "deletionTimestamp" in pod["metadata"],
        "resources": [container.get("resources") for container in pod["spec"]["containers"]],
    }


def _stable(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _stable(inner) for key, inner in value.items() if key not in VOLATILE}
        if "deletionTimestamp" in kept:
            kept["deletionTimestamp"] = True
        if "round" in kept:
            kept.pop("reason", None)  # a world's, or that of an episode of the job's history, is prose
        return kept
    if isinstance(value, list):
        return [_stable(item) for item in value]
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 160 else f"{text[:160]}…"
