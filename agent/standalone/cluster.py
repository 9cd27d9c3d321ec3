"""Replaces the API server and the controller for one worker, in the agent's own process."""

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
"""Signal to an agent of `--standalone` to log the stacks of all training processes."""


class LocalCluster:
    """An `agent.kube.api.AgentApi` with one ElasticWorld and one ElasticWorker.

    It decides on each report of the agent at once. Stacks are logged, like failures, since there is no object
    that shows them.
    """

    def __init__(self, me: Environment, hang_timeout_seconds: float) -> None:
        # Reentrant, since a signal handler may call in while its thread holds the lock.
        self._changed = threading.Condition(threading.RLock())
        self._version = 1
        self._asked = 0
        self._logged_failures = 0
        self._logged_request = ""
        self._report: JSON = {}
        self._world: JSON = {
            "metadata": {"name": me.owner_name, "namespace": me.namespace},
            "spec": {
                "hangTimeoutSeconds": hang_timeout_seconds,
                "startedAt": rfc3339(datetime.now(timezone.utc)),
            },
        }

    def ask_for_stacks(self) -> None:
        """Request the stacks of the training processes from the agent."""
        with self._changed:
            self._asked += 1
            self._world["spec"]["asked"] = {"stacks": f"request {self._asked}"}
            self._note_change()

    # The interface `AgentApi`.

    def silent_seconds(self) -> float:
        """Return 0, since it always answers."""
        return 0.0

    def reconnect(self) -> None:
        """Do nothing, since there are no connections."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> JSON:
        """Return the world in a list; raise ApiError for anything else."""
        with self._changed:
            if path.endswith("/elasticworlds"):
                return {"metadata": {"resourceVersion": str(self._version)}, "items": [self._shown()]}
        raise NotFound(HTTPStatus.NOT_FOUND, "", f"there is no {path} without a cluster")

    def merge_patch(self, path: str, patch: Mapping[str, Any]) -> JSON:
        """Process a report, change the world accordingly, and return the worker; ignore Lease renewals."""
        report = (patch.get("status") or {}).get("agent")
        if report is not None:
            with self._changed:
                self._report = {key: value for key, value in report.items() if value is not None}
                spec = next_world(self._world["spec"], self._report)
                if spec is not None:
                    self._world["spec"] = spec
                    self._note_change()
            self._log_news(self._report)
        with self._changed:
            return {"metadata": {}, "status": {"agent": copy.deepcopy(self._report)}}

    def watch(self, path: str, query: Mapping[str, str], *, idle_timeout_seconds: float) -> Iterator[JSON]:
        """Yield the world whenever it is newer than `resourceVersion` of the query.

        Raises:
            SilentWatch: nothing has changed for `idle_timeout_seconds`.
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

    def _log_news(self, report: Mapping[str, Any]) -> None:
        failure = report.get("failure") or {}
        if report.get("state") == AgentState.FAILED and failure.get("sequence", 0) > self._logged_failures:
            self._logged_failures = failure["sequence"]
            _log_stacks(failure.get("stacks") or ())
        asked = report.get("askedStacks") or {}
        if asked.get("request", "") != self._logged_request:
            self._logged_request = asked.get("request", "")
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
