"""A tiny API server over real HTTP: a few collections, versions, watches, and faults on demand."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from controller.client import Client
from controller.connection import Connection


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

    def forget_history(self):
        """Watches from before now are answered 410, those that run get it in the stream."""
        self.oldest = self.version + 1
        self.version += 1
        self._wake()

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

    async def handle(self, request):
        body = await request.read()
        self.requests.append((request.method, request.path, dict(request.query), request.content_type, body))
        await self.running.wait()
        if self.faults:
            status, headers, fault = self.faults.pop(0)
            return web.Response(status=status, headers=headers, body=json.dumps(fault or {}))
        if "watch" in request.query:
            return await self._watch(request)
        return getattr(self, f"_{request.method.lower()}")(request, json.loads(body) if body else None)

    def _collection(self, path):
        head, sep, tail = path.partition("/namespaces/")
        return f"{head}/{tail.split('/')[1]}" if sep and tail.count("/") else path

    def _get(self, request, _):
        path = request.path
        if path == "/version":
            return web.json_response({"gitVersion": "v1.37.0-fake"})
        if path in self.objects:
            return web.json_response(self.objects[path])
        collection = self._collection(path)
        if path.rpartition("/")[2] != collection.rpartition("/")[2]:
            return self._refuse(404, "NotFound", f"{path} not found")
        items = [
            {k: v for k, v in o.items() if k not in ("kind", "apiVersion")}
            for p, o in sorted(self.objects.items())
            if self._collection(p.rpartition("/")[0]) == collection
        ]
        start, limit = int(request.query.get("continue", 0)), int(request.query.get("limit", 0))
        metadata = {"resourceVersion": str(self.version)}
        if limit and start + limit < len(items):
            metadata["continue"] = str(start + limit)
        return web.json_response(
            {"items": items[start : start + limit if limit else None], "metadata": metadata}
        )

    def _post(self, request, obj):
        path = f"{request.path}/{obj['metadata']['name']}"
        if path in self.objects:
            return self._refuse(409, "AlreadyExists", f"{path} already exists")
        return web.json_response(self.put(self._collection(request.path), obj), status=201)

    def _put(self, request, obj):
        current = self.objects.get(request.path)
        if current is None:
            return self._refuse(404, "NotFound", f"{request.path} not found")
        if obj["metadata"].get("resourceVersion") != current["metadata"]["resourceVersion"]:
            return self._refuse(409, "Conflict", "the object has been modified")
        return web.json_response(self.put(self._collection(request.path.rpartition("/")[0]), obj))

    def _patch(self, request, patch):
        path = request.path.removesuffix("/status")
        current = self.objects.get(path)
        if current is None:
            return self._refuse(404, "NotFound", f"{path} not found")
        wanted = patch.get("metadata", {}).get("resourceVersion")
        if wanted and wanted != current["metadata"]["resourceVersion"]:
            return self._refuse(409, "Conflict", "the object has been modified")
        return web.json_response(self.put(self._collection(path.rpartition("/")[0]), _merged(current, patch)))

    def _delete(self, request, options):
        current = self.objects.get(request.path)
        if current is None:
            return self._refuse(404, "NotFound", f"{request.path} not found")
        uid = (options or {}).get("preconditions", {}).get("uid")
        if uid and uid != current["metadata"]["uid"]:
            return self._refuse(409, "Conflict", "the UID in the precondition does not match")
        self.remove(self._collection(request.path.rpartition("/")[0]), current)
        return web.json_response({"kind": "Status", "status": "Success"})

    async def _watch(self, request):
        at = int(request.query["resourceVersion"])
        if at < self.oldest:
            return self._refuse(410, "Expired", "too old resource version")
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"\n")  # aiohttp keeps the headers back until something is written
        self.watches += 1
        with suppress(ConnectionError):
            while not self.closing:
                changed = self.changed
                await self.running.wait()
                await self.watching.wait()
                if at < self.oldest:
                    await _send(response, {"type": "ERROR", "object": _status(410, "Expired", "too old")})
                    return response
                for version, collection, event in self.history:
                    if version > at and collection == self._collection(request.path):
                        await _send(response, event)
                        at = version
                await changed.wait()
        return response

    def _refuse(self, code, reason, message):
        return web.json_response(_status(code, reason, message), status=code)


async def _send(response, event):
    await response.write(json.dumps(event).encode() + b"\n")


def _status(code, reason, message):
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}


def _merged(target, patch):
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged


@asynccontextmanager
async def fake_api() -> AsyncIterator[FakeApi]:
    api = FakeApi()
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", api.handle)
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


def client_of(api: FakeApi, **options) -> Client:
    return Client(connection_to(api.url), **{"call_timeout_seconds": 300.0} | options)
