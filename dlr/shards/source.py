"""Where the parts of a set come from: this Pod's agent, or, outside of dlr, a share of our own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import Any

from crds.intervals import Intervals, count, first, from_text, minus, to_text, union
from crds.protocol import ENV_SHARDS_SOCKET
from crds.shard_set import Definition


class ShardsError(RuntimeError):
    """A set cannot be pulled from, or more of it has failed than may; the message is one sentence."""


class AgentSource:
    """Parts of what the job leases to this worker."""

    def __init__(self, definition: Definition, path: str) -> None:
        self._name = definition.name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._pending: dict[str, Any] = {"pull": definition.to_wire()}
        self.failed: Intervals = ()
        try:
            self._socket.connect(path)
            self._answers = self._socket.makefile("rb")
        except OSError as error:
            raise self._lost() from error

    def next(self, most: int) -> tuple[int, int] | None:
        """Wait for the next part, of at most so many elements; None when the set is over.

        Raises:
            ShardsError: the set cannot be pulled from.
        """
        said, self._pending = {**self._pending, "next": most}, {}
        try:
            self._socket.sendall(json.dumps(said).encode() + b"\n")
            line = self._answers.readline()
        except OSError as error:
            raise self._lost() from error
        if not line:
            raise self._lost()
        answer = json.loads(line)
        if "refused" in answer:
            raise ShardsError(answer["refused"])
        if "over" in answer:
            self.failed = from_text(answer["over"])
            return None
        start, end = answer["part"]
        return start, end

    def settle(self, reason: str | None) -> None:
        """Say of the part at hand that it is done, or why it failed.

        Raises:
            ShardsError: there is nobody to say it to.
        """
        said = {"done": True} if reason is None else {"failed": reason}
        try:
            self._socket.sendall(json.dumps(said).encode() + b"\n")
        except OSError as error:
            raise self._lost() from error

    def close(self) -> None:
        """Pull no more: what is at hand and leased is for others."""
        with contextlib.suppress(OSError):  # else it knows by the end of the connection
            self._socket.sendall(b'{"leaves": true}\n')
        self._answers.close()
        self._socket.close()

    def _lost(self) -> ShardsError:
        return ShardsError(
            f"shard set {self._name!r}: the agent of this Pod does not answer, so no more can be pulled; "
            "what was in hand is given to another worker"
        )


class OwnShare:
    """Without dlr's agent: a fixed share by torchrun's RANK and WORLD_SIZE, or the whole set.

    Nobody else takes over what this process leaves undone. Failed elements are tried again at the end.
    """

    def __init__(self, definition: Definition) -> None:
        rank, world = int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
        start, end = (definition.size * place // world for place in (rank, rank + 1))
        self._definition = definition
        self._rest: Intervals = ((start, end),) if start < end else ()
        self._failed: Intervals = ()
        self._tries_left = definition.retries
        self._in_hand: tuple[int, int] | None = None
        self._reason = ""
        self.failed: Intervals = ()

    def next(self, most: int) -> tuple[int, int] | None:
        """
        Raises:
            ShardsError: more of the share has failed than may.
        """
        if not self._rest and self._failed and self._tries_left:
            self._rest, self._failed, self._tries_left = self._failed, (), self._tries_left - 1
        part = first(self._rest, most, 1)
        if part:
            self._rest, self._in_hand = minus(self._rest, part), part[0]
            return part[0]
        self.failed, named = self._failed, self._definition
        if count(self.failed) > named.max_failed:
            places = to_text(first(self.failed, 1 << 60, 20))
            raise ShardsError(named.failure(self.failed, self._reason, places))
        return None

    def settle(self, reason: str | None) -> None:
        if reason is not None and self._in_hand is not None:
            self._failed = union(self._failed, (self._in_hand,))
            self._reason = self._reason or reason

    def close(self) -> None:
        """Nothing is held."""


def source_of(definition: Definition) -> AgentSource | OwnShare:
    path = os.environ.get(ENV_SHARDS_SOCKET)
    return AgentSource(definition, path) if path else OwnShare(definition)
