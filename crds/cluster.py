"""The cluster of a job with parameter servers: who is which task, under which name.

The controller, which makes Pods of it, and the agent, which reads it from the ElasticWorld and starts their
commands, share it. So this module imports the standard library alone, and runs on Python 3.10.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crds import names
from crds.ranges import from_ranges

ROLES = (names.CHIEF, names.PS, names.WORKER)
"""The types that are in TensorFlow's map of a cluster. An evaluator is beside it."""
OFFSETS = (*ROLES, names.EVALUATOR)
"""In which order ports are given: Pods that share the network of their node must not have the same."""
FIRST_PORT = 2222
PORT_NAME = "cluster"
"""Of a port of a template's first container that stands for `FIRST_PORT`."""
MAX_TASKS = 1_000
"""Of a type."""
MAX_CONFIG_BYTES = 120 << 10
"""Of TF_CONFIG. A variable may have 128 KiB (MAX_ARG_STRLEN of execve(2)), or no command can be started with
it; and who takes the place of a slot has a greater number, so a longer address."""
_GREATEST = 99_999
TASKS_PATTERN = r"^([0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)?$"
MAX_TASKS_TEXT = 8_192


@dataclass(frozen=True)
class Cluster:
    """One version of it."""

    job: str
    namespace: str
    version: int
    """Counts up with every change of the parameter servers."""
    tasks: Mapping[str, Sequence[int]]
    """Slots in the order of their tasks, by type."""
    ports: Mapping[str, int]
    """First number of `port`, by type."""
    lost: Sequence[int] = ()
    """Slots of parameter servers that do not run."""

    @classmethod
    def parse(cls, world: Mapping[str, Any]) -> Cluster | None:
        """Read an ElasticWorld; None where it has no cluster (yet)."""
        found = (world.get("spec") or {}).get("cluster")
        if not found:
            return None
        try:
            metadata = world["metadata"]
            return cls(
                job=str(metadata["labels"][names.LABEL_JOB]),
                namespace=str(metadata.get("namespace") or "default"),
                version=int(found["version"]),
                tasks={type_: from_ranges(text) for type_, text in (found.get("tasks") or {}).items()},
                ports={type_: int(port) for type_, port in (found.get("ports") or {}).items()},
                lost=from_ranges(found.get("lost") or ""),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            return None

    def place(self, type_: str, index: int) -> int | None:
        """The number of a slot's task; None as long as it has none. An evaluator's is its index."""
        if type_ not in ROLES:
            return index
        slots = self.tasks.get(type_, ())
        return slots.index(index) if index in slots else None

    def address(self, type_: str, index: int) -> str:
        """Return the address of a slot's command: a name that its next Pods have too, and a port.

        https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/#pod-s-hostname-and-subdomain-fields
        """
        host = f"{self.job}-{type_}-{index}.{self.job}.{self.namespace}.svc"
        return f"{host}:{self.port(type_, index)}"

    def port(self, type_: str, index: int) -> int:
        return self.ports.get(type_, FIRST_PORT) + len(OFFSETS) * index + OFFSETS.index(type_)

    def variables(self, type_: str, index: int) -> dict[str, str]:
        """What the command of a slot that has a task is told of it."""
        place = self.place(type_, index)
        addresses = {
            role: [self.address(role, slot) for slot in self.tasks[role]]
            for role in ROLES
            if self.tasks.get(role)
        }
        config = {"cluster": addresses, "task": {"type": type_, "index": place}}
        return {
            names.ENV_TF_CONFIG: json.dumps(config, separators=(",", ":")),
            names.ENV_CLUSTER_VERSION: str(self.version),
        }

    def config_bytes(self) -> int:
        """How long TF_CONFIG is for the task that has the longest."""
        return len(self.variables(names.EVALUATOR, _GREATEST)[names.ENV_TF_CONFIG])


def first_port(template: Mapping[str, Any]) -> int:
    """What the ports of a type begin with: as its template says, or 2222."""
    containers = (template.get("spec") or {}).get("containers") or [{}]
    for port in containers[0].get("ports") or ():
        if port.get("name") == PORT_NAME:
            return int(port["containerPort"])
    return FIRST_PORT
