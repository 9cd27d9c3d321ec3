"""Cluster of a job with parameter servers: the tasks and the addresses of its slots.

The controller, which creates Pods from it, and the agent, which reads it from the ElasticWorld and starts
the commands, share this module. So it imports only the standard library and runs on Python 3.10.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crds import names
from crds.ranges import from_ranges

ROLES = (names.CHIEF, names.PS, names.WORKER)
"""Types in TensorFlow's cluster map. An evaluator is not part of it."""
OFFSETS = (*ROLES, names.EVALUATOR)
"""Order in which ports are assigned. Pods on their node's network must not share a port."""
FIRST_PORT = 2222
PORT_NAME = "cluster"
"""Name of the port in a template's first container that replaces `FIRST_PORT`."""
MAX_TASKS = 1_000
"""Maximum tasks of a type."""
MAX_CONFIG_BYTES = 120 << 10
"""Maximum size of TF_CONFIG. A variable above 128 KiB (MAX_ARG_STRLEN of execve(2)) prevents every start of a
command, and slots that replace others have higher numbers, so longer addresses."""
_GREATEST = 99_999
TASKS_PATTERN = r"^([0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)?$"
MAX_TASKS_TEXT = 8_192


@dataclass(frozen=True)
class Cluster:
    """One version of the cluster."""

    job: str
    namespace: str
    version: int
    """Version number; rises with every change of the parameter servers."""
    tasks: Mapping[str, Sequence[int]]
    """Slots in the order of their tasks, by type."""
    ports: Mapping[str, int]
    """First port number, by type."""
    lost: Sequence[int] = ()
    """Slots of parameter servers that do not run."""

    @classmethod
    def parse(cls, world: Mapping[str, Any]) -> Cluster | None:
        """Read the cluster from an ElasticWorld; None if it has none (yet)."""
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
        """Return the number of a slot's task; None while it has none. An evaluator's is its index."""
        if type_ not in ROLES:
            return index
        slots = self.tasks.get(type_, ())
        return slots.index(index) if index in slots else None

    def address(self, type_: str, index: int) -> str:
        """Return the address of a slot's command: a host name that its later Pods keep, and a port.

        https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/#pod-s-hostname-and-subdomain-fields
        """
        host = f"{self.job}-{type_}-{index}.{self.job}.{self.namespace}.svc"
        return f"{host}:{self.port(type_, index)}"

    def port(self, type_: str, index: int) -> int:
        return self.ports.get(type_, FIRST_PORT) + len(OFFSETS) * index + OFFSETS.index(type_)

    def variables(self, type_: str, index: int) -> dict[str, str]:
        """Return the environment variables for the command of a slot with a task."""
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
        """Return the length of the longest TF_CONFIG of all tasks."""
        return len(self.variables(names.EVALUATOR, _GREATEST)[names.ENV_TF_CONFIG])


def first_port(template: Mapping[str, Any]) -> int:
    """Return the first port of a type: the template's, or 2222."""
    containers = (template.get("spec") or {}).get("containers") or [{}]
    for port in containers[0].get("ports") or ():
        if port.get("name") == PORT_NAME:
            return int(port["containerPort"])
    return FIRST_PORT
