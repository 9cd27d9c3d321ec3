"""Asking a job's agents for the stacks of its processes."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controller.wording import counted, some_of
from crds import names
from crds.agent_report import NATIVE
from dlr.job.lookup import list_workers
from dlr.job.report import current_report, sort_workers, state_of
from dlr.job.wording import parse_time, utc_now
from dlr.kube.api import ELASTICJOBS, Api
from dlr.kube.following import until_finished
from dlr.kube.waiting import waiting_for

JSON = dict[str, Any]

RUNNING = "Running"
"""Only in this state of an agent there are processes."""
TIME_CHARACTERS = len("2026-01-01T00:00:00Z")
"""With these a request begins."""
MOST_NAMED = 8
"""Of the workers that have not answered, and of those without processes."""


@dataclass(frozen=True)
class Asked:
    """What became of one request."""

    stacks: Sequence[JSON]
    """The stacks of those who answered, each as `RankStack`."""
    where: Mapping[int, str]
    """Pod and node, by rank."""
    silent: Sequence[str]
    """Workers that train and have not answered."""
    idle: Sequence[str]
    """Workers without processes, and their states."""


def read(request: str, workers: Sequence[JSON]) -> Asked:
    """Read the answers to one request."""
    where: dict[int, str] = {}
    stacks, silent, idle = [], [], []
    for worker in sort_workers(workers):
        name = worker["metadata"]["name"]
        answer = current_report(worker).get("askedStacks") or {}
        if answer.get("request") == request:
            status = worker["status"]
            node = f" on {status['nodeName']}" if status.get("nodeName") else ""
            stacks += answer["stacks"]
            where |= {stack["rank"]: f"{status.get('podName') or name}{node}" for stack in answer["stacks"]}
        elif (state := state_of(worker)) == RUNNING:
            silent.append(name)
        else:
            idle.append(f"{name} ({state or 'no Pod yet'})")
    return Asked(stacks, where, silent, idle)


def ask(api: Api, name: str, timeout: float, *, native: bool = False) -> Asked:
    """Ask all agents of a job where their processes are, and wait so many seconds for answers."""
    request = f"{utc_now():%Y-%m-%dT%H:%M:%SZ}-{secrets.token_hex(4)}{NATIVE if native else ''}"
    api.patch(ELASTICJOBS, name, patch={"metadata": {"annotations": {names.ANNOTATION_STACKS: request}}})
    with waiting_for("the agents' answers"):
        *_, last = until_finished(
            lambda: read(request, list_workers(api, name)),
            lambda asked: not asked.silent,
            within_seconds=timeout,
        )
    return last


def asked_at(request: str) -> datetime | None:
    """When it was asked, as `ask` writes it; None where somebody has set the annotation by hand."""
    return parse_time(request[:TIME_CHARACTERS])


def without_answer(name: str, asked: Asked, timeout: float) -> str:
    """Why there are no stacks at all."""
    if asked.silent:
        asked_workers = counted(len(asked.silent), "worker")
        return (
            f"No agent has answered within {timeout:g} s, of {asked_workers} of {name!r} that train: they "
            "are older than this dlr, or cannot reach the API server."
        )
    if asked.idle:
        return f"No process of {name!r} runs just now: {some_of(asked.idle, MOST_NAMED)}."
    return f"The job {name!r} has no workers now."
