"""Sources of a set's parts: this Pod's agent, or, outside of dlr, a fixed share.

Several parts may be in hand; each is settled by itself. One thread may wait for the next part while others
settle.
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
    """A set cannot be pulled from, or more of it has failed than may; the message is one sentence."""


class LeasedShards:
    """Parts of what the job leases to this worker."""

    def __init__(self, definition: SetDefinition, path: str) -> None:
        self._definition, self._path = definition, path
        self._lock = threading.Lock()
        """Held while something is said."""
        self._pending: dict[str, Any] = {"pull": definition.to_wire()}
        self.failed: Intervals = ()
        self._socket, self._answers = self._connected()

    def next(self, most: int, patience_seconds: float | None = None) -> tuple[int, int] | None:
        """Wait for the next part, of at most so many elements.

        Args:
            patience_seconds: how long; None: until there is one.

        Returns:
            None when the set is over, or when nothing is to come before what is in hand here is settled; an
            empty part when none came in time.

        Raises:
            ShardsError: the set cannot be pulled from.
        """
        self._say({"next": most} if patience_seconds is None else {"next": most, "within": patience_seconds})
        answer = self._heard(self._answers)
        if "refused" in answer:
            raise ShardsError(answer["refused"])
        if "part" not in answer:
            self.failed = from_text(answer.get("over", ""))
            return None
        start, end = answer["part"]
        return start, end

    def settle(self, part: tuple[int, int], reason: str | None) -> None:
        """Say of a part in hand that it is done, or why it failed.

        Raises:
            ShardsError: there is nobody to say it to.
        """
        self._say({"done": part} if reason is None else {"failed": reason, "part": part})

    def undone(self) -> Intervals:
        """What is done by no worker, as far as this one knows: what others did lately may be in it.

        Raises:
            ShardsError: there is nobody to ask.
        """
        connection, answers = self._connected()
        with connection, answers:
            try:
                connection.sendall(json.dumps({"checkpoint": self._definition.to_wire()}).encode() + b"\n")
            except OSError as error:
                raise self._lost() from error
            text = self._heard(answers)["undone"]
        return whole(self._definition.size) if text is None else from_text(text)

    def restore(self, undone: Intervals) -> None:
        """Have the whole set, in all workers, go on with these elements, and count all others as done.

        Of those who ask for that in one round of the job, the first is heard: all are to ask for the same.

        Raises:
            ShardsError: they are in too many places, this process is of no round or in a replica group, or
                there is nobody to say it to.
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
        self._say({"restore": round_, "undone": text})

    def close(self) -> None:
        """Pull no more: what is at hand and leased is for others."""
        with contextlib.suppress(ShardsError):  # else it knows by the end of the connection
            if not self._pending:
                self._say({"leaves": True})
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

    def _say(self, what: Mapping[str, Any]) -> None:
        with self._lock:
            said, self._pending = {**self._pending, **what}, {}
            try:
                self._socket.sendall(json.dumps(said).encode() + b"\n")
            except OSError as error:
                raise self._lost() from error

    def _heard(self, answers: BufferedReader) -> dict[str, Any]:
        try:
            line = answers.readline()
        except OSError as error:
            raise self._lost() from error
        if not line:
            raise self._lost()
        heard: dict[str, Any] = json.loads(line)
        return heard

    def _lost(self) -> ShardsError:
        return ShardsError(
            f"shard set {self._definition.name!r}: the agent of this Pod does not answer, so no more can be "
            "pulled; what was in hand is given to another worker"
        )


class OwnShare:
    """A fixed share by torchrun's RANK and WORLD_SIZE, or the whole set, for use without dlr's agent.

    Nobody else takes over what this process leaves undone. Failed elements are tried again at the end.
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
        """
        Raises:
            ShardsError: more of the share has failed than may.
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
            places = to_text(first(self.failed, 1 << 60, 20))
            raise ShardsError(named.failure(self.failed, self._reason, places))
        return None

    def settle(self, part: tuple[int, int], reason: str | None) -> None:
        self._in_hand = minus(self._in_hand, (part,))
        if reason is not None:
            self._failed = union(self._failed, (part,))
            self._reason = self._reason or reason

    def undone(self) -> Intervals:
        """Return what is left of this process's share; the others' cannot be asked for."""
        return union(self._rest, self._in_hand, self._failed)

    def restore(self, undone: Intervals) -> None:
        self._rest, self._failed, self._in_hand = common(self._share, undone), (), ()

    def close(self) -> None:
        """Nothing is held."""


def source_of(definition: SetDefinition) -> LeasedShards | OwnShare:
    """Return where this process pulls a set from."""
    path = os.environ.get(ENV_SHARDS_SOCKET)
    return LeasedShards(definition, path) if path else OwnShare(definition)
