"""The agent's side of the socket: who takes part, and the lead's store, through which processes meet.

A thread for each connection: there are a few for each training process. The watch's thread sends each new
membership itself, and closes the store connections of older versions, so that nothing waits for the dead.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from agent.connection.store import PeerStore
from agent.connection.store_server import StoreServer, version_prefix
from agent.environment import bound
from crds.agent_report import ReplicasReport

logger = logging.getLogger(__name__)

MAX_LINE_BYTES = 1 << 16
MAX_CONNECTIONS = 1_024
KEY_SECONDS = 60.0
"""Time limit for a key of the store to be there."""


@dataclass(frozen=True)
class GroupAddress:
    """A group that takes part."""

    index: int
    round: int
    address: str = ""
    port: int = 0


@dataclass(frozen=True)
class Groups:
    """The groups that take part, as the grouped job's ElasticWorld has them."""

    version: int = 0
    groups: tuple[GroupAddress, ...] = ()

    @classmethod
    def parse(cls, world: Mapping[str, Any]) -> Groups:
        """Read them from the ElasticWorld."""
        replicas = (world.get("spec") or {}).get("replicas") or {}
        groups = (
            GroupAddress(each["index"], each["round"], each.get("address", ""), each.get("port", 0))
            for each in replicas.get("groups") or ()
        )
        return cls(replicas.get("version", 0), tuple(groups))


@dataclass(eq=False)
class _Process:
    """The control connection of a process that is ready to take part."""

    connection: socket.socket
    round: int
    rank: int
    version: int = 0
    step: int = 0
    broken: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class ReplicasDesk:
    """Serves the training processes of one agent, round after round, until `close`.

    Args:
        group: index of this agent's group.
        key: the job's.
        store: of this agent, which is used if the group leads.
    """

    def __init__(self, group: int, key: bytes, store: StoreServer) -> None:
        self._group, self._key, self._values = group, key, store.values
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.path = bound(self._server, "replicas")
        """Path of the socket."""
        self._server.listen(64)
        self._lock = threading.Lock()
        self._groups = Groups()
        self._round, self._count = 0, 0
        self._processes: list[_Process] = []
        self._stores: dict[socket.socket, int] = {}
        """Versions of the store connections."""
        self._connections = 0
        self._tell: Callable[[], None] = lambda: None

    def serve(self, tell: Callable[[], None]) -> None:
        """Begin to take connections.

        Args:
            tell: has the agent report what `to_status` returns, at once.
        """
        self._tell = tell
        threading.Thread(target=self._accept, name="dlr-replicas", daemon=True).start()

    def begin(self, round_: int, count: int) -> None:
        """Expect the processes of a round, of which this agent has `count`."""
        with self._lock:
            self._round, self._count, self._processes = round_, count, []

    def see(self, groups: Groups) -> None:
        """Take in the groups that take part now; for the thread that watches them."""
        with self._lock:
            self._groups = groups
            self._values.open_version(groups.version)
            processes = list(self._processes)
            stale = [each for each, version in self._stores.items() if version < groups.version]
        for process in processes:
            self._send_membership(process)
        for connection in stale:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def to_status(self) -> ReplicasReport | None:
        """Return what the agent's next report has; None until all processes of the round are ready."""
        with self._lock:
            there = list(self._processes)
            if not there or len(there) < self._count:
                return None
            return ReplicasReport(
                self._round,
                min(each.version for each in there),
                min(each.step for each in there),
                max(each.broken for each in there),
            )

    def close(self) -> None:
        """Take no more connections."""
        self._server.close()

    # --- the threads -------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError as error:
                logger.debug("the socket for replica groups is closed: %s", error)
                return
            with self._lock:
                is_welcome = self._connections < MAX_CONNECTIONS
                self._connections += is_welcome
            if not is_welcome:
                connection.close()
                continue
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()

    def _attend(self, connection: socket.socket) -> None:
        lines = connection.makefile("rb")
        try:
            first = _read(lines)
            if "join" in first:
                self._control(connection, lines, int(first["join"]["rank"]))
            else:
                self._relay(connection, lines, int(first["store"]))
        except (OSError, ValueError, LookupError, TypeError, RuntimeError) as error:
            logger.debug("a connection for replica groups has ended: %s", error)
        except Exception:
            logger.exception("a connection for replica groups was dropped")
        finally:
            with self._lock:
                self._connections -= 1
            lines.close()
            connection.close()

    def _control(self, connection: socket.socket, lines: Any, rank: int) -> None:
        connection.settimeout(None)
        with self._lock:
            process = _Process(connection, self._round, rank)
            self._processes.append(process)
            is_last = len(self._processes) == self._count
        self._send_membership(process)
        if is_last:
            self._tell()
        try:
            while True:
                self._hear(process, _read(lines))
        finally:
            with self._lock:
                if process in self._processes:
                    self._processes.remove(process)

    def _hear(self, process: _Process, message: Mapping[str, Any]) -> None:
        before = _news(self.to_status())
        with self._lock:
            if "at" in message:
                process.version = max(int(message["at"]["version"]), 0)
                process.step = max(int(message["at"]["step"]), 0)
            else:
                process.broken = max(int(message["broken"]), process.broken)
        if before != _news(self.to_status()):
            self._tell()

    def _send_membership(self, process: _Process) -> None:
        with process.lock:
            groups = self._groups
            members = [[each.index, each.round] for each in groups.groups]
            me = [self._group, process.round]
            membership = {"version": groups.version, "groups": members, "me": me}
            try:
                line = json.dumps({"membership": membership}).encode() + b"\n"
                if process.connection.send(line, socket.MSG_DONTWAIT) < len(line):
                    raise BlockingIOError("it reads none")
            except OSError as error:  # it is gone, or stopped: nobody waits for it here
                logger.debug("a process takes no news of the groups: %s", error)
                with contextlib.suppress(OSError):
                    process.connection.shutdown(socket.SHUT_RDWR)

    # --- the lead's store --------------------------------------------------------------------------------

    def _relay(self, connection: socket.socket, lines: Any, version: int) -> None:
        """Pass requests on to the store of a version's lead, until there is a newer version."""
        with self._lock:
            groups = self._groups
            if groups.version != version or not groups.groups:
                return
            self._stores[connection] = version
        try:
            lead = groups.groups[0]
            store = PeerStore.connect(lead.address, lead.port, self._key).under(version_prefix(version))
            store.set_timeout(timedelta(seconds=KEY_SECONDS))
            while True:
                answer = _answer(store, _read(lines))
                connection.sendall(json.dumps(answer).encode() + b"\n")
        finally:
            with self._lock:
                del self._stores[connection]


def _news(report: ReplicasReport | None) -> tuple[int, int] | None:
    """What is reported at once; steps may wait."""
    return None if report is None else (report.version, report.broken_version)


def _answer(store: PeerStore, request: Mapping[str, Any]) -> dict[str, str]:
    if "set" in request:
        key, value = request["set"]
        store.set(str(key), base64.b64decode(value))
        return {}
    return {"value": base64.b64encode(store.get(str(request["get"]))).decode()}


def _read(lines: Any) -> Mapping[str, Any]:
    """Return the next object.

    Raises:
        ConnectionError: there is none.
        ValueError: it is none.
    """
    line = lines.readline(MAX_LINE_BYTES)
    if not line.endswith(b"\n"):
        raise ConnectionResetError("it has ended, or its line is too long")
    message = json.loads(line)
    if not isinstance(message, dict):
        raise TypeError(f"a line is no object: {line[:80]!r}")
    return message
