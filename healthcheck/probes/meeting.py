"""Messages between the members of a group during a test, through a store that only they can write.

All other members name a missing one.
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
    """View of one member on its group: the messages of all, by topic."""

    def __init__(self, store: Store, members: Sequence[str], rank: int) -> None:
        self.store = store
        self.members = tuple(members)
        self.rank = rank
        store.set(f"{_CAME}/{rank}", "")

    def send(self, topic: str, message: Any) -> None:
        """Send a message, which must be JSON."""
        with contextlib.suppress(dist.DistError):
            self.store.set(f"{topic}/{self.rank}", json.dumps(message))

    def exchange(self, topic: str, message: Any, timeout_seconds: float) -> list[Any]:
        """Send a message, and return those of all members on the topic, in rank order.

        Raises ProbeError with the names of members without a message in time, or of the host if it is
        lost. The first member to reach its time limit ends the meeting for all.
        """
        deadline = time.monotonic() + timeout_seconds
        self.send(topic, message)
        try:
            while not self.store.check(self._keys(topic)):
                if self.store.check([_ADJOURNED]):
                    raise ProbeError(self.store.get(_ADJOURNED).decode())
                if time.monotonic() >= deadline and (names := self._missing(topic)):
                    reason = f"no message from {_list(names)} within {timeout_seconds:.0f} s"
                    self.store.set(_ADJOURNED, reason)
                time.sleep(POLL_SECONDS)
            return [json.loads(self.store.get(key)) for key in self._keys(topic)]
        except dist.DistError as error:
            raise ProbeError(f"lost {self.members[0]}, where the group meets: {brief(error)}") from error

    def leave(self, timeout_seconds: float) -> None:
        """Leave; the first member leaves last, as the store of their collectives ends with it."""
        deadline = time.monotonic() + timeout_seconds
        try:
            self.store.set(f"{_LEFT}/{self.rank}", "")
            if self.rank != 0:
                return
            present = [key for key in self._keys(_LEFT) if self.store.check([key.replace(_LEFT, _CAME)])]
            while not self.store.check(present) and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
        except dist.DistError:
            pass  # the host is gone, and this member is leaving anyway

    def _missing(self, topic: str) -> list[str]:
        """Return the members without a message; empty if the last one has arrived meanwhile."""
        return [
            member
            for key, member in zip(self._keys(topic), self.members, strict=True)
            if not self.store.check([key])
        ]

    def _keys(self, topic: str) -> list[str]:
        return [f"{topic}/{rank}" for rank in range(len(self.members))]


def adjourn(store: Store, reason: str) -> None:
    """End the group's meeting because a member cannot come, with the reason for the others."""
    with contextlib.suppress(dist.DistError):
        store.set(_ADJOURNED, reason)


def brief(error: BaseException) -> str:
    """Return the error without the C++ stack, source position and advice that torch and Gloo add."""
    line = re.sub(r"^\[\S+:\d+\] ", "", str(error).partition("\n")[0])
    return line.partition(". ")[0].rstrip(".")[:300]


def _list(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
