"""Carries out the decisions of `PeerWatch`: a thread for each watched member keeps a connection to it.

The connection is to the member's store, with an empty request every BEAT_SECONDS. The kernel breaks it when
requests are not acknowledged, which the peer's kernel does even for a busy or stopped agent, but not on a
host without power.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence

from torch.distributed import DistError, Store  # type: ignore[attr-defined]

from agent.connection.handshake import RefusedError, connect
from agent.connection.store_server import SERVICE
from agent.connection.store_state import Operation, encode
from agent.facts.world import AgentWorld, Member
from agent.peers.watch import SILENT_SECONDS, Address, PeerWatch, read_address
from crds.agent_report import SilentPeer

logger = logging.getLogger(__name__)

BEAT_SECONDS = 0.25
UNACKNOWLEDGED_SECONDS = 1.5
"""Time without an acknowledgement after which the kernel breaks a connection. It checks when it sends again,
so a peer is found silent some 0.4 s later (tests/agent/peers/test_watcher.py)."""
DIAL_SECONDS = 1.0
"""Time limit of an attempt to connect."""
PAUSE_SECONDS = 0.5
"""Pause between two attempts."""
MAX_PAUSE_SECONDS = 5.0
"""Longest pause between two attempts to read the addresses of a round."""
RECEIVE_BYTES = 4_096

_BEAT = encode(Operation.CHECK, ())


class PeerWatcher:
    """Watches the neighbours of this agent in the newest round, until `close`.

    Args:
        host: address at which this agent listens.
        key: the job's key.
    """

    def __init__(self, me: Member, host: str, port: int, key: bytes) -> None:
        self._me, self._address, self._key = me, f"{host} {port}", key
        self._round: _RoundWatch | None = None
        self._on_change: Callable[[], None] = lambda: None

    def serve(self, on_change: Callable[[], None]) -> None:
        """Set the function that is called, in any thread, when the set of silent members changes."""
        self._on_change = on_change

    def meet(self, agents: Store, world: AgentWorld) -> None:
        """Begin to watch the neighbours in a world whose members have met, in place of the last.

        Args:
            agents: the agents' store of the round.
        """
        self.close()
        rank = world.members.index(self._me)
        if len(world.members) > 1:
            watch = PeerWatch(world.members, rank)
            self._round = _RoundWatch(watch, agents, rank, self._address, self._key, self._on_change)
            self._round.start()

    def to_status(self) -> tuple[SilentPeer, ...] | None:
        """Return the members that do not answer; None if all do."""
        silent = self._round.silent() if self._round is not None else ()
        return tuple(SilentPeer(member.index, member.incarnation) for member in silent) or None

    def close(self) -> None:
        """Stop watching. May be called again."""
        if self._round is not None:
            self._round.stop()
            self._round = None


class _RoundWatch(threading.Thread):
    """Watch of one round. This thread reads the addresses; each watched member has another."""

    def __init__(
        self,
        watch: PeerWatch,
        agents: Store,
        rank: int,
        address: str,
        key: bytes,
        on_change: Callable[[], None],
    ) -> None:
        super().__init__(name="dlr-peers", daemon=True)
        self._watch, self._agents, self._rank = watch, agents, rank
        self._address, self._key, self._on_change = address, key, on_change
        self._addresses: dict[int, Address] = {}
        self._lines: dict[int, threading.Event] = {}
        """Event that ends each member's thread, by rank."""
        self._reported: tuple[Member, ...] = ()
        self._lock = threading.Lock()
        self._over = threading.Event()

    def stop(self) -> None:
        self._over.set()
        with self._lock:
            for line in self._lines.values():
                line.set()

    def silent(self) -> tuple[Member, ...]:
        with self._lock:
            return self._watch.silent(time.monotonic())

    def run(self) -> None:
        ranks = self._watch.reach
        try:
            addresses = self._exchange(ranks)
        except (DistError, ValueError) as error:
            logger.info("the neighbours in this round are not watched: %s", error)
            return
        for rank, text in zip(ranks, addresses, strict=False):
            try:
                self._addresses[rank] = read_address(text)
            except ValueError as error:
                logger.warning(
                    "the member with rank %d is not watched, for want of an address: %s", rank, error
                )
        if self._addresses:
            self._watch.leave_out(set(ranks) - self._addresses.keys())
            self._look()

    def _exchange(self, ranks: Sequence[int]) -> list[bytes]:
        """Publish this agent's address, and return those of the others; empty if the round is over before."""
        self._agents.set(f"address/{self._rank}", self._address)
        keys, wait_seconds = [f"address/{rank}" for rank in ranks], 0.0
        while not self._over.wait(wait_seconds):
            if self._agents.check(keys):
                return self._agents.multi_get(keys)
            wait_seconds = min(2 * wait_seconds + 0.05, MAX_PAUSE_SECONDS)
        return []

    def _look(self) -> None:
        """Start and end threads for the members to watch, and report a change of the silent ones."""
        with self._lock:
            now = time.monotonic()
            wanted = self._watch.watched(now) if not self._over.is_set() else []
            for rank in set(self._lines).difference(wanted):
                self._lines.pop(rank).set()
            for rank in set(wanted).difference(self._lines):
                over = self._lines[rank] = threading.Event()
                name = f"dlr-peer-{rank}"
                threading.Thread(target=self._follow, args=(rank, over), name=name, daemon=True).start()
            silent = self._watch.silent(now)
            is_news, self._reported = silent != self._reported, silent
        if is_news and not self._over.is_set():
            logger.info("members that do not answer: %s", ", ".join(map(str, silent)) or "none")
            self._on_change()

    def _follow(self, rank: int, over: threading.Event) -> None:
        """Keep a connection to a member until `over`."""
        host, port = self._addresses[rank]
        while not over.is_set():
            try:
                connection = connect(host, port, self._key, SERVICE, DIAL_SECONDS)
            except RefusedError:
                self._answered(rank)  # it is alive, but busy
            except OSError as error:
                self._failed(rank, is_refused=isinstance(error, ConnectionError))
            else:
                self._answered(rank)
                with connection:
                    is_silent = not isinstance(keep(connection, over), ConnectionError)
                self._failed(
                    rank, is_refused=not is_silent, silent_seconds=SILENT_SECONDS if is_silent else 0.0
                )
                if is_silent:
                    continue
            over.wait(PAUSE_SECONDS)

    def _answered(self, rank: int) -> None:
        with self._lock:
            self._watch.answered(rank)
        self._look()

    def _failed(self, rank: int, *, is_refused: bool, silent_seconds: float = 0.0) -> None:
        with self._lock:
            self._watch.failed(rank, time.monotonic(), is_refused=is_refused, silent_seconds=silent_seconds)
        self._look()


def keep(connection: socket.socket, over: threading.Event) -> OSError:
    """Send heartbeats over a connection to a store until it breaks, or until `over`.

    Returns:
        The error of the connection; a ConnectionError if the other side has closed it.
    """
    milliseconds = int(UNACKNOWLEDGED_SECONDS * 1000)
    with contextlib.suppress(OSError):  # in a sandbox without it, a lost host is noticed by its Lease
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    connection.setblocking(False)
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    try:
        while not over.is_set():
            with contextlib.suppress(BlockingIOError):
                connection.send(_BEAT)
            with contextlib.suppress(BlockingIOError):
                if not connection.recv(RECEIVE_BYTES):
                    break
            if poll.poll(BEAT_SECONDS * 1000) and (number := _pending_error(connection)):
                return OSError(number, "the connection broke")
    except OSError as error:
        return error
    return ConnectionResetError("the connection has ended")


def _pending_error(connection: socket.socket) -> int:
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
