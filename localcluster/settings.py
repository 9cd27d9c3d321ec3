"""Settings of a running embedded cluster, and their file, by which other processes find them."""

from __future__ import annotations

import fcntl
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson

from localcluster.paths import Home, write_private
from localcluster.resource import JSON


class ClusterError(Exception):
    """An error for the user: what was wrong, where, and what to do."""


@dataclass(frozen=True)
class Addon:
    """A process that runs beside the cluster, with KUBECONFIG in its environment."""

    name: str
    command: list[str]


@dataclass(frozen=True)
class Settings:
    """A port of 0 is any."""

    nodes: int
    cpus_per_node: str
    memory_per_node: str
    gpus_per_node: int
    port: int
    addons: list[Addon] = field(default_factory=list)

    @classmethod
    def of(cls, stored: JSON) -> Settings:
        return cls(**{**stored, "addons": [Addon(**addon) for addon in stored["addons"]]})

    def differences(self, running: Settings) -> list[str]:
        """Return the differences of two settings, in the words of the command line."""
        asked, given = asdict(self), asdict(running)
        if self.port == 0:
            asked["port"] = given["port"]
        different = [name for name in asked if asked[name] != given[name]]
        return [
            "other add-ons"
            if name == "addons"
            else f"{name.replace('_', '-')} {given[name]}, not {asked[name]}"
            for name in different
        ]


@dataclass(frozen=True)
class RunningSupervisor:
    """A supervisor that holds its lock."""

    pid: int
    settings: Settings


class SupervisorLock:
    """Held for as long as the supervisor lives, whatever ends it: a file lock, so no pid can mislead us."""

    def __init__(self, home: Home) -> None:
        self._path = home.run / "supervisor.lock"
        self._descriptor = -1

    def acquire(self) -> bool:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    @property
    def descriptor(self) -> int:
        """File descriptor that the supervisor inherits, so that it goes on holding the lock."""
        return self._descriptor

    def release(self) -> None:
        os.close(self._descriptor)


def _state_file(home: Home) -> Path:
    return home.run / "supervisor.json"


def write_running(home: Home, running: RunningSupervisor) -> None:
    write_private(_state_file(home), orjson.dumps(asdict(running)))
    write_private(home.pidfile("supervisor"), str(running.pid).encode())


def read_running(home: Home) -> RunningSupervisor | None:
    """Read the settings of the last supervisor; it still runs only if its lock is held."""
    try:
        stored = orjson.loads(_state_file(home).read_bytes())
        return RunningSupervisor(stored["pid"], Settings.of(stored["settings"]))
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return None


def is_supervisor(pid: int) -> bool:
    """Whether a process is what its pid was written down for."""
    try:
        return b"localcluster.supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def forget_running(home: Home) -> None:
    _state_file(home).unlink(missing_ok=True)
    for pidfile in home.run.glob("*.pid"):
        pidfile.unlink(missing_ok=True)
