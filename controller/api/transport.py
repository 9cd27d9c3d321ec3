"""I/O between a call and its answer: one aiohttp session, with a limit on every wait.

`kubernetes.aio` needs three times the CPU of a bare aiohttp call, and has no reliable time-out.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from yarl import URL

from controller import clock
from controller.api.calls import Answer, Call
from controller.api.pages import PAGE_BYTES
from controller.connection import RENEW_SECONDS, SOCKET_OPTIONS, Connection
from controller.errors import ApiError, PageTooLarge, SilentWatch, Unavailable

_READ_BUFFER_BYTES = 2**20


class WatchStream:
    """Open body of a watch, read in complete lines."""

    def __init__(self, response: aiohttp.ClientResponse, where: str) -> None:
        self._response = response
        self._where = where
        self._rest = list[bytes]()
        """Received part of the next line."""

    async def lines(self, idle_timeout_seconds: float) -> list[bytes] | None:
        """Return the lines that arrived, at least one; None at the end of the stream.

        Raises:
            SilentWatch: nothing arrives in time.
            Unavailable: the connection breaks.
        """
        while True:
            try:
                async with asyncio.timeout(idle_timeout_seconds):
                    chunk = await self._response.content.readany()
            except TimeoutError as error:
                raise SilentWatch(f"the watch on {self._where} is silent") from error
            except (aiohttp.ClientError, ConnectionError) as error:
                raise Unavailable(f"the watch on {self._where} broke: {_reason(error)}") from error
            if not chunk:
                return None
            first, *others = chunk.split(b"\n")
            self._rest.append(first)
            if others:
                complete = [b"".join(self._rest), *others[:-1]]
                self._rest = others[-1:]
                return complete


class Transport:
    """Sends calls to one API server. Open it with `async with`."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._ssl_context = connection.ssl_context()
        self._session: aiohttp.ClientSession | None = None
        self._renewing = asyncio.Lock()
        self._renew_at = 0.0

    def apart(self) -> Transport:
        """Return another transport to the same server, for another event loop."""
        return Transport(self.connection)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(self, call: Call, timeout_seconds: float) -> Answer:
        """Send a call; return the complete answer, whatever its status.

        Raises:
            ApiError: there is no answer in time.
            PageTooLarge: the answer has more bytes than the call allows.
        """
        try:
            async with asyncio.timeout(timeout_seconds), await self._request(call) as response:
                body = await _body(response, call.most_bytes)
                return Answer(self.connection, response.status, body, response.headers.get("Retry-After"))
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self._no_answer(call, error, timeout_seconds) from error

    @asynccontextmanager
    async def stream(self, call: Call, open_timeout_seconds: float) -> AsyncIterator[WatchStream]:
        """Open a watch; raise the typed error if the server refuses it."""
        try:
            async with asyncio.timeout(open_timeout_seconds):
                response = await self._request(call)
                if response.status >= 400:
                    async with response:
                        body = await response.read()
                    raise self.connection.refusal(response.status, body, response.headers.get("Retry-After"))
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self._no_answer(call, error, open_timeout_seconds) from error
        try:
            _keep_alive(response)
            yield WatchStream(response, call.path)
        finally:
            response.close()

    async def _request(self, call: Call) -> aiohttp.ClientResponse:
        refused = self.connection
        response = await self._ask(call)
        if response.status == 401 and await self._renewed(refused):
            response.close()
            response = await self._ask(call)
        return response

    async def _ask(self, call: Call) -> aiohttp.ClientResponse:
        headers = {"Accept": call.accept, **self.connection.authorization()}
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        return await self._open_session().request(
            call.method,
            URL(self.connection.server + call.path).with_query(call.query),
            data=call.body,
            headers=headers,
            proxy=self.connection.proxy,
            server_hostname=self.connection.server_name,
            allow_redirects=False,
        )

    async def _renewed(self, refused: Connection) -> bool:
        """Renew the credentials, unless another call has; return whether they differ from the refused
        ones."""
        async with self._renewing:
            renew, now = refused.renew, clock.monotonic()
            if self.connection is refused and renew is not None and now >= self._renew_at:
                self._renew_at = now + RENEW_SECONDS
                self.connection = await asyncio.to_thread(renew)
            return self.connection is not refused

    def _open_session(self) -> aiohttp.ClientSession:
        """Return the session, created at first use: aiohttp needs a running loop."""
        if self._session is None:
            # No limit on connections: every watch holds one, and callers limit their own calls.
            connector = aiohttp.TCPConnector(limit=0, ssl=self._ssl_context or True)
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None),
                read_bufsize=_READ_BUFFER_BYTES,
                # The server is near, so compression costs more than it saves.
                headers={"User-Agent": "dlr", "Accept-Encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    def _no_answer(self, call: Call, error: BaseException, timeout_seconds: float) -> ApiError:
        request = f"{call.method} {call.path}"
        if isinstance(error, TimeoutError):
            return self.connection.late(round(timeout_seconds, 1), request)
        if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
            return self.connection.untrusted(_reason(error))
        if isinstance(error, aiohttp.ClientConnectorError):
            number = error.os_error.errno
            reason = os.strerror(number) if number and number > 0 else _reason(error.os_error)
            return self.connection.unreachable(reason, processed=False)
        return self.connection.unreachable(f"the connection broke during {request}: {_reason(error)}")


async def _body(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    chunks, size = [], 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > most_bytes:
            response.close()
            raise PageTooLarge(size, PAGE_BYTES)
    return b"".join(chunks)


def _keep_alive(response: aiohttp.ClientResponse) -> None:
    transport = response.connection.transport if response.connection is not None else None
    connected = transport.get_extra_info("socket") if transport is not None else None
    if connected is not None:
        for option in SOCKET_OPTIONS:
            connected.setsockopt(*option)


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text or type(error).__name__
