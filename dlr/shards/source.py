"""Sources of a set's parts: this Pod's agent, or, outside of dlr, a fixed share.

A process may hold several parts, and settles each by itself. One thread may wait for the next part while
others settle.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Mapping
from io import BufferedReader
from typing import Any

from controller.errors import Error
from crds.intervals import Intervals, common, count, first, from_text, minus, to_text, union, whole
from crds.names import ENV_GROUPED_JOB
from crds.progress_record import ENV_ROUND
from crds.shard_set import ENV_SHARDS_SOCKET, MAX_SHARD_RANGES, MAX_SHARD_TEXT, SetDefinition


class ShardsError(Error, RuntimeError):
    """A set cannot be pulled from, or too many elements have failed; the message is one sentence."""


class LeasedShards:
    """Parts of the elements that the job leases to this worker."""

    def __init__(self, definition: SetDefinition, path: str) -> None:
        self._definition, self._path = definition, path
        self._lock = threading.Lock()
        """Lock for sending."""
        self._pending: dict[str, Any] = {"pull": definition.to_wire()}
        self.failed: Intervals = ()
        self._socket, self._answers = self._connected()

    def next(self, most: int, patience_seconds: float | None = None) -> tuple[int, int] | None:
        """Wait for the next part, of at most `most` elements.

        Args:
            patience_seconds: time limit; None for no limit.

        Returns:
            None when the set is over, or when no part will come before this process settles its parts; an
            empty part when none came in time.

        Raises:
            ShardsError: the set cannot be pulled from.
        """
        self._send({"next": most} if patience_seconds is None else {"next": most, "within": patience_seconds})
        answer = self._receive(self._answers)
        if "refused" in answer:
            raise ShardsError(answer["refused"])
        if "part" not in answer:
            self.failed = from_text(answer.get("over", ""))
            return None
        start, end = answer["part"]
        return start, end

    def settle(self, part: tuple[int, int], reason: str | None) -> None:
        """Report that a part is done, or why it failed.

        Raises:
            ShardsError: the agent does not answer.
        """
        self._send({"done": part} if reason is None else {"failed": reason, "part": part})

    def undone(self) -> Intervals:
        """Return the elements that no worker has done; those that others did lately may be included.

        Raises:
            ShardsError: the agent does not answer.
        """
        connection, answers = self._connected()
        with connection, answers:
            try:
                connection.sendall(json.dumps({"checkpoint": self._definition.to_wire()}).encode() + b"\n")
            except OSError as error:
                raise self._lost() from error
            text = self._receive(answers)["undone"]
        return whole(self._definition.size) if text is None else from_text(text)

    def restore(self, undone: Intervals) -> None:
        """Reset the whole set, in all workers, to these undone elements; all others count as done.

        In one round of the job only the first request counts, so all must request the same.

        Raises:
            ShardsError: the elements are in too many ranges, this process has no round or is in a replica
                group, or the agent does not answer.
        """
        if grouped_job := os.environ.get(ENV_GROUPED_JOB):
            raise ShardsError(
                f"shard set {self._definition.name!r}: the replica groups of {grouped_job} share the set, "
                "and the others train on when one starts again, so it cannot go back to a checkpoint: leave "
                "its state out of the checkpoint, or use a job without replicaGroups"
            )
        text = to_text(undone)
        if len(text) > MAX_SHARD_TEXT or len(undone) > MAX_SHARD_RANGES:
            raise ShardsError(
                f"shard set {self._definition.name!r}: what is left of it is in {len(undone)} separate "
                "places, more than a worker can report, so the set cannot go back to this checkpoint"
            )
        round_ = int(os.environ.get(ENV_ROUND) or 0)
        if not round_:
            raise ShardsError(
                f"shard set {self._definition.name!r}: `dlr exec` starts no rounds, and a set goes back to a "
                "checkpoint at the beginning of one: start this script by `dlr run` or `dlrover-run`"
            )
        self._send({"restore": round_, "undone": text})

    def close(self) -> None:
        """Stop pulling: held and leased elements go to others."""
        with contextlib.suppress(ShardsError):  # the agent also notices the end of the connection
            if not self._pending:
                self._send({"leaves": True})
        self._answers.close()
        self._socket.close()

    def _connected(self) -> tuple[socket.socket, BufferedReader]:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(self._path)
        except OSError as error:
            connection.close()
            raise self._lost() from error
        return connection, connection.makefile("rb")

    def _send(self, what: Mapping[str, Any]) -> None:
        with self._lock:
            message, self._pending = {**self._pending, **what}, {}
            try:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
            except OSError as error:
                raise self._lost() from error

    def _receive(self, answers: BufferedReader) -> dict[str, Any]:
        try:
            line = answers.readline()
        except OSError as error:
            raise self._lost() from error
        if not line:
            raise self._lost()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _lost(self) -> ShardsError:
        return ShardsError(
            f"shard set {self._definition.name!r}: the agent of this Pod does not answer, so no more can be "
            "pulled; what was in hand is given to another worker"
        )


class OwnShare:
    """A fixed share by torchrun's RANK and WORLD_SIZE, or the whole set, for use without dlr's agent.

    No other process takes over undone elements. Failed elements are tried again at the end.
    """

    def __init__(self, definition: SetDefinition) -> None:
        rank, world = int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
        start, end = (definition.size * place // world for place in (rank, rank + 1))
        self._definition = definition
        self._share: Intervals = ((start, end),) if start < end else ()
        self._rest: Intervals = self._share
        self._failed: Intervals = ()
        self._tries_left = definition.retries
        self._in_hand: Intervals = ()
        self._reason = ""
        self.failed: Intervals = ()

    def next(self, most: int, _patience_seconds: float | None = None) -> tuple[int, int] | None:
        """Return the next part; None without one.

        Raises:
            ShardsError: more elements of the share have failed than `max_failed`.
        """
        if not self._rest and self._failed and self._tries_left:
            self._rest, self._failed, self._tries_left = self._failed, (), self._tries_left - 1
        part = first(self._rest, most, 1)
        if part:
            self._rest, self._in_hand = minus(self._rest, part), union(self._in_hand, part)
            return part[0]
        if self._in_hand:
            return None
        self.failed, named = self._failed, self._definition
        if count(self.failed) > named.max_failed:
            raise ShardsError(named.failure(self.failed, self._reason))
        return None

    def settle(self, part: tuple[int, int], reason: str | None) -> None:
        self._in_hand = minus(self._in_hand, (part,))
        if reason is not None:
            self._failed = union(self._failed, (part,))
            self._reason = self._reason or reason

    def undone(self) -> Intervals:
        """Return the undone elements of this process's share; those of others are unknown."""
        return union(self._rest, self._in_hand, self._failed)

    def restore(self, undone: Intervals) -> None:
        self._rest, self._failed, self._in_hand = common(self._share, undone), (), ()

    def close(self) -> None:
        """Do nothing."""


def source_of(definition: SetDefinition) -> LeasedShards | OwnShare:
    """Return the source of a set's parts for this process."""
    path = os.environ.get(ENV_SHARDS_SOCKET)
    return LeasedShards(definition, path) if path else OwnShare(definition)
