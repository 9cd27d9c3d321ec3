"""A port that anybody may reach."""

import asyncio
import contextlib

import pytest
from aiohttp import web

from controller.serving import listening
from controller.serving.listening import oldest_of_most, serve_http

WAIT_SECONDS = 300.0
NOT_HTTP = [
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: a\r\n" * 100 + b"\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\r\n\r\n",
]


@contextlib.asynccontextmanager
async def served():
    async def answer(request):
        if request.path == "/defect":
            raise KeyError("ours")
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with serve_http(app, "127.0.0.1", shutdown_seconds=0.1) as port:
        yield port


async def ask(port, request=b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("addresses", "place"),
    [("a", 0), ("ab", 0), ("abb", 1), (["kubelet", "flood", "flood"], 1), ("abab", 0), ("cabba", 1)],
)
def test_the_oldest_connection_of_the_address_that_has_the_most_is_closed(addresses, place):
    assert oldest_of_most(addresses) == place


@pytest.mark.real
async def test_what_is_no_request_is_refused_and_not_logged(caplog):
    async with served() as port:
        for request in NOT_HTTP:
            assert (await ask(port, request)).split(b" ")[1] == b"400", request
        body = b"Content-Encoding: gzip\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc"
        await ask(port, b"GET / HTTP/1.1\r\nHost: x\r\n" + body)
    assert not caplog.records


@pytest.mark.real
async def test_defect_of_ours_is_logged_with_its_traceback(caplog):
    async with served() as port:
        assert (await ask(port, b"GET /defect HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).split(b" ")[
            1
        ] == b"500"
    assert [record.exc_info[0] for record in caplog.records] == [KeyError]


@pytest.mark.real
async def test_whoever_holds_connections_keeps_nobody_out(monkeypatch):
    monkeypatch.setattr(listening, "MOST_CONNECTIONS", 4)
    async with served() as port:
        held = []
        kubelet, probe = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
        for _ in range(12):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nX: half of a request\r\n")
            held.append((reader, writer))
            assert (await ask(port)).endswith(b"ok")
        async with asyncio.timeout(WAIT_SECONDS):
            for reader, _ in held[:8]:
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b"", "the oldest are closed"
        assert not held[-1][0].at_eof()
        probe.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(WAIT_SECONDS):
            assert (await kubelet.read()).endswith(b"ok"), (
                "that of another address, the oldest of all, is not"
            )
        probe.close()
        for _, writer in held:
            writer.close()
