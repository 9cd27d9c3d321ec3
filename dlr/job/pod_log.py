"""What to ask for when a Pod's log is read, and what is to be made of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

JSON = dict[str, Any]

DEFAULT_CONTAINER_ANNOTATION = "kubectl.kubernetes.io/default-container"
DEFAULT_CONTAINER = "main"
RANK_TWICE = re.compile(r"^(\[rank\d+\]:) ?(?=\1)")
"""torch's excepthook names the rank at the beginning of each line, and torchrun before each line of a log."""


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


def why_no_log(pod: JSON) -> str | None:
    """Why there is nothing to read yet, where the API server does not say so: the Pod has no node."""
    status = pod.get("status") or {}
    if pod["spec"].get("nodeName") or status.get("phase") != "Pending":
        return None
    name = pod["metadata"]["name"]
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("message"):
            return f"{name} has no node yet: {condition['message'].rstrip('.')}."
    return f"{name} has no node yet."


def named_once(line: str) -> str:
    """The line, with its rank named once."""
    return RANK_TWICE.sub("", line)
