"""Events of the embedded cluster's parts, which `controller.events` combines and writes in the background."""

from __future__ import annotations

from controller.events import EventRecorder
from localcluster.client.api import ApiClient
from localcluster.resource import JSON

SIMILAR_LIMIT = 10
"""Events of one reason that become one, as of Kubernetes' own components."""


class Recorder:
    """Never blocks its caller; Events that are refused, or too many, are dropped and logged."""

    def __init__(self, client: ApiClient, component: str) -> None:
        self._recorder = EventRecorder(client.runtime, component, similar_limit=SIMILAR_LIMIT)
        self.run = self._recorder.run

    def normal(self, about: JSON, reason: str, message: str, *, host: str = "", field: str = "") -> None:
        self._recorder.event(about, "Normal", reason, message, host=host, field=field)

    def warning(self, about: JSON, reason: str, message: str, *, host: str = "", field: str = "") -> None:
        self._recorder.event(about, "Warning", reason, message, host=host, field=field)
