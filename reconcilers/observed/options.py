"""Options of the controller for the Pods that it makes, and for cordons.

Standard library only: the CLI reads it at start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

from crds import names
from crds.release import VERSION

DEFAULT_CHECK_IMAGE = f"dlr-worker:{VERSION}"
DEFAULT_AGENT_IMAGE = f"dlr-agent:{VERSION}"
DEFAULT_AGENT_PATH = "/opt/dlr-agent"
DEFAULT_MOUNT_PATH = "/dlr"


@dataclass(frozen=True)
class AgentSource:
    """Source and destination of the agent that is injected into training images."""

    image: str = DEFAULT_AGENT_IMAGE
    """An image with `cp` and the files that `dlr bundle` writes."""
    path: str = DEFAULT_AGENT_PATH
    """The folder of those files in that image."""
    mount_path: str = DEFAULT_MOUNT_PATH
    """Path at which the training container sees them."""


DEFAULT_WORKERS_PER_NAMESPACE = 12_000


@dataclass(frozen=True)
class WorkerLimit:
    """Limit of a namespace's ElasticWorkers, each of which takes some 20 KB of the controller's memory."""

    there: int = 0
    most: int = DEFAULT_WORKERS_PER_NAMESPACE

    @property
    def remaining(self) -> int:
        """Number of ElasticWorkers that may still be made."""
        return max(0, self.most - self.there)

    def reached(self, namespace: str) -> str:
        """Return the sentence that explains why no more are made."""
        return (
            f"namespace {namespace} has {self.there} ElasticWorkers, and dlr makes {self.most} in one at "
            "most (--workers-per-namespace of the controller)"
        )


@dataclass(frozen=True)
class PodOptions:
    check_image: str = DEFAULT_CHECK_IMAGE
    """Image of the Pods that check nodes, where a NodeCheck has no template: it has torch."""
    agent: AgentSource | None = field(default_factory=AgentSource)
    """None injects nothing, so that every image has to contain dlr."""
    workers_per_namespace: int = DEFAULT_WORKERS_PER_NAMESPACE
    """Most ElasticWorkers of one namespace; present ones beyond it stay."""
    random: Random = field(default_factory=Random)
    """Source of jitter in the waits between retries."""
    controller_namespace: str = ""
    """Namespace of the controller's own Pods, which may connect to agents; empty where it runs in none."""


DEFAULT_LIMIT_PERCENT = 10


class CordonMode(StrEnum):
    ENFORCE = "enforce"
    """Faulty nodes are cordoned."""
    REPORT = "report"
    """A dry run: conditions and Events say what would be done, and nodes only get the record."""
    OFF = "off"
    """Nodes are only read, for a controller that has no other right to them."""


def limit_of(nodes: int, percent: int) -> int:
    """Number of nodes that we may cordon at once; at least one."""
    return max(1, nodes * percent // 100)


@dataclass(frozen=True)
class CordonOptions:
    mode: CordonMode = CordonMode.ENFORCE
    limit_percent: int = DEFAULT_LIMIT_PERCENT
    """Largest share of all nodes that dlr cordons at once; one node is always allowed."""
    namespace: str = names.SYSTEM_NAMESPACE
    """Namespace of the controller, and of checks after repair if its statements count everywhere: the quota
    there is the administrator's."""
