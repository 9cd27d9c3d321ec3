"""The controller's attempts to connect to agents."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from reconcilers.worker.dialling import DIAL_SECONDS, MOST_AT_ONCE, TcpDials

MOST_SECONDS = 30.0
NAMESPACE = "n"


async def ended(dials: TcpDials) -> None:
    await asyncio.gather(*(task for _, task in dials._under_way.values()))


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No host answers, as one without power does not."""

    async def connects(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "open_connection", connects)


@pytest.mark.real
async def test_who_listens_answers_and_who_does_not_does_not() -> None:
    async with asyncio.timeout(MOST_SECONDS):
        dials = TcpDials()
        with socket.create_server(("127.0.0.1", 0)) as server:
            host, port = server.getsockname()
            assert dials.answers(NAMESPACE, host, port) is None
            await ended(dials)
        assert dials.answers(NAMESPACE, host, port) is True, "an outcome is kept for a moment"
        dials = TcpDials()
        dials.answers(NAMESPACE, host, port)
        await ended(dials)
        assert dials.answers(NAMESPACE, host, port) is False


@pytest.mark.usefixtures("silent")
async def test_an_address_that_sends_no_word_is_given_up_after_one_attempt() -> None:
    time = asyncio.get_running_loop().time
    dials, begun = TcpDials(time), time()
    for _ in range(5):
        assert dials.answers(NAMESPACE, "10.0.0.1", 1) is None
    assert len(dials._under_way) == 1
    await ended(dials)
    assert dials.answers(NAMESPACE, "10.0.0.1", 1) is False and not dials._under_way
    assert time() - begun == pytest.approx(DIAL_SECONDS)


@pytest.mark.usefixtures("silent")
async def test_a_namespace_leaves_places_to_others_however_many_of_its_workers_are_silent() -> None:
    dials = TcpDials(lambda: 0.0)
    for namespace in "abc":
        for port in range(1, 200):
            dials.answers(namespace, namespace, port)
    places = [[each for each, _ in dials._under_way.values()].count(namespace) for namespace in "abc"]
    assert places[0] == MOST_AT_ONCE // 2 and min(places) >= MOST_AT_ONCE // 8
    assert sum(places) < MOST_AT_ONCE
    await ended(dials)
