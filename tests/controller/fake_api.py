"""A tiny API server: a few collections, versions, watches, and faults on demand; in memory, or over real HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from controller.api.calls import Answer
from controller.api.pages import PAGE_BYTES
from controller.client import AsyncClient
from controller.connection import Connection
from controller.errors import PageTooLarge, SilentWatch
from tests.reconcilers.api import merged


class FakeApi:
    def __init__(self):
        self.version = 100
        self.objects = {}  # path -> object
        self.history = []  # (version, collection path, event)
        self.requests = []  # (method, path, query, content type, body)
        self.faults = []  # answers to give instead, first come first served: (status, headers, body)
        self.oldest = 0
        self.changed = asyncio.Event()
        self.running = asyncio.Event()
        self.running.set()
        self.watching = asyncio.Event()
        self.watching.set()
        self.watches = 0
        self.closing = False
        self.url = ""

    # what a test does to it

    def put(self, collection, obj):
        path = self._object_path(collection, obj)
        self.version += 1
        kind = "MODIFIED" if path in self.objects else "ADDED"
        obj = json.loads(json.dumps(obj))
        obj["metadata"]["resourceVersion"] = str(self.version)
        obj["metadata"].setdefault("uid", f"uid-{self.version}")
        self.objects[path] = obj
        self._tell(collection, kind, obj)
        return obj

    def remove(self, collection, obj):
        self.version += 1
        obj = self.objects.pop(self._object_path(collection, obj))
        self._tell(
            collection,
            "DELETED",
            {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}},
        )

    def stop_answering(self):
        self.running.clear()

    def go_on(self):
        self.running.set()

    def hold_watches(self):
        """Calls are answered, but watches tell nothing for now."""
        self.watching.clear()

    def release_watches(self):
        self.watching.set()

    def fail_next(self, status, body=None, times=1, **headers):
        self.faults += [(status, headers, body)] * times

    # the server

    def _object_path(self, collection, obj):
        namespace = obj["metadata"].get("namespace")
        head, _, plural = collection.rpartition("/")
        middle = f"/namespaces/{namespace}" if namespace else ""
        return f"{head}{middle}/{plural}/{obj['metadata']['name']}"

    def _tell(self, collection, kind, obj):
        self.history.append((self.version, collection, {"type": kind, "object": obj}))
        self._wake()

    def _wake(self):
        self.changed.set()
        self.changed = asyncio.Event()

    async def answer(self, method, path, query, content_type, body):
        """The status, headers and content of an answer; the content of a watch is an iterator of events."""
        self.requests.append((method, path, query, content_type, body))
        await self.running.wait()
        if self.faults:
            status, headers, fault = self.faults.pop(0)
            return status, headers, fault or {}
        if "watch" in query:
            if int(query["resourceVersion"]) < self.oldest:
                return self._refuse(410, "Expired", "too old resource version")
            return 200, {}, self._events(self._collection(path), int(query["resourceVersion"]))
        if method == "GET":
            return self._get(path, query)
        return getattr(self, f"_{method.lower()}")(path, json.loads(body) if body else None)

    def _collection(self, path):
        head, sep, tail = path.partition("/namespaces/")
        return f"{head}/{tail.split('/')[1]}" if sep and tail.count("/") else path

    def _get(self, path, query):
        if path == "/version":
            return 200, {}, {"gitVersion": "v1.37.0-fake"}
        if path in self.objects:
            return 200, {}, self.objects[path]
        collection = self._collection(path)
        if path.rpartition("/")[2] != collection.rpartition("/")[2]:
            return self._refuse(404, "NotFound", f"{path} not found")
        items = [
            {k: v for k, v in o.items() if k not in ("kind", "apiVersion")}
            for p, o in sorted(self.objects.items())
            if self._collection(p.rpartition("/")[0]) == collection
        ]
        start, limit = int(query.get("continue", 0)), int(query.get("limit", 0))
        metadata = {"resourceVersion": str(self.version)}
        if limit and start + limit < len(items):
            metadata["continue"] = str(start + limit)
        return 200, {}, {"items": items[start : start + limit if limit else None], "metadata": metadata}

    def _post(self, collection, obj):
        path = f"{collection}/{obj['metadata']['name']}"
        if path in self.objects:
            return self._refuse(409, "AlreadyExists", f"{path} already exists")
        return 201, {}, self.put(self._collection(collection), obj)

    def _put(self, path, obj):
        current = self.objects.get(path)
        if current is None:
            return self._refuse(404, "NotFound", f"{path} not found")
        if obj["metadata"].get("resourceVersion") != current["metadata"]["resourceVersion"]:
            return self._refuse(409, "Conflict", "the object has been modified")
        return 200, {}, self.put(self._collection(path.rpartition("/")[0]), obj)

    def _patch(self, path, patch):
        path = path.removesuffix("/status")
        current = self.objects.get(path)
        if current is None:
            return self._refuse(404, "NotFound", f"{path} not found")
        wanted = patch.get("metadata", {}).get("resourceVersion")
        if wanted and wanted != current["metadata"]["resourceVersion"]:
            return self._refuse(409, "Conflict", "the object has been modified")
        return 200, {}, self.put(self._collection(path.rpartition("/")[0]), merged(current, patch))

    def _delete(self, path, options):
        current = self.objects.get(path)
        if current is None:
            return self._refuse(404, "NotFound", f"{path} not found")
        uid = (options or {}).get("preconditions", {}).get("uid")
        if uid and uid != current["metadata"]["uid"]:
            return self._refuse(409, "Conflict", "the UID in the precondition does not match")
        self.remove(self._collection(path.rpartition("/")[0]), current)
        return 200, {}, {"kind": "Status", "status": "Success"}

    async def _events(self, watched, at):
        self.watches += 1
        while not self.closing:
            changed = self.changed
            await self.running.wait()
            await self.watching.wait()
            if at < self.oldest:
                yield {"type": "ERROR", "object": _status(410, "Expired", "too old")}
                return
            for version, collection, event in list(self.history):
                if version > at and collection == watched:
                    at = version
                    yield event
            await changed.wait()

    def _refuse(self, code, reason, message):
        return code, {}, _status(code, reason, message)


async def _send(response, event):
    await response.write(json.dumps(event).encode() + b"\n")


def _status(code, reason, message):
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}


class MemoryTransport:
    """In place of `Transport`: calls reach a fake server without a socket."""

    def __init__(self, api):
        self.api = api

    def apart(self):
        return MemoryTransport(self.api)

    async def close(self):
        pass

    async def send(self, call, timeout_seconds):
        status, headers, content = await self._ask(call, timeout_seconds)
        body = json.dumps(content).encode()
        if len(body) > call.most_bytes:
            raise PageTooLarge(len(body), PAGE_BYTES)
        return Answer(connection_to("http://memory"), status, body, headers.get("Retry-After"))

    @asynccontextmanager
    async def stream(self, call, open_timeout_seconds):
        status, headers, content = await self._ask(call, open_timeout_seconds)
        if status >= 400:
            body = json.dumps(content).encode()
            raise connection_to("http://memory").refusal(status, body, headers.get("Retry-After"))
        stream = MemoryStream(content)
        try:
            yield stream
        finally:
            await stream.close()

    async def _ask(self, call, timeout_seconds):
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self.api.answer(
                    call.method, call.path, dict(call.query), call.content_type, call.body or b""
                )
        except TimeoutError as error:
            request = f"{call.method} {call.path}"
            raise connection_to("http://memory").late(round(timeout_seconds, 1), request) from error


class MemoryStream:
    """In place of `WatchStream`."""

    def __init__(self, events):
        self._events = events
        self._next = None

    async def lines(self, idle_timeout_seconds):
        if self._next is None:
            self._next = asyncio.ensure_future(anext(self._events, None))
        done, _ = await asyncio.wait([self._next], timeout=idle_timeout_seconds)
        if not done:
            raise SilentWatch("the watch is silent")
        event, self._next = self._next.result(), None
        return None if event is None else [json.dumps(event).encode()]

    async def close(self):
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait([self._next])
        await self._events.aclose()


def memory_client(api: FakeApi, **options) -> AsyncClient:
    return AsyncClient(connection_to("http://memory"), transport=MemoryTransport(api), **options)


@asynccontextmanager
async def memory_api(**options) -> AsyncIterator[tuple[FakeApi, AsyncClient]]:
    """One in memory, and a client of it."""
    api = FakeApi()
    yield api, memory_client(api, **options)


async def _handle(api, request):
    status, headers, content = await api.answer(
        request.method, request.path, dict(request.query), request.content_type, await request.read()
    )
    if isinstance(content, dict | list):
        response = web.json_response(content, status=status)
        response.headers.update(headers)
        return response
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"\n")  # aiohttp keeps the headers back until something is written
    with suppress(ConnectionError):
        async for event in content:
            await _send(response, event)
    return response


@asynccontextmanager
async def fake_api() -> AsyncIterator[FakeApi]:
    """One over real HTTP."""
    api = FakeApi()
    app = web.Application(client_max_size=2**26)

    async def handle(request):
        return await _handle(api, request)

    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield api
    finally:
        api.closing = True
        api.go_on()
        api.release_watches()
        api._wake()
        await runner.cleanup()


def connection_to(url: str) -> Connection:
    return Connection(url, "the test", namespace="dlr")


def client_of(api: FakeApi, **options) -> AsyncClient:
    return AsyncClient(connection_to(api.url), **{"call_timeout_seconds": 300.0} | options)
