"""Who may connect to an agent: peers of the same job, and nobody else, whatever they send."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from queue import Queue
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.connection.admission import MAX_UNPROVEN
from agent.connection.handshake import (
    ATTEMPT_SECONDS,
    NONCE_BYTES,
    PROOF_BYTES,
    RESPONSE_BYTES,
    Challenge,
    HandshakeClient,
    RefusedError,
    connect,
    key_from_text,
    packed_address,
)
from agent.connection.listener import Inbox, Listener

KEY, OTHER_KEY = bytes(range(32)), bytes(32)
ADDRESS = packed_address(("10.0.0.1", 4711))
CHALLENGE = Challenge.draw(KEY, ADDRESS, Random(1).randbytes)


def client_at(now: float = 0.0, key: bytes = KEY, seconds: float = 99.0) -> HandshakeClient:
    return HandshakeClient(key, "echo", seconds, now, Random(2).randbytes)


def response_to(challenge: Challenge, key: bytes = KEY) -> bytes:
    client = client_at(key=key)
    client.connected(ADDRESS)
    return client.receive(challenge.nonce, 0.0)


@given(st.binary(min_size=RESPONSE_BYTES, max_size=RESPONSE_BYTES), st.integers(0, RESPONSE_BYTES * 8 - 1))
def test_no_response_but_the_right_one_is_accepted(guess: bytes, bit: int) -> None:
    assert CHALLENGE.accept(guess) is None
    flipped = bytearray(response_to(CHALLENGE))
    flipped[bit // 8] ^= 1 << bit % 8
    assert CHALLENGE.accept(bytes(flipped)) is None


def test_an_agent_that_does_not_have_the_key_is_refused() -> None:
    client = client_at()
    client.connected(ADDRESS)
    client.receive(CHALLENGE.nonce, 0.0)
    with pytest.raises(RefusedError, match="is no agent of this job"):
        client.receive(bytes(PROOF_BYTES), 0.0)


def test_a_challenge_does_not_show_the_key() -> None:
    assert repr(KEY)[2:-1] not in repr(CHALLENGE)


def test_a_peer_knocks_again_ever_more_slowly_where_the_agent_is_too_busy() -> None:
    """Its queue is full, or it has closed the connection as one too many, or it has lost it unseen."""
    client, ends = client_at(), []
    for error in (TimeoutError(), ConnectionResetError(), RefusedError()):
        if not isinstance(error, TimeoutError):
            client.connected(ADDRESS)
        client.fail(error, client.until)
        ends.append(client.until)
        client.begin(client.until)
    assert ends == [ATTEMPT_SECONDS, 3 * ATTEMPT_SECONDS, 7 * ATTEMPT_SECONDS]


@pytest.mark.parametrize("error", [ConnectionRefusedError("nobody listens"), OSError("no route")])
def test_an_agent_that_is_gone_is_missed_at_once(error: OSError) -> None:
    with pytest.raises(type(error), match=str(error)):
        client_at().fail(error, 0.1)


@pytest.mark.parametrize("text", ["", "00", "zz" * 32, "00" * 33])
def test_a_key_that_is_none_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="DLR_JOB_KEY is not 64 hexadecimal digits"):
        key_from_text(text)
    assert key_from_text(KEY.hex()) == KEY


# The shells, over real sockets.


@pytest.fixture
def listener(patient: None) -> Iterator[Listener]:
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


def stranger(listener: Listener, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection((listener.host, listener.port), 300, (source, 0))


def rest_of(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(4096):
            received += part
    return received


@pytest.mark.real
def test_who_has_another_key_or_asks_for_another_service_is_refused(
    listener: Listener, taken: Queue[socket.socket]
) -> None:
    with pytest.raises(RefusedError, match="another key"):
        connect(listener.host, listener.port, OTHER_KEY, "echo")
    with pytest.raises(RefusedError, match="has not begun to serve"):
        connect(listener.host, listener.port, KEY, "other")
    listener.withdraw("echo")
    with pytest.raises(RefusedError):
        connect(listener.host, listener.port, KEY, "echo")
    assert taken.empty()


@pytest.mark.real
def test_strangers_are_bounded_in_number_and_hold_up_nobody(
    listener: Listener, taken: Queue[socket.socket]
) -> None:
    with contextlib.ExitStack() as cleanup:
        idle = [cleanup.enter_context(stranger(listener, "127.0.0.2")) for _ in range(2 * MAX_UNPROVEN)]
        with connect(listener.host, listener.port, KEY, "echo") as connection:
            connection.sendall(b"hello")
            assert connection.recv(100) == b"hello"
        for each in idle[:MAX_UNPROVEN]:
            assert len(rest_of(each)) in (0, NONCE_BYTES)
        idle[-1].sendall(bytes(RESPONSE_BYTES))
        assert len(rest_of(idle[-1])) == NONCE_BYTES


@pytest.mark.real
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


@pytest.mark.real
def test_a_listener_has_one_address_alone() -> None:
    listener = Listener("127.0.0.2", KEY)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", listener.port), 300)
    listener.close()
    listener.close()
    with pytest.raises(OSError):
        Listener("203.0.113.7", KEY)


@pytest.mark.real
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
    assert theirs.recv(1) == b"" and inbox.take() == []
