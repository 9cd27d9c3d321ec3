"""A training process's side of the agent's socket for replica groups."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from agent.replicas.facts import VersionGroups

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 90.0
"""Time limit of an answer, longer than the agent waits for a key."""


class AgentChannel:
    """A training process's connection to its agent.

    Raises:
        OSError: the agent cannot be reached.
    """

    def __init__(self, path: str, round_: int) -> None:
        self._path, self._round = path, round_
        self._line = AgentConnection(path)
        self._lock = threading.Lock()
        self._membership: VersionGroups | None = None
        self._end: Exception | None = None
        """Error that has ended the news; None before."""
        self._changed: Callable[[], None] = lambda: None

    @property
    def membership(self) -> VersionGroups | None:
        """The newest membership; None before the first.

        Raises:
            ConnectionError: the news has ended, so that this process would wait for others for ever.
        """
        if self._end is not None:
            raise ConnectionError(
                "this process cannot follow the replica groups any more, since its connection to the agent "
                f"has ended; the agent's log says why: {self._end}"
            ) from self._end
        return self._membership

    def renewed(self, round_: int) -> AgentChannel:
        """Return a channel for another round of this process's group; the agent has ended the last one.

        Raises:
            OSError: the agent cannot be reached.
        """
        return AgentChannel(self._path, round_)

    def look(self) -> VersionGroups:
        """Return the groups that take part now, also before this process is ready.

        Raises:
            OSError: the agent cannot be reached, or has a newer round.
        """
        line = AgentConnection(self._path, ANSWER_SECONDS)
        try:
            line.send({"look": self._round})
            return VersionGroups.parse(line.receive()["membership"])
        finally:
            line.close()

    def follow(self, changed: Callable[[], None], rank: int, size: int) -> None:
        """Report to the agent that this process is ready to take part, and follow the news.

        Args:
            changed: called by a thread, after `membership` has changed, or the news has ended.
            rank: rank of the process in its group.
            size: number of the group's processes.
        """
        self._changed = changed
        self._line.send({"join": {"rank": rank, "size": size, "round": self._round}})
        threading.Thread(target=self._read, name="dlr-replicas-news", daemon=True).start()

    def open_store(self, version: int) -> LineStore:
        """Connect to the store of a version, through which its processes find each other.

        Keep a reference: torch can call the methods of a store in Python only while there is one.

        Raises:
            OSError: the agent cannot be reached.
        """
        line = AgentConnection(self._path, ANSWER_SECONDS)
        line.send({"store": version})
        return LineStore(line)

    def at(self, version: int, step: int) -> None:
        """Report that this process is in that version's exchange, and the number of its applied steps."""
        self._tell({"at": {"version": version, "step": step}})

    def broken(self, version: int) -> None:
        """Report that the exchange of a version failed, although there is no newer one."""
        self._tell({"broken": version})

    def left_out(self, version: int) -> None:
        """Report that this process waits for a version with its group, and has seen this one without it."""
        self._tell({"left_out": version})

    def late(self, version: int, groups: Sequence[int]) -> None:
        """Report the groups for which this process waits in that version for longer than its patience.

        Args:
            groups: their indices; none once they have come.
        """
        self._tell({"late": {"version": version, "groups": list(groups)}})

    def _tell(self, message: Mapping[str, Any]) -> None:
        try:
            with self._lock:
                self._line.send(message)
        except OSError as error:  # the agent is going, and this process with it
            logger.debug("the agent does not take %s: %s", message, error)

    def _read(self) -> None:
        try:
            while True:
                self._membership = VersionGroups.parse(self._line.receive()["membership"])
                self._changed()
        except (OSError, ValueError, LookupError, TypeError) as error:
            self._end = error
            self._changed()


class AgentConnection:
    """A connection to the agent.

    Args:
        answer_seconds: time limit of `receive`; None for none.

    Raises:
        OSError: the agent cannot be reached.
    """

    def __init__(self, path: str, answer_seconds: float | None = None) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(CONNECT_SECONDS)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self._socket.settimeout(answer_seconds)
        self._received = b""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one object; raise OSError if the agent is gone."""
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Any:
        """Return the next object.

        Raises:
            OSError: the agent is gone, or does not answer in time.
            ValueError: it is malformed.
        """
        while b"\n" not in self._received:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionResetError("the agent has closed the connection")
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)

    def end(self) -> None:
        """Make a running `receive` fail, in any thread."""
        with contextlib.suppress(OSError):  # the agent has ended it
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


class LineStore(Store):
    """The part of a torch.distributed.Store that process groups connect by."""

    def __init__(self, line: AgentConnection) -> None:
        super().__init__()
        self._line = line
        self._lock = threading.Lock()

    def end(self) -> None:
        """Make all calls fail, including running ones of other threads."""
        self._line.end()

    def set(self, key: str, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._ask({"set": [key, base64.b64encode(data).decode()]})

    def get(self, key: str) -> bytes:
        """Return a value, once it is there.

        Raises:
            OSError: there is a newer version, or the lead's store cannot be reached.
        """
        while (value := self._ask({"get": key})["value"]) is None:
            pass  # the agent has waited for it
        return base64.b64decode(value)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set; a newer version without the late groups ends the wait by an error."""
        for key in keys:
            self.get(key)

    def add(self, key: str, amount: int) -> int:
        """Add to a number, 0 at first, and return the sum.

        Raises:
            OSError: there is a newer version, or the lead's store cannot be reached.
        """
        return int(self._ask({"add": [key, amount]})["sum"])

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys are set."""
        return bool(self._ask({"check": list(keys)})["there"])

    def _ask(self, request: Mapping[str, Any]) -> Any:
        with self._lock:
            with contextlib.suppress(OSError):  # it has ended, maybe after an answer with the reason
                self._line.send(request)
            answer = self._line.receive()
        if "failed" in answer:
            raise ConnectionError(answer["failed"])
        return answer
