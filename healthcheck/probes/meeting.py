"""Where the members of a group meet before they test each other: a TCPStore.

Either the first member hosts it, or it is there already and the group keeps to a prefix of its own in it. A
member that does not come is named, by all that did.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from healthcheck.probes.report import ProbeError

STORE_TIMEOUT_SECONDS = 300.0
ADJOURN_SECONDS = 3.0
POLL_SECONDS, CONNECT_POLL_SECONDS = 0.02, 0.1
_CAME, _LEFT, _ADJOURNED = "came", "left", "adjourned"


@dataclass(frozen=True)
class Place:
    """A TCPStore, or the part of one under `prefix`."""

    host: str
    port: int
    prefix: str = ""
    """If there is one, the store is there already, and nobody of the group hosts it."""

    def visit(self, timeout_seconds: float = STORE_TIMEOUT_SECONDS) -> Store:
        """As a client. Raises DistError."""
        timeout = timedelta(seconds=timeout_seconds)
        store = TCPStore(self.host, self.port, is_master=False, timeout=timeout, wait_for_workers=False)
        return PrefixStore(self.prefix, store) if self.prefix else store


class Meeting:
    """One member's view of a group: what all of them said, topic by topic."""

    def __init__(self, store: Store, place: Place, members: Sequence[str], rank: int) -> None:
        self.store = store
        self.place = place
        self.members = tuple(members)
        self.rank = rank
        store.set(f"{_CAME}/{rank}", "")

    def say(self, topic: str, said: Any) -> None:
        """Say something JSON can hold, to whoever hears it."""
        with contextlib.suppress(dist.DistError):
            self.store.set(f"{topic}/{self.rank}", json.dumps(said))

    def exchange(self, topic: str, said: Any, timeout_seconds: float) -> list[Any]:
        """Say something, and hear what all said on the topic, in rank order.

        Raises ProbeError with the names of those that said nothing in time, or of the host if it is gone. The
        first to lose patience adjourns the meeting for all.
        """
        deadline = time.monotonic() + timeout_seconds
        self.say(topic, said)
        try:
            while not self.store.check(self._keys(topic)):
                if self.store.check([_ADJOURNED]):
                    raise ProbeError(self.store.get(_ADJOURNED).decode())
                if time.monotonic() >= deadline:
                    self.store.set(_ADJOURNED, self._missing(topic, timeout_seconds))
                time.sleep(POLL_SECONDS)
            return [json.loads(self.store.get(key)) for key in self._keys(topic)]
        except dist.DistError as error:
            raise ProbeError(f"lost {self.members[0]}, where the group meets: {brief(error)}") from error

    def leave(self, timeout_seconds: float) -> None:
        """The host goes last of all that came, as the store goes with it."""
        deadline = time.monotonic() + timeout_seconds
        try:
            self.store.set(f"{_LEFT}/{self.rank}", "")
            if self.rank != 0 or self.place.prefix:
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


def join(members: Sequence[str], rank: int, place: Place, timeout_seconds: float) -> Meeting:
    """Come to the meeting; as its host if `rank` is 0 and the place has no prefix. Port 0 is any free one.

    Raises ProbeError if the port is taken, or the host is not there in time.
    """
    hosts = rank == 0 and not place.prefix
    if not hosts:
        _await_host(members[0], place, timeout_seconds)
    try:
        if hosts:
            timeout = timedelta(seconds=timeout_seconds)
            store = TCPStore(place.host, place.port, is_master=True, timeout=timeout, wait_for_workers=False)
            return Meeting(store, replace(place, port=store.port), members, rank)
        return Meeting(place.visit(timeout_seconds), place, members, rank)
    except dist.DistError as error:
        where = f"{place.host}:{place.port}"
        what = f"cannot listen on port {place.port}" if hosts else f"cannot join {members[0]} at {where}"
        raise ProbeError(f"{what}: {brief(error)}") from error


def adjourn(place: Place, reason: str) -> None:
    """End the meeting for a member that cannot come any more, so that nobody waits for it.

    Where the place cannot be reached, the others have to find out by themselves.
    """
    with contextlib.suppress(dist.DistError):
        place.visit(ADJOURN_SECONDS).set(_ADJOURNED, reason)


def _await_host(name: str, place: Place, timeout_seconds: float) -> None:
    """A TCPStore would wait too, up to twice its time-out, and not say for what."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            patience = max(deadline - time.monotonic(), POLL_SECONDS)
            socket.create_connection((place.host, place.port), patience).close()
            return
        except OSError as error:
            if time.monotonic() >= deadline:
                raise ProbeError(
                    f"{name}, where the group meets, cannot be reached at {place.host}:{place.port} "
                    f"within {timeout_seconds:.0f} s: {error.strerror or error}"
                ) from error
        time.sleep(CONNECT_POLL_SECONDS)


def brief(error: BaseException) -> str:
    """Without the C++ stack, the place in the sources and the advice that torch and Gloo add."""
    line = re.sub(r"^\[\S+:\d+\] ", "", str(error).partition("\n")[0])
    return line.partition(". ")[0].rstrip(".")[:300]


def _list(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else "anybody"
