"""Who may connect to an agent: peers of the same job, and nobody else, whatever they send."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.connection import handshake
from agent.connection import listener as listening
from agent.connection.handshake import (
    NONCE_BYTES,
    PROOF_BYTES,
    RESPONSE_BYTES,
    SERVICE_BYTES,
    Challenge,
    RefusedError,
    connect,
    key_from_text,
    packed_address,
)
from agent.connection.listener import MAX_UNPROVEN, Inbox, Listener

pytestmark = pytest.mark.real

KEY = bytes(range(32))
OTHER_KEY = bytes(32)
ADDRESS = ("10.0.0.1", 4711)
HANDSHAKE_SECONDS = listening.HANDSHAKE_SECONDS


@pytest.fixture(autouse=True)
def clock(patient: None, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of listeners, which stands still: a handshake is late where a test has it so."""
    now = [0.0]
    monkeypatch.setattr(listening, "HANDSHAKE_SECONDS", HANDSHAKE_SECONDS)
    monkeypatch.setattr(listening, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener("127.0.0.1", KEY)
    yield made
    made.close()


@pytest.fixture
def taken(listener: Listener) -> Queue[socket.socket]:
    """The connections that the service `echo` took over; it sends back what comes."""
    connections: Queue[socket.socket] = Queue()

    def echo(connection: socket.socket) -> None:
        connections.put(connection)

        def answer() -> None:
            with connection, contextlib.suppress(OSError):
                while data := connection.recv(100):
                    connection.sendall(data)

        threading.Thread(target=answer, daemon=True).start()

    listener.offer("echo", echo)
    return connections


def stranger(listener: Listener) -> socket.socket:
    return socket.create_connection((listener.host, listener.port), 300)


def rest_of(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(4096):
            received += part
    return received


def test_a_peer_is_connected_to_the_service_that_it_asks_for(
    listener: Listener, taken: Queue[socket.socket]
) -> None:
    with connect(listener.host, listener.port, KEY, "echo") as connection:
        connection.sendall(b"hello")
        assert connection.recv(100) == b"hello"
    assert taken.qsize() == 1


def test_what_a_peer_sends_right_after_its_proof_reaches_the_service(
    listener: Listener, taken: Queue[socket.socket]
) -> None:
    with stranger(listener) as connection:
        nonce = connection.recv(NONCE_BYTES)
        connection.sendall(response_to(nonce, (listener.host, listener.port)) + b"early")
        received = b""
        while len(received) < PROOF_BYTES + len(b"early"):
            received += connection.recv(100)
        assert b"early" in received


def response_to(nonce: bytes, address: tuple[str, int]) -> bytes:
    """What a peer that has connected to that address answers."""
    sent: list[bytes] = []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(nonce)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "create_connection", lambda *_: ours)
            patch.setattr(socket.socket, "setsockopt", lambda *_: None)
            patch.setattr(socket.socket, "getpeername", lambda _: address)
            with contextlib.suppress(OSError):
                connect(*address, KEY, "echo")
        sent.append(theirs.recv(4096))
    assert len(sent[0]) == RESPONSE_BYTES
    return sent[0]


def test_another_key_is_refused_by_both_sides(listener: Listener, taken: Queue[socket.socket]) -> None:
    with pytest.raises(RefusedError, match="another key"):
        connect(listener.host, listener.port, OTHER_KEY, "echo")
    assert taken.empty()
    impostor = socket.create_server(("127.0.0.1", 0))

    def pretend() -> None:
        connection, _ = impostor.accept()
        connection.sendall(bytes(NONCE_BYTES))
        connection.recv(RESPONSE_BYTES)
        connection.sendall(bytes(PROOF_BYTES))

    threading.Thread(target=pretend, daemon=True).start()
    with impostor, pytest.raises(RefusedError, match="is no agent of this job"):
        connect("127.0.0.1", impostor.getsockname()[1], KEY, "echo")


def test_a_service_that_is_not_offered_is_refused(listener: Listener, taken: Queue[socket.socket]) -> None:
    with pytest.raises(RefusedError, match="has not begun to serve"):
        connect(listener.host, listener.port, KEY, "other")
    listener.withdraw("echo")
    with pytest.raises(RefusedError):
        connect(listener.host, listener.port, KEY, "echo")
    assert taken.empty()


def test_a_recorded_handshake_is_of_no_use_again(listener: Listener, taken: Queue[socket.socket]) -> None:
    with stranger(listener) as first:
        recorded = response_to(first.recv(NONCE_BYTES), (listener.host, listener.port))
        first.sendall(recorded)
        assert len(first.recv(PROOF_BYTES)) == PROOF_BYTES
    assert taken.get(timeout=300)
    with stranger(listener) as again:
        assert len(again.recv(NONCE_BYTES)) == NONCE_BYTES
        again.sendall(recorded)
        assert rest_of(again) == b""
    assert taken.empty()


def test_a_servers_proof_is_no_clients(listener: Listener, taken: Queue[socket.socket]) -> None:
    """A stranger who has an agent prove its key learns nothing that another agent accepts."""
    victim, target = (
        Challenge.draw(KEY, packed_address(ADDRESS)),
        Challenge.draw(KEY, packed_address(ADDRESS)),
    )
    accepted = victim.accept(response_to(victim.nonce, ADDRESS))
    assert accepted is not None
    forged = b"echo".ljust(SERVICE_BYTES, b"\0") + victim.nonce + accepted[1]
    assert target.accept(forged) is None
    assert victim.accept(forged) is None


def test_a_stranger_who_got_the_address_of_an_agent_passes_no_handshake_on_to_another(
    listener: Listener, taken: Queue[socket.socket]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as relay:

        def pass_on() -> None:
            peer, _ = relay.accept()
            with peer, stranger(listener) as agent:
                peer.sendall(agent.recv(NONCE_BYTES))
                agent.sendall(peer.recv(RESPONSE_BYTES))
                peer.sendall(rest_of(agent))

        thread = threading.Thread(target=pass_on, daemon=True)
        thread.start()
        with pytest.raises(RefusedError, match="address"):
            connect("127.0.0.1", relay.getsockname()[1], KEY, "echo")
        thread.join()
    assert taken.empty()


@settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=200,
)
@given(st.binary(min_size=RESPONSE_BYTES, max_size=RESPONSE_BYTES), st.integers(0, RESPONSE_BYTES * 8 - 1))
def test_no_response_but_the_right_one_is_accepted(guess: bytes, bit: int) -> None:
    challenge = Challenge.draw(KEY, packed_address(ADDRESS))
    assert challenge.accept(guess) is None
    right = response_to(challenge.nonce, ADDRESS)
    assert challenge.accept(right) is not None
    flipped = bytearray(right)
    flipped[bit // 8] ^= 1 << bit % 8
    assert challenge.accept(bytes(flipped)) is None


def test_a_challenge_does_not_show_the_key() -> None:
    assert repr(KEY)[2:-1] not in repr(Challenge.draw(KEY, packed_address(ADDRESS)))


@pytest.mark.parametrize("sent", [0, 1, NONCE_BYTES, RESPONSE_BYTES - 1])
def test_a_truncated_handshake_is_closed_within_its_time(
    listener: Listener, taken: Queue[socket.socket], clock: list[float], sent: int
) -> None:
    with stranger(listener) as connection:
        nonce = connection.recv(NONCE_BYTES)
        connection.sendall(response_to(nonce, (listener.host, listener.port))[:sent])
        clock[0] += HANDSHAKE_SECONDS
        assert rest_of(connection) == b""
    assert taken.empty()


def test_a_handshake_that_trickles_is_closed_within_its_time(
    listener: Listener, taken: Queue[socket.socket], clock: list[float]
) -> None:
    with stranger(listener) as connection:
        right = response_to(connection.recv(NONCE_BYTES), (listener.host, listener.port))
        with contextlib.suppress(OSError):  # it is closed by then
            for byte in right[:40]:
                connection.sendall(bytes((byte,)))
                clock[0] += HANDSHAKE_SECONDS / 20
        assert rest_of(connection) == b""
    assert taken.empty()


def test_a_server_that_trickles_is_given_up_within_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(
        handshake, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: None)
    )

    def trickle(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            for _ in range(NONCE_BYTES - 1):
                connection.sendall(b"x")
                now[0] += handshake.CONNECT_SECONDS / 4

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=trickle, args=(server,), daemon=True).start()
        with pytest.raises(TimeoutError):
            connect("127.0.0.1", server.getsockname()[1], KEY, "echo")


def test_idle_strangers_are_bounded_in_number_and_hold_up_nobody(
    listener: Listener, taken: Queue[socket.socket], clock: list[float]
) -> None:
    with contextlib.ExitStack() as cleanup:
        idle = [cleanup.enter_context(stranger(listener)) for _ in range(2 * MAX_UNPROVEN)]
        with connect(listener.host, listener.port, KEY, "echo") as connection:
            connection.sendall(b"hello")
            assert connection.recv(100) == b"hello"
        assert len(listener._unproven) <= MAX_UNPROVEN
        clock[0] += HANDSHAKE_SECONDS
        for each in idle:
            assert len(rest_of(each)) in (0, NONCE_BYTES)
        assert not listener._unproven


def test_a_peer_that_has_answered_goes_before_strangers_who_have_just_come(
    listener: Listener, taken: Queue[socket.socket]
) -> None:
    is_busy, goes_on = threading.Event(), threading.Event()

    def keep_busy(_: socket.socket) -> None:
        is_busy.set()
        goes_on.wait(300)

    listener.offer("busy", keep_busy)
    with contextlib.ExitStack() as cleanup:
        peer = cleanup.enter_context(stranger(listener))
        nonce = peer.recv(NONCE_BYTES)
        busy = threading.Thread(target=lambda: connect(listener.host, listener.port, KEY, "busy").close())
        busy.start()
        assert is_busy.wait(300)
        for _ in range(2 * MAX_UNPROVEN):
            cleanup.enter_context(stranger(listener))
        peer.sendall(response_to(nonce, (listener.host, listener.port)))
        goes_on.set()
        busy.join()
        assert len(peer.recv(PROOF_BYTES)) == PROOF_BYTES
    assert taken.get(timeout=300)


def test_a_flood_from_one_address_closes_none_of_another(
    listener: Listener, taken: Queue[socket.socket]
) -> None:
    """A peer that is slow to answer keeps its place, however many connections a stranger opens meanwhile."""
    with contextlib.ExitStack() as cleanup:
        peer = cleanup.enter_context(stranger(listener))
        nonce = peer.recv(NONCE_BYTES)
        for _ in range(2 * MAX_UNPROVEN):
            theirs = socket.create_connection((listener.host, listener.port), 300, ("127.0.0.2", 0))
            cleanup.enter_context(theirs)
        theirs.recv(NONCE_BYTES)  # all are accepted
        peer.sendall(response_to(nonce, (listener.host, listener.port)))
        assert len(peer.recv(PROOF_BYTES)) == PROOF_BYTES
    assert taken.get(timeout=300)


def test_connections_of_many_addresses_are_counted_and_forgotten_each_with_its_own(
    listener: Listener, taken: Queue[socket.socket]
) -> None:
    for last in range(2, 40):
        for _ in range(3):
            socket.create_connection((listener.host, listener.port), 300, (f"127.0.0.{last}", 0)).close()
    with connect(listener.host, listener.port, KEY, "echo"):
        pass
    deadline = time.monotonic() + 300
    while listener._unproven and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not listener._unproven and not listener._sources


def test_a_flood_of_200_connections_a_second_closes_none_before_its_time() -> None:
    assert MAX_UNPROVEN > 200 * HANDSHAKE_SECONDS


@pytest.mark.parametrize("too_busy", [TimeoutError("timed out"), "closed", "silent"])
def test_a_peer_knocks_again_where_the_agent_is_too_busy(
    listener: Listener,
    taken: Queue[socket.socket],
    monkeypatch: pytest.MonkeyPatch,
    too_busy: OSError | str,
) -> None:
    """Its queue is full, it has closed the connection as one too many, or it has lost it unseen."""
    knock, seen = socket.create_connection, list[float]()
    silent = socket.create_server(("127.0.0.1", 0))

    def knocks(address: tuple[str, int], seconds: float) -> socket.socket:
        seen.append(seconds)
        if len(seen) > 2:
            return knock(address, seconds)
        if isinstance(too_busy, OSError):
            raise too_busy
        if too_busy == "silent":
            return knock(silent.getsockname(), seconds)
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours

    monkeypatch.setattr(socket, "create_connection", knocks)
    with silent, connect(listener.host, listener.port, KEY, "echo") as connection:
        connection.sendall(b"hello")
        assert connection.recv(100) == b"hello"
    assert len(seen) >= 3 and max(seen[:3]) <= 4 * handshake.ATTEMPT_SECONDS


def test_a_peer_that_is_stopped_while_it_proves_the_key_does_it_again(
    listener: Listener, taken: Queue[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (handshake, listening):
        monkeypatch.setattr(module, "HANDSHAKE_SECONDS", 0.1)
        monkeypatch.setattr(module, "time", time)
    challenged, times = handshake._challenged, iter([1])

    def stopped(*place: Any) -> tuple[socket.socket, bytes]:
        challenge = challenged(*place)
        if next(times, None):
            while listener._unproven:
                time.sleep(0.01)
            monkeypatch.setattr(listening, "HANDSHAKE_SECONDS", 300.0)
        return challenge

    monkeypatch.setattr(handshake, "_challenged", stopped)
    with connect(listener.host, listener.port, KEY, "echo", 300.0) as connection:
        connection.sendall(b"hello")
        assert connection.recv(100) == b"hello"


def test_a_response_that_comes_in_time_counts_however_late_the_agent_reads_it(
    listener: Listener, taken: Queue[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "HANDSHAKE_SECONDS", 0.05)
    monkeypatch.setattr(listening, "time", time)
    is_stopped, goes_on, expire = threading.Event(), threading.Event(), listener._expire

    def stop(looked_at: float) -> None:
        if listener._unproven and not is_stopped.is_set():
            is_stopped.set()
            goes_on.wait(300)
        expire(looked_at)

    monkeypatch.setattr(listener, "_expire", stop)
    with stranger(listener) as connection:
        nonce = connection.recv(NONCE_BYTES)
        assert is_stopped.wait(300)
        connection.sendall(response_to(nonce, (listener.host, listener.port)))
        time.sleep(0.1)
        goes_on.set()
        assert len(connection.recv(PROOF_BYTES)) == PROOF_BYTES


def test_a_peer_gives_up_within_the_time_that_it_is_given() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begun_at = time.monotonic()
        with pytest.raises(TimeoutError):
            connect("127.0.0.1", silent.getsockname()[1], KEY, "echo", 0.3)
    assert time.monotonic() - begun_at < handshake.CONNECT_SECONDS


def test_a_service_that_fails_harms_no_other_connection(
    listener: Listener, taken: Queue[socket.socket]
) -> None:
    def fail(connection: socket.socket) -> None:
        connection.close()
        raise RuntimeError("of this connection")

    listener.offer("bad", fail)
    with pytest.raises(OSError):
        connect(listener.host, listener.port, KEY, "bad")
    with connect(listener.host, listener.port, KEY, "echo") as connection:
        connection.sendall(b"hello")
        assert connection.recv(100) == b"hello"


def test_a_listener_has_one_address_alone() -> None:
    listener = Listener("127.0.0.2", KEY)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", listener.port), 300)
    listener.close()
    listener.close()
    with pytest.raises(OSError):
        Listener("203.0.113.7", KEY)


def test_an_inbox_that_is_closed_closes_what_comes() -> None:
    inbox = Inbox()
    ours, theirs = socket.socketpair()
    inbox.put(ours)
    assert inbox.take() == [ours]
    inbox.put(ours)
    inbox.close()
    inbox.close()
    assert theirs.recv(1) == b""
    ours, theirs = socket.socketpair()
    inbox.put(ours)
    assert theirs.recv(1) == b""
    assert inbox.take() == []


@pytest.mark.parametrize("text", ["", "00", "zz" * 32, "00" * 33])
def test_a_key_that_is_none_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="DLR_JOB_KEY is not 64 hexadecimal digits"):
        key_from_text(text)
    assert key_from_text(KEY.hex()) == KEY
