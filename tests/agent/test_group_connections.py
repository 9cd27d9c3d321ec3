"""Which connections of a process end when it leaves a round, over real sockets; gloo is the test's own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore, PrefixStore, distributed_c10d  # type: ignore[attr-defined]

from agent.facts.place import Place
from agent.torch_compat.reconfigure import FormedGroup, ReformableGroups

pytestmark = pytest.mark.real
FAMILIES = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


def datum(listener: socket.socket, host_name: str) -> bytes:
    """What gloo gives to its peers: host name, address as a sockaddr, and whatever was there in memory."""
    host, port = listener.getsockname()[:2]
    address: bytes = socket.inet_pton(listener.family, host)
    flow = bytes(4) if listener.family == socket.AF_INET6 else b""
    family, number = int(listener.family).to_bytes(2, "little"), int(port).to_bytes(2, "big")
    addresses = family + number + flow + address + b"\7" * 140
    return b"".join(len(each).to_bytes(8, "little") + each for each in (host_name.encode(), addresses))


class Gloo:
    """A backend of rank 0 of two. It connects to its peer, and its peer to it."""

    def __init__(self, family: socket.AddressFamily, opened: ExitStack) -> None:
        listen = {"family": family, "backlog": 8}
        self._opened, self._host = opened, FAMILIES[family]
        self.own, self.peers, self.others = (
            opened.enter_context(socket.create_server((self._host, 0), **listen))  # type: ignore[arg-type]
            for _ in range(3)
        )
        self.groups: Any = ReformableGroups()
        self.groups._groups[object()] = [FormedGroup("g", "gloo", None, self)]

    def get_reconfigure_handle(self) -> bytes:
        return b"gloo:0"

    def reconfigure(self, _: object) -> Any:
        """Exchange addresses and connect, while a thread of the script connects to somebody else."""
        store = self.groups._store
        store.set("reconfigure/1/0/0", datum(self.own, "digits-0"))
        store._current.set("reconfigure/1/0/1", datum(self.peers, "digits-10"))
        store.get("reconfigure/1/0/1")
        self.to_peer = self.connect(self.peers)
        self.to_other = self.connect(self.others)
        self.connect(self.own)
        self.from_peer = self._opened.enter_context(self.own.accept()[0])
        return SimpleNamespace(wait=lambda: None)

    def connect(self, to: socket.socket) -> socket.socket:
        return self._opened.enter_context(socket.create_connection(to.getsockname()[:2]))

    def form(self, round_: int) -> None:
        store = HashStore()
        PrefixStore(f"dlr-reconfigure/{round_}/", store).set("g/1", "gloo:1")
        self.groups.form(round_, store, Place(0, 2), lambda *_: None)


@pytest.fixture(params=FAMILIES)
def gloo(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gloo]:
    monkeypatch.setattr(distributed_c10d, "ReconfigureOptions", SimpleNamespace, raising=False)
    with ExitStack() as opened:
        yield Gloo(request.param, opened)


def is_ended(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False


def test_those_of_the_next_round_end_too_and_who_listens_goes_on(gloo: Gloo) -> None:
    for round_ in (1, 2):
        gloo.form(round_)
        gloo.groups.break_off()
    assert is_ended(gloo.to_peer) and is_ended(gloo.from_peer)
    assert not is_ended(gloo.to_other)
    assert not is_ended(gloo.connect(gloo.own))
    gloo.own.accept()[0].close()


def test_what_the_script_connects_later_to_where_no_group_listens_is_its_own(gloo: Gloo) -> None:
    gloo.form(1)
    gloo.groups._store.set("a key of the script", datum(gloo.others, "digits-0"))
    later = gloo.connect(gloo.others)
    gloo.groups.break_off()
    assert not is_ended(later)
