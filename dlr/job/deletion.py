"""Waits until a deleted job is gone, and explains delays."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

from controller.wording import held_by, some_of
from crds import names
from crds.grouping import is_grouped
from dlr.job.lookup import groups_of
from dlr.job.report import FINISHED, is_ready
from dlr.job.wording import in_command
from dlr.kube.api import ELASTICJOBS, JSON, NODES, PODS, Api
from dlr.kube.errors import ApiError, NotFound
from dlr.kube.following import until_finished

MOST_NAMED = 5
"""Most objects that a sentence names."""
LOOK_SECONDS = 5.0
"""Interval between two looks for the reasons of a delay."""
LATE_SECONDS = 10.0
"""Time that the kubelet may take to report the end of a Pod, after its grace period."""


def wait_until_gone(api: Api, job: JSON, deadline: float) -> None:
    """Wait until no object of the job is left, and print reasons of a delay.

    Args:
        job: the job before its deletion.
        deadline: in the time of `time.monotonic`.

    Raises:
        TimeoutError: some of its objects are left at the deadline.
    """
    looked, printed, going = time.monotonic(), set[str](), dict[str, float]()
    name, remains = job["metadata"]["name"], ""
    for remains in until_finished(
        lambda: _remains(api, job),
        lambda remains: not remains,
        within_seconds=max(0.0, deadline - looked),
    ):
        news = [f"elasticjob {api.namespace}/{name} is being deleted; waiting for {remains}"]
        news = news if remains and not printed else []
        if remains and time.monotonic() - looked >= LOOK_SECONDS:
            looked = time.monotonic()
            news += _reasons(api, job, going)
        for each in news:
            if each not in printed:
                printed.add(each)
                print(each, file=sys.stderr)
    if remains:
        why = " ".join(f"{each}." for each in _reasons(api, job, going))
        left = f"The job {name!r} is deleted, but not all of it is gone yet: {remains}."
        raise TimeoutError(f"{left} {why}".strip())


def why_left(pod: JSON, node: JSON | None, going_seconds: float) -> str:
    """Explain why a Pod of a deleted job is still there; empty as long as that is normal.

    Args:
        node: the Pod's node; None if it could not be read.
        going_seconds: time since the Pod's own deletion; 0 before garbage collection has deleted it.
    """
    name, on = pod["metadata"]["name"], pod["spec"].get("nodeName", "")
    held = held_by(pod["metadata"].get("finalizers"))
    if going_seconds > 0 and held and (pod.get("status", {}).get("phase") in FINISHED or not on):
        return f"pod/{name} has ended, and is {held}"
    remedy = (
        f"`kubectl delete pod {in_command(pod['metadata'])} --force --grace-period=0` removes it from the "
        "cluster now"
    )
    if node is not None and not is_ready(node):
        return (
            f"pod/{name} cannot end: its node {on} is not ready, and does not see its deletion. "
            f"It goes when the node is back, or is deleted; {remedy}"
        )
    grace_seconds = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
    if not on or going_seconds <= grace_seconds + LATE_SECONDS:
        return ""
    return f"pod/{name} should have ended by now, and its node {on} does not say so; {remedy}"


def _reasons(api: Api, job: JSON, going: dict[str, float]) -> list[str]:
    """Return the reasons why Pods are left, one sentence each.

    Args:
        going: time at which each Pod was first seen deleted, by name; updated here.
    """
    pods, now = _pods(api, job), time.monotonic()
    for pod in pods:
        if pod["metadata"].get("deletionTimestamp"):
            going.setdefault(pod["metadata"]["name"], now)
    reasons = []
    for pod in pods[:MOST_NAMED]:
        node = _node(api, pod["spec"].get("nodeName"))
        reasons.append(why_left(pod, node, now - going.get(pod["metadata"]["name"], now)))
    return [reason for reason in reasons if reason]


def _node(api: Api, name: str | None) -> JSON | None:
    try:
        return api.get(NODES, name) if name else None
    except ApiError:  # no permission to read nodes, or the node is gone
        return None


def _pods(api: Api, job: JSON) -> list[JSON]:
    label = names.LABEL_GROUPED_JOB if is_grouped(job) else names.LABEL_JOB
    return api.find(PODS, label_selector=f"{label}={job['metadata']['name']}")


def _named(pod: JSON) -> str:
    node = (pod.get("spec") or {}).get("nodeName")
    return f"pod/{pod['metadata']['name']}" + (f" on {node}" if node else "")


def _remains(api: Api, job: JSON) -> str:
    """Name the objects of the job that are left; empty if it is gone."""
    name = job["metadata"]["name"]
    remains = [_named(pod) for pod in _pods(api, job)]
    remains += [f"elasticjob/{group['metadata']['name']}" for group in groups_of(api, job)]
    with suppress(NotFound):
        api.get(ELASTICJOBS, name)
        remains.append(f"elasticjob/{name}")
    return some_of(remains, MOST_NAMED)
