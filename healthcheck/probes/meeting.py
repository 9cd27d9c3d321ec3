"""Messages between the members of a group while they test, over a store that only they can write.

A member that does not come is named by all that did.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from healthcheck.probes.report import ProbeError

POLL_SECONDS = 0.02
_CAME, _LEFT, _ADJOURNED = "came", "left", "adjourned"


class ProbeMeeting:
    """One member's view of a group: the messages of all, by topic."""

    def __init__(self, store: Store, members: Sequence[str], rank: int) -> None:
        self.store = store
        self.members = tuple(members)
        self.rank = rank
        store.set(f"{_CAME}/{rank}", "")

    def send(self, topic: str, message: Any) -> None:
        """Send something that JSON can hold."""
        with contextlib.suppress(dist.DistError):
            self.store.set(f"{topic}/{self.rank}", json.dumps(message))

    def exchange(self, topic: str, message: Any, timeout_seconds: float) -> list[Any]:
        """Send a message, and return those of all members on the topic, in rank order.

        Raises ProbeError with the names of those that sent none in time, or of the host if it is gone. The
        first member that reaches its time limit adjourns the meeting for all.
        """
        deadline = time.monotonic() + timeout_seconds
        self.send(topic, message)
        try:
            while not self.store.check(self._keys(topic)):
                if self.store.check([_ADJOURNED]):
                    raise ProbeError(self.store.get(_ADJOURNED).decode())
                if time.monotonic() >= deadline and (names := self._missing(topic)):
                    reason = f"no word from {_list(names)} within {timeout_seconds:.0f} s"
                    self.store.set(_ADJOURNED, reason)
                time.sleep(POLL_SECONDS)
            return [json.loads(self.store.get(key)) for key in self._keys(topic)]
        except dist.DistError as error:
            raise ProbeError(f"lost {self.members[0]}, where the group meets: {brief(error)}") from error

    def leave(self, timeout_seconds: float) -> None:
        """Leave; the first member goes last of all, as the store of their collectives goes with it."""
        deadline = time.monotonic() + timeout_seconds
        try:
            self.store.set(f"{_LEFT}/{self.rank}", "")
            if self.rank != 0:
                return
            present = [key for key in self._keys(_LEFT) if self.store.check([key.replace(_LEFT, _CAME)])]
            while not self.store.check(present) and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
        except dist.DistError:
            pass  # the host is gone, and this member was about to go

    def _missing(self, topic: str) -> list[str]:
        """Return who has sent nothing; nobody, if the last one has come since the caller looked."""
        return [
            member
            for key, member in zip(self._keys(topic), self.members, strict=True)
            if not self.store.check([key])
        ]

    def _keys(self, topic: str) -> list[str]:
        return [f"{topic}/{rank}" for rank in range(len(self.members))]


def adjourn(store: Store, reason: str) -> None:
    """End the group's meeting for a member that cannot come any more, with the reason for the others."""
    with contextlib.suppress(dist.DistError):
        store.set(_ADJOURNED, reason)


def brief(error: BaseException) -> str:
    """The error without the C++ stack, the place in the sources and the advice that torch and Gloo add."""
    line = re.sub(r"^\[\S+:\d+\] ", "", str(error).partition("\n")[0])
    return line.partition(". ")[0].rstrip(".")[:300]


def _list(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
