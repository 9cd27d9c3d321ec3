"""The agent's side of the socket: it passes on the membership, and relays processes to the lead's store.

Each connection has a thread; there are a few for each training process. The watch's thread sends each new
membership itself, and ends the store connections of older versions, so that no process waits for dead groups.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import shutil
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from torch.distributed import DistError, DistStoreError

from agent.connection.handshake import connect
from agent.connection.store import PeerStore
from agent.connection.store_server import SERVICE, StoreServer
from agent.connection.store_state import version_prefix
from agent.environment import Environment, bound
from agent.kube.watcher import Watcher
from agent.replicas.facts import GroupsView, VersionGroups
from agent.replicas.roster import MAX_CONNECTIONS, Act, EndConnection, ReportNow, Roster, Send
from crds.agent_report import ReplicasReport

logger = logging.getLogger(__name__)

MAX_LINE_BYTES = 1 << 20
"""Length of the longest line. gloo writes some hundred bytes for each group into one value."""
KEY_SECONDS = 60.0
"""Time after which the process repeats the request for a key, so that a dead lead is noticed."""
LEAD_SECONDS = 2.0
"""Time limit for a connection to the lead's store."""
LOOK_SECONDS = 10.0
"""Longest wait for the first view of the groups, at a process's request."""
PAUSE_SECONDS = 0.1
"""Pause after a connection could not be accepted, for example since too many files are open."""


class ReplicasDesk:
    """Serves the training processes of one agent, round after round, until `close`.

    `Roster` decides what is sent and ended; this does it.

    Args:
        store: this agent's store, used if the group leads.
    """

    def __init__(self, group: int, key: bytes, store: StoreServer) -> None:
        self._key, self._values = key, store.values
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.path = bound(self._server, "replicas")
        """Path of the socket."""
        self._server.listen(64)
        self._lock = threading.Lock()
        self.roster = Roster(group)
        """Its keys are the connections."""
        self._is_seen = threading.Event()
        """Set with the first view of the groups."""
        self._to_leads: dict[socket.socket, socket.socket] = {}
        """Connections to the lead's store, by those of the processes that they are for."""
        self._tell: Callable[[], None] = lambda: None
        self._closed = threading.Event()

    @classmethod
    def start(
        cls, me: Environment, watcher: Watcher[GroupsView], store: StoreServer, cleanup: contextlib.ExitStack
    ) -> ReplicasDesk:
        """Return a desk of this worker that serves until `cleanup`.

        Args:
            watcher: watcher of the grouped job's ElasticWorld.
        """
        desk = cls(me.group_index, me.key, store)
        cleanup.callback(desk.close)
        watcher.call_at_changes(lambda: desk.see(watcher.view() or GroupsView()))
        if (seen := watcher.view()) is not None:  # which came before `call_at_changes`
            desk.see(seen)
        return desk

    def serve(self, tell: Callable[[], None]) -> None:
        """Begin to accept connections.

        Args:
            tell: has the agent report what `to_status` returns, at once.
        """
        self._tell = tell
        threading.Thread(target=self._accept, name="dlr-replicas", daemon=True).start()

    def begin(self, round_: int, count: int) -> None:
        """Expect `count` processes of a round, and end the connections that earlier ones have left."""
        self._carry_out(lambda: self.roster.begin(round_, count))

    def see(self, groups: GroupsView) -> None:
        """Note the groups that take part now; for the thread that watches them."""
        self._carry_out(lambda: self.roster.see(groups))
        self._is_seen.set()
        self._values.open_version(self.roster.membership.version)

    def to_status(self) -> ReplicasReport | None:
        """Return the section of the agent's next report; None until all processes of the round are ready."""
        with self._lock:
            return self.roster.summary()

    def close(self) -> None:
        """End all connections, and take no more."""
        self._closed.set()
        _shut(self._server)  # it wakes the thread that accepts
        self._server.close()
        self._carry_out(self.roster.close)
        shutil.rmtree(Path(self.path).parent, ignore_errors=True)

    def _carry_out(self, decide: Callable[[], Sequence[Act]]) -> None:
        """Carry out the roster's decision, with the lock held."""
        reports = False
        with self._lock:
            for act in decide():
                match act:
                    case Send(connection, membership):
                        _send_now(connection, _line(membership))
                    case EndConnection(connection):
                        _shut(connection)
                        _shut(self._to_leads.get(connection))
                    case ReportNow():
                        reports = True
        if reports:
            self._tell()

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
                is_welcome = self.roster.admit(connection)
            if not is_welcome:
                logger.warning("a process is refused: %d follow the groups already", MAX_CONNECTIONS)
                connection.close()
                continue
            try:
                threading.Thread(
                    target=self._attend, args=(connection,), name="dlr-replicas-process", daemon=True
                ).start()
            except RuntimeError as error:  # no more threads may be started
                logger.warning("a process is refused: %s", error)
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
            self.roster.leave(connection)
            self._to_leads.pop(connection, None)
        connection.close()

    def _show(self, connection: socket.socket, round_: int) -> None:
        """Send the membership to a process that is not ready yet."""
        self._is_seen.wait(LOOK_SECONDS)
        with self._lock:
            line = _line(self.roster.look(round_))
        connection.sendall(line)

    def _control(self, connection: socket.socket, lines: Any, rank: int, round_: int) -> None:
        self._carry_out(lambda: self.roster.join(connection, rank, round_))
        while True:
            message = _read(lines)
            self._carry_out(partial(self.roster.take, connection, message))

    # --- the lead's store --------------------------------------------------------------------------------

    def _relay(self, connection: socket.socket, lines: Any, version: int) -> None:
        """Pass requests on to the store of a version's lead, until there is a newer version."""
        with self._lock:
            groups = self.roster.open_store(connection, version)
        if groups is None:
            return
        try:
            to_lead = connect(groups.address, groups.port, self._key, SERVICE, LEAD_SECONDS)
            with to_lead:
                with self._lock:
                    self._to_leads[connection] = to_lead
                    if not self.roster.is_newest(version):
                        return
                store = PeerStore(to_lead, version_prefix(version))
                while True:
                    _send(connection, _answer(store, _read(lines)))
        except (OSError, DistError) as error:
            # If the process's own connection has ended, it does not get this.
            failure = f"the store of group {groups.groups[0][0]} at {groups.address}:{groups.port}: {error}"
            with contextlib.suppress(OSError):
                _send(connection, {"failed": failure})


def _line(membership: VersionGroups) -> bytes:
    """Encode a membership for processes."""
    fields = {"version": membership.version, "groups": membership.groups, "me": membership.me}
    return json.dumps({"membership": fields}).encode() + b"\n"


def _answer(store: PeerStore, request: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out one request.

    Raises:
        DistError: the store cannot be reached.
        LookupError, TypeError, ValueError: the request is malformed.
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
    """Send a line without waiting; end the connection of a process that is gone or does not read."""
    if connection.fileno() < 0:
        return  # it has ended, and its thread has noticed
    try:
        if connection.send(line, socket.MSG_DONTWAIT) < len(line):
            raise BlockingIOError("it reads none")
    except OSError as error:
        logger.warning("a process takes no news of the groups: %s", error)
        _shut(connection)


def _shut(connection: socket.socket | None) -> None:
    """Shut a connection down, which wakes both sides."""
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def _read(lines: Any) -> Mapping[str, Any]:
    """Return the next object.

    Raises:
        ConnectionError: the connection has ended.
        TypeError, ValueError: it is malformed.
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
