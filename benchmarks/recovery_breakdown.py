"""Parts of a recovery, observed from outside: by watches, the agents' logs and the ranks' notes.

Each part ends when its last participant is done, so the parts are consecutive and add up to the recovery's
time:

* detect: until the first agent's report of the failure is in the API server;
* publish: until the next world is in the API server;
* observe: until the last agent has seen it;
* stop: until that agent has stopped its processes and joins;
* start: until the script's first line (the agents meet, and the process is forked or spawned);
* import: until torch is imported;
* init: until `init_process_group` has returned;
* first step: until DistributedDataParallel is set up and a step has ended.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import requests

from benchmarks.recovery_contender import Recovery, Stage
from e2e.api import Api, Kind, Object, Refused

LOG_LINE = re.compile(r"^(\S+ \S+,\d{3}) \w agent\.\S+: (.*)$", re.MULTILINE)
JOINING = re.compile(r"joining round=(\d+) ")
STOPPING = "stopping the processes"


@dataclass(frozen=True)
class Join:
    """One agent's entry into a round. Times are of CLOCK_MONOTONIC, in seconds."""

    round: int
    seen_at: float
    """When it saw the round, or earlier, that its world was over; equal to `joined_at` if nothing ran."""
    joined_at: float


@dataclass(frozen=True)
class Arrivals:
    """Times at which watches reported writes."""

    reported: Sequence[float]
    """Times of each failure reported by an agent."""
    published: Mapping[int, float]
    """Times of each formed round."""


def stages(recovery: Recovery, arrivals: Arrivals, joins: Iterable[Join]) -> Mapping[Stage, float]:
    """Return the parts of one recovery; empty if one of them was not observed."""
    reported = min((at for at in arrivals.reported if at >= recovery.struck_at), default=None)
    began = min((start.began for start in recovery.starts), default=0.0)
    rounds = [
        (round_, at) for round_, at in arrivals.published.items() if recovery.struck_at <= at <= began
    ]  # an abandoned round counts as waiting for the one that trains
    if reported is None or not rounds:
        return {}
    round_, published = max(rounds)
    last = max((join for join in joins if join.round == round_), key=lambda j: j.joined_at, default=None)
    if last is None:
        return {}
    ends = {
        Stage.DETECT: reported,
        Stage.PUBLISH: published,
        Stage.OBSERVE: last.seen_at,
        Stage.STOP: last.joined_at,
        Stage.START: max(start.began for start in recovery.starts),
        Stage.IMPORT: max(start.imported for start in recovery.starts),
        Stage.INIT: max(start.initialised for start in recovery.starts),
        Stage.FIRST_STEP: recovery.stepped_at,
    }
    parts, before = {}, recovery.struck_at
    for stage, end in ends.items():
        parts[stage] = max(end - before, 0.0)
        before = max(end, before)
    return parts


def joins_of(log: str, monotonic_offset: float) -> list[Join]:
    """Return the joins in one agent's log; its wall clock is `monotonic_offset` ahead of CLOCK_MONOTONIC."""
    joins, stopping_at = [], None
    for written, text in LOG_LINE.findall(log):
        at = datetime.strptime(written, "%Y-%m-%d %H:%M:%S,%f").timestamp() - monotonic_offset
        if text.startswith(STOPPING):
            stopping_at = at
        elif found := JOINING.match(text):
            joins.append(Join(int(found.group(1)), stopping_at or at, at))
            stopping_at = None
    return joins


class Watches:
    """Watches that note the times of reports and worlds in a namespace, until `close`."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self._namespace = namespace
        self._closed = threading.Event()
        self._reported: list[float] = []
        self._published: dict[int, float] = {}
        self._failures: dict[str, str] = {}
        for kind, note in ((Kind.JOB, self._note_job), (Kind.WORKER, self._note_worker)):
            threading.Thread(target=self._follow, args=(Api(kubeconfig), kind, note), daemon=True).start()

    def arrivals(self) -> Arrivals:
        return Arrivals(tuple(self._reported), dict(self._published))

    def close(self) -> None:
        self._closed.set()

    def _follow(self, api: Api, kind: Kind, note: Callable[[Object, float], None]) -> None:
        version = str(api.list(kind, self._namespace)["metadata"]["resourceVersion"])
        while not self._closed.is_set():
            try:
                for event in api.watch(kind, self._namespace, version):
                    at = time.monotonic()
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        note(event["object"], at)
            except (Refused, requests.RequestException):
                self._closed.wait(1.0)
        api.close()

    def _note_job(self, job: Object, at: float) -> None:
        world = job.get("status", {}).get("rendezvous") or {}
        if world.get("phase") == "Formed":
            self._published.setdefault(world["round"], at)

    def _note_worker(self, worker: Object, at: float) -> None:
        agent = worker.get("status", {}).get("agent") or {}
        failure = str((agent.get("failure") or {}).get("time", ""))
        name = worker["metadata"]["name"]
        if failure and self._failures.get(name) != failure:
            self._failures[name] = failure
            self._reported.append(at)
