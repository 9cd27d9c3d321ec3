"""The worker's Lease: renewed while the agent lives, so that a node that died in silence is noticed.

The controller creates the Lease and judges by its own clock when the renewals stop. Only `renewTime` and
`holderIdentity` are ours; how long a Lease may go without a renewal is the controller's policy.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import datetime, timezone
from typing import Any

from agent.api import LEASES_PATH, ApiClient, ApiError, retrying
from agent.complaints import Complaints
from agent.environment import Environment
from agent.timestamps import rfc3339

logger = logging.getLogger(__name__)

MAX_WAIT_SECONDS = 1.5
"""Between attempts while the API server is away: the controller counts the silence from its return on."""


class Heartbeat(threading.Thread):
    """Renews at once, then every `heartbeat_seconds`; a missed renewal is made up for when it can be."""

    def __init__(self, api: ApiClient, me: Environment) -> None:
        super().__init__(name="dlr-heartbeat", daemon=True)
        self._api = api
        self._path = f"{LEASES_PATH}/namespaces/{me.namespace}/leases/{me.worker_name}"
        self._holder = me.pod_name
        self._period_seconds = max(me.heartbeat_seconds, 0.1)
        self._stop_event = threading.Event()
        self._complaints = Complaints(logger, f"renew lease {me.namespace}/{me.worker_name}")

    def stop(self) -> None:
        self._stop_event.set()

    def run(self) -> None:
        retry = retrying(
            self._stop_event, max_wait_seconds=MAX_WAIT_SECONDS, before_sleep=self._complaints.failed
        )
        due_at = time.monotonic()
        while not self._stop_event.wait(max(0.0, due_at - time.monotonic())):
            try:
                retry(self._renew)
            except ApiError:
                return  # asked to stop
            due_at = max(due_at + self._period_seconds, time.monotonic())

    def _renew(self) -> None:
        self._api.merge_patch(self._path, renewal(self._holder, datetime.now(timezone.utc)))
        self._complaints.succeeded()


def renewal(holder: str, now: datetime) -> dict[str, Any]:
    """The patch; `renewTime` is a MicroTime, which must have six digits."""
    return {"spec": {"holderIdentity": holder, "renewTime": rfc3339(now)}}
