"""The stacks of a job's processes: requests to its agents, their answers, equal stacks merged."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from controller.wording import counted, some_of
from crds import names
from crds.ranges import as_ranges
from dlr.job.lookup import list_workers
from dlr.job.report import current_report, sort_workers, state_of
from dlr.job.wording import parse_time, utc_now
from dlr.kube.api import ELASTICJOBS, JSON, Api
from dlr.kube.following import until_finished
from dlr.kube.waiting import waiting_for

TIME_CHARACTERS = len("2026-01-01T00:00:00Z")
"""Length of the time at the beginning of a request's id."""
MOST_NAMED = 8
"""Most workers that a sentence names."""
INDENT = "    "
NAMED_RANKS = 4
"""Most processes of a stack whose Pods and nodes are named; those of the most frequent stack never are."""
_FOLDERS = re.compile(r"^\S*/", re.MULTILINE)
"""Folder of each frame's file; a script may be in a different folder in each Pod."""


@dataclass(frozen=True)
class Answers:
    """The answers to one request."""

    stacks: Sequence[JSON]
    """Reported stacks, each as `RankStack`."""
    where: Mapping[int, str]
    """Pod and node, by rank."""
    silent: Sequence[str]
    """Workers that train and have not answered."""
    idle: Sequence[str]
    """Workers without processes, with their states."""


def read(request: str, workers: Sequence[JSON]) -> Answers:
    """Collect the answers to one request."""
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
        elif (state := state_of(worker)) == "Running":  # other states have no processes
            silent.append(name)
        else:
            idle.append(f"{name} ({state or 'no Pod yet'})")
    return Answers(stacks, where, silent, idle)


def ask_all(api: Api, jobs: Sequence[str], timeout: float) -> list[Answers]:
    """Request stacks from all agents of some jobs, and wait for their answers, at most `timeout` seconds."""
    request = f"{utc_now():%Y-%m-%dT%H:%M:%SZ}-{secrets.token_hex(4)}"
    patch = {"metadata": {"annotations": {names.ANNOTATION_STACKS: request}}}
    for name in jobs:
        api.patch(ELASTICJOBS, name, patch=patch)
    with waiting_for("the agents' answers"):
        *_, last = until_finished(
            lambda: [read(request, list_workers(api, name)) for name in jobs],
            lambda answers: not any(each.silent for each in answers),
            within_seconds=timeout,
        )
    return last


def together(found: Iterable[Answers]) -> Answers:
    """Return the workers of several jobs that have not answered."""
    every = [*found]
    silent = [name for answers in every for name in answers.silent]
    return Answers([], {}, silent, [name for answers in every for name in answers.idle])


def asked_at(request: str) -> datetime | None:
    """Return the time of a request; None if `ask_all` did not write it."""
    return parse_time(request[:TIME_CHARACTERS])


def without_answer(name: str, answers: Answers, timeout: float) -> str:
    """Explain why there are no stacks at all."""
    if answers.silent:
        return (
            f"No agent has answered within {timeout:g} s, of {counted(len(answers.silent), 'worker')} of "
            f"{name!r} that train: they are older than this dlr, or cannot reach the API server."
        )
    if answers.idle:
        return f"No process of {name!r} runs just now: {some_of(answers.idle, MOST_NAMED)}."
    return f"The job {name!r} has no workers now."


@dataclass(frozen=True)
class SharedStack:
    """Processes with the same stack."""

    ranks: Sequence[int]
    """Ranks, in order."""
    steps: tuple[int, int] | None
    """Lowest and highest reported step; None without any."""
    waits: bool
    """Whether the processes wait for other ranks."""
    frames: str
    """Frames of the first rank."""


def merge(stacks: Sequence[JSON]) -> list[SharedStack]:
    """Merge equal stacks.

    Args:
        stacks: each as `RankStack`. A difference of one step is ignored, since training processes are never
            at exactly the same step.

    Returns:
        the likely causes first: processes that do not wait for others, then stacks of fewer ranks.
    """
    furthest = max((stack["step"] for stack in stacks if stack.get("step") is not None), default=0)
    # Strips each distinct text once: most are equal, and a dashboard merges a thousand stacks every second.
    bare = {frames: _FOLDERS.sub("", frames) for frames in {stack.get("frames") or "" for stack in stacks}}
    at: dict[tuple[bool, int | None, str], list[JSON]] = {}
    for stack in sorted(stacks, key=lambda each: int(each["rank"])):
        step = stack.get("step")
        behind = None if step is None or step >= furthest - 1 else step
        place = (bool(stack.get("inCollective")), behind, bare[stack.get("frames") or ""])
        at.setdefault(place, []).append(stack)
    places = [_place(waits, there) for (waits, _, _), there in at.items()]
    return sorted(places, key=lambda place: (place.waits, len(place.ranks), place.ranks[0]))


def _place(waits: bool, stacks: Sequence[JSON]) -> SharedStack:
    steps = [stack["step"] for stack in stacks if stack.get("step") is not None]
    return SharedStack(
        ranks=[stack["rank"] for stack in stacks],
        steps=(min(steps), max(steps)) if steps else None,
        waits=waits,
        frames=stacks[0].get("frames") or "(no stack)",
    )


def stack_lines(places: Sequence[SharedStack], where: Mapping[int, str] | None = None) -> list[str]:
    """Return, for each stack, a line with its ranks and then its frames.

    Args:
        where: Pod and node of each rank.
    """
    most = max(reversed(places), key=lambda place: len(place.ranks), default=None)
    lines = []
    for place in places:
        who = f"rank{'s' if len(place.ranks) > 1 else ''} {as_ranges(place.ranks)}"
        if where and place is not most and len(place.ranks) <= NAMED_RANKS:
            who += f" ({', '.join(dict.fromkeys(where[rank] for rank in place.ranks))})"
        if place.steps is not None:
            lowest, highest = place.steps
            who += f", step {lowest}" if lowest == highest else f", steps {lowest}-{highest}"
        lines.append(f"{who}{', waiting for other ranks' if place.waits else ''}:")
        lines += [f"{INDENT}{line}" for line in place.frames.splitlines()]
    return lines
