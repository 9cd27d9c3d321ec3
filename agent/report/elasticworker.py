"""What the agent's own ElasticWorker says, to begin with."""

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
"""Numbers left to an earlier agent of the incarnation, some of whose reports may still be on their way."""


def path_of(me: Environment) -> str:
    """Return the path of the agent's own ElasticWorker."""
    return f"{GROUP_PATH}/namespaces/{me.namespace}/elasticworkers/{me.worker_name}"


def last_report(api: AgentApi, me: Environment) -> dict[str, Any]:
    """Return `status.agent` as an earlier agent of this slot wrote it; {} if there was none."""
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
    """Return the number that those of this agent's reports follow.

    Args:
        report: the last one that an earlier agent of this slot wrote.
    """
    if report.get("incarnation") != me.incarnation:
        return 0
    return int(report.get("sequence") or 0) + RESERVED_REPORTS


def section_of(report: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    """Read a part of such a report; None where there is none, or another version wrote it in another form."""
    try:
        return from_wire(kind, report[name]) if report.get(name) else None
    except (TypeError, ValueError):
        return None


def own_status(api: AgentApi, me: Environment) -> dict[str, Any]:
    """Return the status of the agent's own ElasticWorker, which the API server answers to an empty patch.

    An agent may patch it and not read it: RBAC would let it read those of all jobs in its namespace too.
    """
    status: dict[str, Any] = api.merge_patch(f"{path_of(me)}/status", {}).get("status") or {}
    return status


def topology_of_pod(api: AgentApi, me: Environment) -> list[str] | None:
    """What the node shares with others, by the ElasticWorker's status; None if it does not say so (yet)."""
    try:
        status = own_status(api, me)
    except ApiError as error:
        logger.warning("where replicas go does not depend on this Pod's rack, which is not known: %s", error)
        return None
    known = status.get("topology") if status.get("podUid") == me.pod_uid else None
    return None if known is None else [str(value) for value in known]


class PodLocation:
    """What this Pod shares with others and may be lost with.

    Args:
        levels: returns how many topology domains of its node the job looks at.
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
    """Tell whether an agent of this very Pod wrote the report: its container has been restarted since."""
    return report.get("podUid") == me.pod_uid and report.get("incarnation") == me.incarnation
