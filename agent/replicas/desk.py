"""The agent's side of the socket: it passes on who takes part, and lets processes meet in the lead's store.

A thread for each connection: there are a few for each training process. The watch's thread sends each new
membership itself, and ends the store connections of older versions, so that nothing waits for the dead.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import shutil
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import DistError, DistStoreError

from agent.connection.handshake import connect
from agent.connection.store import PeerStore
from agent.connection.store_server import SERVICE, StoreServer
from agent.connection.store_state import version_prefix
from agent.environment import Environment, bound
from agent.kube.watcher import Watcher
from agent.replicas.facts import Groups, Training, summary
from crds.agent_report import ReplicasReport

logger = logging.getLogger(__name__)

MAX_LINE_BYTES = 1 << 20
"""Length of the longest line. gloo writes some hundred bytes for each group into one value."""
MAX_CONNECTIONS = 1_024
KEY_SECONDS = 60.0
"""Time after which the process asks again for a key of the store, so that a dead lead is noticed."""
LEAD_SECONDS = 2.0
"""Time limit for a connection to the lead's store."""
LOOK_SECONDS = 10.0
"""Longest wait for the first view of the groups, when a process asks."""
PAUSE_SECONDS = 0.1
"""Pause after a connection that could not be accepted, as where no more files may be open."""


@dataclass(eq=False)
class _Process:
    """The control connection of a process that is ready to take part."""

    connection: socket.socket
    training: Training = field(default_factory=Training)


@dataclass(eq=False)
class _Relay:
    """The store connection of a process."""

    version: int
    connection: socket.socket
    to_lead: socket.socket | None = None

    def end(self) -> None:
        """Wake its thread and the process."""
        for each in (self.connection, self.to_lead):
            _shut(each)


class ReplicasDesk:
    """Serves the training processes of one agent, round after round, until `close`.

    Args:
        store: of this agent, which is used if the group leads.
    """

    def __init__(self, group: int, key: bytes, store: StoreServer) -> None:
        self._group, self._key, self._values = group, key, store.values
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.path = bound(self._server, "replicas")
        """Path of the socket."""
        self._server.listen(64)
        self._lock = threading.Lock()
        self._groups: Groups | None = None
        self._is_seen = threading.Event()
        """Set with the first view of the groups."""
        self._round, self._count = 0, 0
        self._processes: dict[int, _Process] = {}
        """The processes of the round that are ready, by rank."""
        self._relays: set[_Relay] = set()
        self._connections: set[socket.socket] = set()
        self._reported: ReplicasReport | None = None
        """What the agent was last asked to report at once, without version and step."""
        self._tell: Callable[[], None] = lambda: None
        self._closed = threading.Event()

    @classmethod
    def start(
        cls, me: Environment, watcher: Watcher[Groups], store: StoreServer, cleanup: contextlib.ExitStack
    ) -> ReplicasDesk:
        """Return a desk of this worker that serves until `cleanup`.

        Args:
            watcher: what follows the ElasticWorld of its grouped job.
        """
        desk = cls(me.group_index, me.key, store)
        cleanup.callback(desk.close)
        watcher.call_at_changes(lambda: desk.see(watcher.view() or Groups()))
        if (seen := watcher.view()) is not None:  # before it had somebody to call
            desk.see(seen)
        return desk

    def serve(self, tell: Callable[[], None]) -> None:
        """Begin to take connections.

        Args:
            tell: has the agent report what `to_status` returns, at once.
        """
        self._tell = tell
        threading.Thread(target=self._accept, name="dlr-replicas", daemon=True).start()

    def begin(self, round_: int, count: int) -> None:
        """Expect `count` processes of a round, and end the connections that earlier ones have left."""
        with self._lock:
            self._round, self._count, self._processes = round_, count, {}
            self._reported = None
            self._end_connections()

    def see(self, groups: Groups) -> None:
        """Take in the groups that take part now; for the thread that watches them."""
        with self._lock:
            if self._groups is not None and groups.version < self._groups.version:
                return  # the object is not there for a moment
            self._groups = groups
            line = self._membership()
            for process in self._processes.values():
                _send_now(process.connection, line)
            for relay in self._relays:
                if relay.version < groups.version:
                    relay.end()
        self._is_seen.set()
        self._values.open_version(groups.version)

    def to_status(self) -> ReplicasReport | None:
        """Return what the agent's next report has; None until all processes of the round are ready."""
        with self._lock:
            return self._summary()

    def close(self) -> None:
        """End all connections, and take no more."""
        self._closed.set()
        _shut(self._server)  # it wakes the thread that accepts
        self._server.close()
        with self._lock:
            self._end_connections()
        shutil.rmtree(Path(self.path).parent, ignore_errors=True)

    def _end_connections(self) -> None:
        """Wake all threads and processes that wait; under the lock."""
        for connection in self._connections:
            _shut(connection)
        for relay in self._relays:
            relay.end()

    def _summary(self) -> ReplicasReport | None:
        return summary(self._round, self._count, [each.training for each in self._processes.values()])

    def _membership(self) -> bytes:
        """Return the line that processes of the round get."""
        groups = self._groups or Groups()
        membership = {"version": groups.version, "groups": groups.groups, "me": [self._group, self._round]}
        return json.dumps({"membership": membership}).encode() + b"\n"

    # --- the threads -------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._server.accept()
            except OSError as error:
                if not self._closed.is_set():
                    logger.warning("no process can connect for a moment to follow the groups: %s", error)
                    self._closed.wait(PAUSE_SECONDS)
                continue
            with self._lock:
                is_welcome = len(self._connections) < MAX_CONNECTIONS and not self._closed.is_set()
                if is_welcome:
                    self._connections.add(connection)
            if not is_welcome:
                logger.warning("a process is turned away: %d follow the groups already", MAX_CONNECTIONS)
                connection.close()
                continue
            try:
                threading.Thread(
                    target=self._attend, args=(connection,), name="dlr-replicas-process", daemon=True
                ).start()
            except RuntimeError as error:  # no more threads may be started
                logger.warning("a process is turned away: %s", error)
                self._drop(connection)

    def _attend(self, connection: socket.socket) -> None:
        lines = connection.makefile("rb")
        try:
            first = _read(lines)
            if "join" in first:
                self._control(connection, lines, int(first["join"]["rank"]), int(first["join"]["round"]))
            elif "look" in first:
                self._show(connection, int(first["look"]))
            else:
                self._relay(connection, lines, int(first["store"]))
        except OSError as error:
            logger.debug("a connection for replica groups has ended: %s", error)
        except (LookupError, TypeError, ValueError) as error:
            logger.warning("a process that follows the groups sends what makes no sense: %r", error)
        except Exception:
            logger.exception("a connection for replica groups was dropped")
        finally:
            lines.close()
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)
        connection.close()

    def _show(self, connection: socket.socket, round_: int) -> None:
        """Send who takes part, to a process that is not ready yet."""
        self._is_seen.wait(LOOK_SECONDS)
        with self._lock:
            self._check_round(round_)
            line = self._membership()
        connection.sendall(line)

    def _check_round(self, round_: int) -> None:
        if round_ != self._round:
            raise ConnectionResetError(f"a process of round {round_} comes when that is over")

    def _control(self, connection: socket.socket, lines: Any, rank: int, round_: int) -> None:
        process = _Process(connection)
        with self._lock:
            self._check_round(round_)
            self._processes[rank] = process
            if self._groups is not None:
                _send_now(connection, self._membership())
        self._tell_news()
        try:
            while True:
                message = _read(lines)
                with self._lock:
                    process.training = process.training.after(message)
                self._tell_news()
        finally:
            with self._lock:
                # Where all were ready, one ends by a failure or with training: the agent reports that.
                if self._processes.get(rank) is process and self._summary() is None:
                    del self._processes[rank]

    def _tell_news(self) -> None:
        """Have news that the controller decides by reported at once.

        Steps and versions wait for the next report: all workers of all groups come to each new version.
        """
        with self._lock:
            report = self._summary()
            news = None if report is None else replace(report, version=0, step=0)
            is_news = news is not None and news != self._reported
            self._reported = news
        if is_news:
            self._tell()

    # --- the lead's store --------------------------------------------------------------------------------

    def _relay(self, connection: socket.socket, lines: Any, version: int) -> None:
        """Pass requests on to the store of a version's lead, until there is a newer version."""
        relay = _Relay(version, connection)
        with self._lock:
            groups = self._groups
            if groups is None or groups.version != version or not groups.groups:
                return
            self._relays.add(relay)
        try:
            to_lead = connect(groups.address, groups.port, self._key, SERVICE, LEAD_SECONDS)
            with to_lead:
                with self._lock:
                    relay.to_lead = to_lead
                    if self._groups is None or self._groups.version != version:
                        return
                store = PeerStore(to_lead, version_prefix(version))
                while True:
                    _send(connection, _answer(store, _read(lines)))
        except (OSError, DistError) as error:
            # Of the two connections, the process's may be the one that has ended: then nobody reads this.
            failure = f"the store of group {groups.groups[0][0]} at {groups.address}:{groups.port}: {error}"
            with contextlib.suppress(OSError):
                _send(connection, {"failed": failure})
        finally:
            with self._lock:
                self._relays.discard(relay)


def _answer(store: PeerStore, request: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out one request.

    Raises:
        DistError: the store cannot be reached.
        LookupError, TypeError, ValueError: the request makes no sense.
    """
    if "set" in request:
        key, value = request["set"]
        store.set(str(key), base64.b64decode(value))
        return {}
    if "add" in request:
        key, amount = request["add"]
        return {"sum": store.add(str(key), int(amount))}
    if "check" in request:
        return {"there": store.check([str(key) for key in request["check"]])}
    store.set_timeout(timedelta(seconds=KEY_SECONDS))
    try:
        return {"value": base64.b64encode(store.get(str(request["get"]))).decode()}
    except DistStoreError:
        return {"value": None}


def _send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _send_now(connection: socket.socket, line: bytes) -> None:
    """Send a line without waiting; end the connection of a process that is gone, or has long read none."""
    if connection.fileno() < 0:
        return  # it has ended, and its thread has seen that
    try:
        if connection.send(line, socket.MSG_DONTWAIT) < len(line):
            raise BlockingIOError("it reads none")
    except OSError as error:
        logger.warning("a process takes no news of the groups: %s", error)
        _shut(connection)


def _shut(connection: socket.socket | None) -> None:
    """Wake who waits for a connection, on both sides."""
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _read(lines: Any) -> Mapping[str, Any]:
    """Return the next object.

    Raises:
        ConnectionError: there is none.
        TypeError, ValueError: it is none.
    """
    line = lines.readline(MAX_LINE_BYTES)
    if len(line) == MAX_LINE_BYTES:
        raise ValueError("a line is too long")
    if not line.endswith(b"\n"):
        raise ConnectionResetError("it has ended")
    message = json.loads(line)
    if not isinstance(message, dict):
        raise TypeError(f"a line is no object: {line[:80]!r}")
    return message
