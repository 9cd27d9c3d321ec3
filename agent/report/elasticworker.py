"""Reads the agent's own ElasticWorker at the agent's start."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from agent.environment import Environment
from agent.kube.api import GROUP_PATH, AgentApi
from agent.kube.retry import Warnings, retrying
from agent.report.refusal import final_refusal
from controller.errors import ApiError
from crds.wire import from_wire

T = TypeVar("T")

logger = logging.getLogger(__name__)

MAX_WAIT_SECONDS = 2.0
RESERVED_REPORTS = 1_000_000
"""Numbers reserved for an earlier agent of the incarnation, whose reports may still be on their way."""


def path_of(me: Environment) -> str:
    """Return the path of the agent's own ElasticWorker."""
    return f"{GROUP_PATH}/namespaces/{me.namespace}/elasticworkers/{me.worker_name}"


def last_report(api: AgentApi, me: Environment) -> dict[str, Any]:
    """Return the `status.agent` of an earlier agent of this slot; {} if there was none."""
    warnings = Warnings(logger, f"read elasticworker {me.namespace}/{me.worker_name}")
    retry = retrying(
        threading.Event(),
        warnings,
        max_wait_seconds=MAX_WAIT_SECONDS,
        is_final=lambda error: final_refusal(error, me),
    )
    try:
        report: dict[str, Any] = retry(own_status, api, me).get("agent") or {}
    except ApiError as error:
        logger.warning("begins without what an earlier agent reported: %s", error)
        return {}
    return report


def sequence_after(report: Mapping[str, Any], me: Environment) -> int:
    """Return the sequence number after which this agent's reports are numbered.

    Args:
        report: last report of an earlier agent of this slot.
    """
    if report.get("incarnation") != me.incarnation:
        return 0
    return int(report.get("sequence") or 0) + RESERVED_REPORTS


def section_of(report: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    """Decode a section of such a report; None if it is missing, or has the form of another version."""
    try:
        return from_wire(kind, report[name]) if report.get(name) else None
    except (TypeError, ValueError):
        return None


def own_status(api: AgentApi, me: Environment) -> dict[str, Any]:
    """Return the status of the agent's own ElasticWorker, from the API server's answer to an empty patch.

    RBAC allows an agent to patch it, but not to read it: that would include those of all jobs in the
    namespace.
    """
    status: dict[str, Any] = api.merge_patch(f"{path_of(me)}/status", {}).get("status") or {}
    return status


def topology_of_pod(api: AgentApi, me: Environment) -> list[str] | None:
    """Return the node's topology domains from the ElasticWorker's status; None if it has none yet."""
    try:
        status = own_status(api, me)
    except ApiError as error:
        logger.warning("replicas are placed without regard to this Pod's rack, which is unknown: %s", error)
        return None
    topology = status.get("topology") if status.get("podUid") == me.pod_uid else None
    return None if topology is None else [str(value) for value in topology]


class PodLocation:
    """The failure domains of this Pod, which other Pods may share.

    Args:
        levels: returns the number of topology domains of a node that the job considers.
    """

    def __init__(self, api: AgentApi, me: Environment, levels: Callable[[], int]) -> None:
        self._api = api
        self._me = me
        self._levels = levels
        self._topology: list[str] | None = None

    def __call__(self) -> tuple[str, ...]:
        """Return the topology domains of the Pod's node, the largest first, and the node."""
        levels = self._levels()
        if levels and self._topology is None:
            self._topology = topology_of_pod(self._api, self._me)
        shared = (self._topology or [])[:levels]
        return (*reversed(shared + [""] * (levels - len(shared))), self._me.node_name)


def is_of_this_pod(report: Mapping[str, Any], me: Environment) -> bool:
    """Return whether an agent of this Pod wrote the report, so that its container has been restarted."""
    return report.get("podUid") == me.pod_uid and report.get("incarnation") == me.incarnation
