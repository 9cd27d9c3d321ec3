"""Waiting until a deleted job is gone, and what holds it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from crds import names
from dlr.kube.api import ELASTICJOBS, NODES, PODS, Api, ApiFailure
from dlr.kube.errors import CommandError
from reconcilers.observed.containers import TERMINAL_PHASES

JSON = dict[str, Any]

POLL_SECONDS = 0.5
MOST_NAMED = 5
"""Of what is left of a job."""
LOOK_SECONDS = 5.0
"""After so long it is asked why what is left is still there, and again each time."""
LATE_SECONDS = 10.0
"""What the kubelet may take to tell that a Pod has ended, after its grace."""


def wait_until_gone(api: Api, name: str, deadline: float) -> None:
    """
    Args:
        deadline: of `time.monotonic`.

    Raises:
        CommandError: by then something of it is still there.
    """
    looked, told, going = time.monotonic(), set[str](), dict[str, float]()
    while remains := _remains(api, name):
        if time.monotonic() > deadline:
            why = " ".join(f"{each}." for each in _reasons(api, name, going))
            left = f"The job {name!r} is deleted, but not all of it is gone yet: {_in_short(remains)}."
            raise CommandError(f"{left} {why}".strip())
        if not told:
            told.add("")
            print(
                f"elasticjob {api.namespace}/{name} is being deleted; waiting for {_in_short(remains)}",
                file=sys.stderr,
            )
        if time.monotonic() - looked >= LOOK_SECONDS:
            looked = time.monotonic()
            for reason in _reasons(api, name, going):
                if reason not in told:
                    told.add(reason)
                    print(reason, file=sys.stderr)
        time.sleep(POLL_SECONDS)


def why_left(pod: JSON, node: JSON | None, going_seconds: float) -> str:
    """Why a Pod that is to go is still there; empty as long as that is as it should be.

    Args:
        pod: of a job that is deleted.
        node: of the Pod; None if it is not known, as where nodes may not be read.
        going_seconds: since it was seen to be deleted; 0 if garbage collection has yet to come to it.
    """
    name, on = pod["metadata"]["name"], pod["spec"].get("nodeName", "")
    finalizers = pod["metadata"].get("finalizers") or []
    has_ended = pod.get("status", {}).get("phase") in TERMINAL_PHASES or not on
    if going_seconds > 0 and finalizers and has_ended:
        return (
            f"pod/{name} has ended, and {_named(finalizers)}, which its owner takes away when it is done; "
            f"where nobody will: kubectl patch pod {name} --type=json "
            '-p \'[{"op": "remove", "path": "/metadata/finalizers"}]\''
        )
    remedy = f"`kubectl delete pod {name} --force --grace-period=0` removes it from the cluster now"
    if node is not None and not _is_ready(node):
        return (
            f"pod/{name} cannot end: its node {on} is not ready, so nobody there hears of it. "
            f"It goes when the node is back, or is deleted; {remedy}"
        )
    grace_seconds = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
    if not on or going_seconds <= grace_seconds + LATE_SECONDS:
        return ""
    return f"pod/{name} should have ended by now, and its node {on} does not say so; {remedy}"


def _named(finalizers: Sequence[str]) -> str:
    if len(finalizers) == 1:
        return f"the finalizer {finalizers[0]} holds it"
    return f"the finalizers {', '.join(finalizers[:MOST_NAMED])} hold it"


def _reasons(api: Api, name: str, going: dict[str, float]) -> list[str]:
    """Why Pods are left, a sentence each.

    Args:
        going: when each Pod was first seen to be deleted itself, by name; completed here.
    """
    pods, now, reasons = _pods(api, name), time.monotonic(), []
    for pod in pods:
        if pod["metadata"].get("deletionTimestamp"):
            going.setdefault(pod["metadata"]["name"], now)
    for pod in pods[:MOST_NAMED]:
        on = pod["spec"].get("nodeName")
        since = going.get(pod["metadata"]["name"], now)
        reasons.append(why_left(pod, _node(api, on) if on else None, now - since))
    return [reason for reason in reasons if reason]


def _node(api: Api, name: str) -> JSON | None:
    try:
        return api.get(NODES, name)
    except ApiFailure:  # nodes may not be read, or it is gone
        return None


def _is_ready(node: JSON) -> bool:
    conditions = node.get("status", {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _in_short(remains: Sequence[str]) -> str:
    more = len(remains) - MOST_NAMED
    return ", ".join(remains if more <= 0 else [*remains[:MOST_NAMED], f"and {more} more"])


def _pods(api: Api, name: str) -> list[JSON]:
    return api.find(PODS, label_selector=f"{names.LABEL_JOB}={name}")


def _remains(api: Api, name: str) -> list[str]:
    remains = [f"pod/{pod['metadata']['name']}" for pod in _pods(api, name)]
    try:
        api.get(ELASTICJOBS, name)
        remains.append(f"elasticjob/{name}")
    except ApiFailure as failure:
        if failure.reason != "NotFound":
            raise
    return remains
