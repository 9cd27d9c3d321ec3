"""What of a run's end, its worlds and its Events must not depend on crashes."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import orjson

from controller.resources import LEASES, PODS, SECRETS
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from tests.reconcilers.api import Api, Event

JSON = dict[str, Any]
Told = Counter[tuple[str, str, str, str]]
"""How often each reason was told of each object: kind, name, type, reason."""

VOLATILE = {
    *("uid", "podUid", "resourceVersion", "generation", "observedGeneration", "jobGeneration", "annotations"),
    *("creationTimestamp", "lastTransitionTime", "lastHeartbeatTime", "time", "since", "startTime"),
    *("completionTime", "formedAt", "reformingSince", "heldUntil", "suspectedAt"),
    *("createdAt", "runningAt", "endedAt", "requestedAt", "renewTime", "seconds", "goodput"),
    *("deletionGracePeriodSeconds", "message", "logTail", "data"),
}
"""Times, ids, keys, and prose that names them."""


def end_state(api: Api) -> dict[str, JSON]:
    """Every object that is there, by kind and name, without what is volatile.

    The job's account of its time is left out, and that a Pod once had to wait: whether that was seen depends on
    when it was. So are the Pods of earlier incarnations that have ended, which stay for their logs, if they can.
    """
    there = {obj["metadata"]["uid"] for objects in api.objects.values() for obj in objects.values()}
    found = {}
    for resource, objects in api.objects.items():
        for obj in objects.values():
            if resource is PODS and _is_witness(api, obj):
                continue
            state = _pod(obj) if resource is PODS else _stable(obj)
            if resource is ELASTICJOBS:
                _forget_what_depends_on_when_it_was_seen(state.get("status", {}))
            owners = obj["metadata"].get("ownerReferences", ())
            state["orphan"] = any(owner["uid"] not in there for owner in owners)
            state["annotations"] = sorted(obj["metadata"].get("annotations") or ())
            found[f"{resource.kind} {obj['metadata']['name']}"] = state
    return found


def _forget_what_depends_on_when_it_was_seen(status: JSON) -> None:
    status.pop("history", None)


def fingerprint(api: Api) -> bytes:
    """Of all that the future depends on, if nothing is under way: two runs that meet in it go on alike."""
    state = [
        [{**obj, "metadata": {**obj["metadata"], "resourceVersion": ""}} for obj in api.list(resource)]
        for resource in sorted(api.objects, key=lambda resource: resource.plural)
        if resource is not SECRETS
    ]
    return hashlib.sha256(orjson.dumps([api.seconds, state], option=orjson.OPT_SORT_KEYS)).digest()


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


def worlds(api: Api) -> list[tuple[str, int, str, str]]:
    """Every world that was formed, in order: job, round, members and their incarnations, as they are stored."""
    found = []
    for entry in api.log.get(ELASTICJOBS, ()):
        world = entry.obj.get("status", {}).get("rendezvous") or {}
        if world.get("phase") == "Formed":
            formed = world["round"], world["members"], str(world.get("incarnations"))
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


def _is_witness(api: Api, pod: JSON) -> bool:
    worker = api.find(ELASTICWORKERS, pod["metadata"]["ownerReferences"][0]["name"])
    current = f"{worker['metadata']['name']}-{worker['spec']['incarnation']}" if worker else ""
    return pod["metadata"]["name"] != current and pod["status"]["phase"] in ("Failed", "Succeeded")


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
