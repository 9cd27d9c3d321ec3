"""Stands in for the API server and the controller of one worker, in the agent's own process."""

from __future__ import annotations

import copy
import logging
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from http import HTTPStatus
from typing import Any

from agent.environment import Environment
from controller.errors import NotFound, SilentWatch
from crds.agent_report import AgentState
from crds.phases import JobPhase, RendezvousPhase
from crds.wire import rfc3339

logger = logging.getLogger(__name__)

JSON = dict[str, Any]

STACKS = signal.SIGUSR2
"""To the agent of `--standalone`: show where all training processes are."""


class LocalCluster:
    """An `agent.kube.api.AgentApi` with one ElasticWorld and one ElasticWorker.

    Each report of the agent is decided on at once. Stacks are told on stderr, as the agent tells failures:
    there is no object in which anybody would look for them.
    """

    def __init__(self, me: Environment, hang_timeout_seconds: float) -> None:
        # A signal's handler may come while its own thread is in here.
        self._changed = threading.Condition(threading.RLock())
        self._version = 1
        self._asked = 0
        self._told_failures = 0
        self._told_stacks = ""
        self._report: JSON = {}
        self._world: JSON = {
            "metadata": {"name": me.owner_name, "namespace": me.namespace},
            "spec": {
                "hangTimeoutSeconds": hang_timeout_seconds,
                "startedAt": rfc3339(datetime.now(timezone.utc)),
            },
        }

    def ask_for_stacks(self) -> None:
        """Have the agent show where its training processes are."""
        with self._changed:
            self._asked += 1
            self._world["spec"]["asked"] = {"stacks": f"request {self._asked}"}
            self._note_change()

    # What the agent needs.

    def silent_seconds(self) -> float:
        """It always answers."""
        return 0.0

    def reconnect(self) -> None:
        """There are no connections."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> JSON:
        """Return the world in a list; raise ApiError for anything else."""
        with self._changed:
            if path.endswith("/elasticworlds"):
                return {"metadata": {"resourceVersion": str(self._version)}, "items": [self._shown()]}
        raise NotFound(HTTPStatus.NOT_FOUND, "", f"there is no {path} without a cluster")

    def merge_patch(self, path: str, patch: Mapping[str, Any]) -> JSON:
        """Take in a report, decide what follows, and return the worker. The Lease is nobody's concern."""
        report = (patch.get("status") or {}).get("agent")
        if report is not None:
            with self._changed:
                self._report = {key: value for key, value in report.items() if value is not None}
                spec = next_world(self._world["spec"], self._report)
                if spec is not None:
                    self._world["spec"] = spec
                    self._note_change()
            self._tell(self._report)
        with self._changed:
            return {"metadata": {}, "status": {"agent": copy.deepcopy(self._report)}}

    def watch(self, path: str, query: Mapping[str, str], *, idle_timeout_seconds: float) -> Iterator[JSON]:
        """Yield the world whenever it is newer than `resourceVersion` of the query.

        Raises:
            SilentWatch: nothing has changed for so long.
        """
        seen = int(query["resourceVersion"])
        while True:
            with self._changed:
                deadline = time.monotonic() + idle_timeout_seconds
                while self._version <= seen:
                    if not self._changed.wait(deadline - time.monotonic()):
                        raise SilentWatch("nothing has changed")
                seen, shown = self._version, self._shown()
            yield {"type": "MODIFIED", "object": shown}

    def _shown(self) -> JSON:
        world = copy.deepcopy(self._world)
        world["metadata"]["resourceVersion"] = str(self._version)
        return world

    def _note_change(self) -> None:
        self._version += 1
        self._changed.notify_all()

    def _tell(self, report: Mapping[str, Any]) -> None:
        failure = report.get("failure") or {}
        if report.get("state") == AgentState.FAILED and failure.get("sequence", 0) > self._told_failures:
            self._told_failures = failure["sequence"]
            _log_stacks(failure.get("stacks") or ())
        asked = report.get("askedStacks") or {}
        if asked.get("request", "") != self._told_stacks:
            self._told_stacks = asked.get("request", "")
            _log_stacks(asked.get("stacks") or ())


def _log_stacks(stacks: Any) -> None:
    for stack in stacks:
        step = "" if stack.get("step") is None else f", step {stack['step']}"
        waits = ", waiting for other ranks" if stack.get("inCollective") else ""
        logger.error("rank %s%s%s:\n%s", stack["rank"], step, waits, stack.get("frames"))


def next_world(world: Mapping[str, Any], report: Mapping[str, Any]) -> JSON | None:
    """Return the ElasticWorld's spec after a report of the only worker; None if that changes nothing.

    Args:
        report: `status.agent` of the worker.
    """
    state, left = report.get("state"), int(report.get("observedRound") or 0)
    round_ = int(world.get("round") or 0)
    if world.get("jobPhase") == JobPhase.SUCCEEDED or left < round_:
        return None  # it has not acted on this round yet
    if state == AgentState.SUCCEEDED:
        return {**world, "jobPhase": JobPhase.SUCCEEDED.value}
    if state not in (AgentState.READY, AgentState.FAILED):
        return None
    failed = state == AgentState.FAILED
    return {
        **world,
        "jobPhase": JobPhase.RUNNING.value,
        "failures": int(world.get("failures") or 0) + failed,
        "round": left + 1,
        "phase": RendezvousPhase.FORMED.value,
        "members": "0",
        "incarnations": {},
        "worldSize": report.get("localWorldSize"),
        "masterAddress": report.get("address"),
        "masterPort": report.get("storePort"),
        "brokenRound": left if failed else int(world.get("brokenRound") or 0),
    }
