"""Where the members of a group meet before they test each other: a TCPStore that the first member hosts.

A member that does not come is named, by all that did.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from healthcheck.probes.report import ProbeError

POLL_SECONDS = 0.02
_CAME, _LEFT, _ADJOURNED = "came", "left", "adjourned"


class Meeting:
    """One member's view of a group: what all of them said, topic by topic."""

    def __init__(self, store: TCPStore, members: Sequence[str], rank: int) -> None:
        self.store = store
        self.members = tuple(members)
        self.rank = rank
        store.set(f"{_CAME}/{rank}", "")

    def exchange(self, topic: str, said: Any, timeout_seconds: float) -> list[Any]:
        """Say something JSON can hold, and hear what all said on the topic, in rank order.

        Raises ProbeError with the names of those that said nothing in time, or of the host if it is gone. The
        first to lose patience adjourns the meeting for all.
        """
        deadline = time.monotonic() + timeout_seconds
        try:
            self.store.set(f"{topic}/{self.rank}", json.dumps(said))
            while not self.store.check(self._keys(topic)):
                if self.store.check([_ADJOURNED]):
                    raise ProbeError(self.store.get(_ADJOURNED).decode())
                if time.monotonic() >= deadline:
                    self.store.set(_ADJOURNED, self._missing(topic, timeout_seconds))
                time.sleep(POLL_SECONDS)
            return [json.loads(self.store.get(key)) for key in self._keys(topic)]
        except dist.DistError as error:
            raise ProbeError(f"lost {self.members[0]}, where the group meets: {first_line(error)}") from error

    def leave(self, timeout_seconds: float) -> None:
        """The host goes last of all that came, as the store goes with it."""
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

    def _missing(self, topic: str, seconds: float) -> str:
        names = [
            member
            for key, member in zip(self._keys(topic), self.members, strict=True)
            if not self.store.check([key])
        ]
        return f"no word from {_list(names)} within {seconds:.0f} s"

    def _keys(self, topic: str) -> list[str]:
        return [f"{topic}/{rank}" for rank in range(len(self.members))]


def join(members: Sequence[str], rank: int, host: str, port: int, timeout_seconds: float) -> Meeting:
    """Come to the meeting at `host`:`port`, as its host if `rank` is 0. Port 0 is any free one.

    Raises ProbeError if the port is taken, or the host is not there in time.
    """
    timeout = timedelta(seconds=timeout_seconds)
    try:
        store = TCPStore(host, port, is_master=rank == 0, timeout=timeout, wait_for_workers=False)
        return Meeting(store, members, rank)
    except dist.DistError as error:
        if rank == 0:
            raise ProbeError(f"cannot listen on port {port}: {first_line(error)}") from error
        raise ProbeError(
            f"{members[0]}, where the group meets, cannot be reached at {host}:{port} "
            f"within {timeout_seconds:.0f} s: {first_line(error)}"
        ) from error


def first_line(error: BaseException) -> str:
    """torch adds a C++ stack to what it says."""
    return str(error).partition("\n")[0][:300]


def _list(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else "anybody"
