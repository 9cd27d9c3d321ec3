"""Renews the worker's Lease while the agent lives, so that the controller notices a silent death of the node.

The controller creates the Lease, and judges the renewals by its own clock. The agent writes `renewTime` and
`holderIdentity`; the time limit for renewals is the controller's policy.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from agent.environment import Environment
from agent.kube.api import LEASES_PATH, AgentApi
from agent.kube.retry import Warnings, retrying
from agent.report.refusal import final_refusal
from crds.wire import rfc3339

logger = logging.getLogger(__name__)

MAX_WAIT_SECONDS = 1.5
"""Longest pause between attempts while the API server is away; in a large job, whose heartbeats are longer,
it is half a heartbeat. The controller counts silence only from the server's return on."""


class LeaseRenewal(threading.Thread):
    """Renews the Lease at once, then every `heartbeat_seconds`, and a missed one as soon as it can.

    It ends when the API server refuses this agent for good.

    Args:
        stop: event that ends it.
        monotonic: clock of the event's waits.
    """

    def __init__(
        self,
        api: AgentApi,
        me: Environment,
        stop: threading.Event | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name="dlr-heartbeat", daemon=True)
        self._api = api
        self._path = f"{LEASES_PATH}/namespaces/{me.namespace}/leases/{me.worker_name}"
        self._me = me
        self._period_seconds = max(me.heartbeat_seconds, 0.1)
        self._stop_event = stop or threading.Event()
        self._monotonic = monotonic
        self._warnings = Warnings(logger, f"renew lease {me.namespace}/{me.worker_name}")

    def stop(self) -> None:
        self._stop_event.set()

    def run(self) -> None:
        retry = retrying(
            self._stop_event,
            self._warnings,
            max_wait_seconds=max(MAX_WAIT_SECONDS, self._period_seconds / 2),
            is_final=lambda error: final_refusal(error, self._me),
        )
        due_at = self._monotonic()
        while not self._stop_event.wait(max(0.0, due_at - self._monotonic())):
            try:
                retry(self._renew)
            except Exception:
                return  # stopped, or refused for good, which the reporter logs
            now, due_at = self._monotonic(), due_at + self._period_seconds
            if due_at < now:  # some were missed, and this one replaces them
                due_at = now + self._period_seconds

    def _renew(self) -> None:
        self._api.merge_patch(self._path, renewal(self._me.pod_name, datetime.now(timezone.utc)))
        self._warnings.succeeded()


def renewal(holder: str, now: datetime) -> dict[str, Any]:
    """Return the patch. `renewTime` is a metav1.MicroTime, which must have six digits."""
    return {"spec": {"holderIdentity": holder, "renewTime": rfc3339(now)}}
