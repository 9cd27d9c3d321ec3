"""What to ask for when a Pod's log is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

JSON = dict[str, Any]

DEFAULT_CONTAINER_ANNOTATION = "kubectl.kubernetes.io/default-container"
DEFAULT_CONTAINER = "main"


@dataclass(frozen=True)
class Wanted:
    """What to show of each Pod."""

    container: str | None
    tail_lines: int | None
    previous: bool

    def parameters(self, pod: JSON) -> dict[str, str | int]:
        parameters: dict[str, str | int] = {
            "container": self.container or default_container(pod),
            "timestamps": "true",
        }
        if self.tail_lines is not None:
            parameters["tailLines"] = self.tail_lines
        if self.previous:
            parameters["previous"] = "true"
        return parameters


def default_container(pod: JSON) -> str:
    """The container that trains: the one kubectl would take, or the one called main, or the first."""
    named: str | None = (pod["metadata"].get("annotations") or {}).get(DEFAULT_CONTAINER_ANNOTATION)
    containers = [container["name"] for container in pod["spec"]["containers"]]
    return named or (DEFAULT_CONTAINER if DEFAULT_CONTAINER in containers else str(containers[0]))
