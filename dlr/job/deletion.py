"""Waiting until a deleted job is gone, and what holds it."""

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
"""Objects that a sentence names."""
LOOK_SECONDS = 5.0
"""The interval after which the reasons of what is left are looked up."""
LATE_SECONDS = 10.0
"""The time that the kubelet may take to report that a Pod has ended, after its grace period."""


def wait_until_gone(api: Api, job: JSON, deadline: float) -> None:
    """
    Args:
        job: the job as it was before its deletion.
        deadline: on the clock of `time.monotonic`.

    Raises:
        TimeoutError: by then something of the job is still there.
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
    """Explain why a Pod of a deleted job is still there; empty as long as that is as it should be.

    Args:
        node: the Pod's node; None if it may not be read.
        going_seconds: the time since the Pod was deleted; 0 before garbage collection has come to it.
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
            f"pod/{name} cannot end: its node {on} is not ready, so nobody there hears of it. "
            f"It goes when the node is back, or is deleted; {remedy}"
        )
    grace_seconds = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
    if not on or going_seconds <= grace_seconds + LATE_SECONDS:
        return ""
    return f"pod/{name} should have ended by now, and its node {on} does not say so; {remedy}"


def _reasons(api: Api, job: JSON, going: dict[str, float]) -> list[str]:
    """Return why Pods are left, a sentence each.

    Args:
        going: the time when each Pod was first seen to be deleted itself, by name; completed here.
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
    except ApiError:  # nodes may not be read, or it is gone
        return None


def _pods(api: Api, job: JSON) -> list[JSON]:
    label = names.LABEL_GROUPED_JOB if is_grouped(job) else names.LABEL_JOB
    return api.find(PODS, label_selector=f"{label}={job['metadata']['name']}")


def _named(pod: JSON) -> str:
    node = (pod.get("spec") or {}).get("nodeName")
    return f"pod/{pod['metadata']['name']}" + (f" on {node}" if node else "")


def _remains(api: Api, job: JSON) -> str:
    """Name what is left of the job; empty if it is gone."""
    name = job["metadata"]["name"]
    remains = [_named(pod) for pod in _pods(api, job)]
    remains += [f"elasticjob/{group['metadata']['name']}" for group in groups_of(api, job)]
    with suppress(NotFound):
        api.get(ELASTICJOBS, name)
        remains.append(f"elasticjob/{name}")
    return some_of(remains, MOST_NAMED)
