"""The controller's attempts to connect to agents, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time

import pytest

from reconcilers.worker.dialling import DIAL_SECONDS, MOST_AT_ONCE, TcpDials

pytestmark = pytest.mark.real
MOST_SECONDS = 30.0
NAMESPACE = "n"


async def outcome(dials: TcpDials, host: str, port: int) -> tuple[bool, float]:
    """Ask until it is found out; return the seconds, too."""
    begun = time.monotonic()
    async with asyncio.timeout(MOST_SECONDS):
        assert dials.answers(NAMESPACE, host, port) is None
        await asyncio.gather(*(task for _, task in dials._under_way.values()))
    found = dials.answers(NAMESPACE, host, port)
    assert found is not None
    return found, time.monotonic() - begun


async def test_who_listens_answers_and_who_does_not_does_not() -> None:
    dials = TcpDials()
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        assert (await outcome(dials, host, port))[0] is True
    assert dials.answers(NAMESPACE, host, port) is True, "an outcome is kept for a moment"
    assert (await outcome(TcpDials(), host, port))[0] is False


async def test_an_address_that_sends_no_word_is_given_up() -> None:
    """A queue that is full: the kernel drops what asks for a connection, as a host without power does."""
    with contextlib.ExitStack() as ending:
        server = ending.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            knock = ending.enter_context(socket.socket())
            knock.setblocking(False)
            knock.connect_ex(server.getsockname())
        found, seconds = await outcome(TcpDials(), *server.getsockname())
    assert found is False and seconds >= 0.9 * DIAL_SECONDS


async def test_one_attempt_is_under_way_at_a_time() -> None:
    dials = TcpDials()
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(5):
            assert dials.answers(NAMESPACE, *server.getsockname()) is None
        assert len(dials._under_way) == 1
        await asyncio.gather(*(task for _, task in dials._under_way.values()))
    assert not dials._under_way


async def test_a_namespace_leaves_places_to_others_however_many_of_its_workers_are_silent() -> None:
    dials = TcpDials()
    for namespace in ("a", "b", "c"):
        for port in range(1, 200):
            dials.answers(namespace, f"127.0.0.{ord(namespace)}", port)
    places = [
        [each for each, _ in dials._under_way.values()].count(namespace) for namespace in ("a", "b", "c")
    ]
    assert places[0] == MOST_AT_ONCE // 2 and min(places) >= MOST_AT_ONCE // 8
    assert sum(places) < MOST_AT_ONCE
    await asyncio.gather(*(task for _, task in dials._under_way.values()))
