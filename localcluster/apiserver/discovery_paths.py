"""The paths beside resources: discovery, OpenAPI, version and health."""

from __future__ import annotations

import platform

import orjson
from aiohttp import web

from localcluster import discovery
from localcluster.apiserver.errors import method_not_allowed, no_such_path
from localcluster.openapi import OpenApi
from localcluster.resource import JSON, Registry

VERSION: JSON = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0+dlr",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-04-22T00:00:00Z",
    "goVersion": "",
    "compiler": "cpython",
    "platform": f"linux/{platform.machine()}",
}
_HEALTH = ("/healthz", "/livez", "/readyz")


class DiscoveryPaths:
    """Answers whoever is authenticated."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._openapi = OpenApi(registry)

    def answer(self, request: web.BaseRequest) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            raise method_not_allowed()
        path = request.path.rstrip("/")
        if path == "/version":
            return _json(VERSION)
        if any(path == health or path.startswith(f"{health}/") for health in _HEALTH):
            return web.Response(text="ok")
        if path == "/openapi/v2":
            # Empty: kubectl looks here for what v3 does not have, and then says that there is no such kind.
            return web.Response(content_type="application/com.github.proto-openapi.spec.v2.v1.0+protobuf")
        document = self._document(path.strip("/").split("/"), request)
        if document is None:
            raise no_such_path()
        return document if isinstance(document, web.Response) else _json(document)

    def _document(self, parts: list[str], request: web.BaseRequest) -> JSON | web.Response | None:
        match parts:
            case ["api"]:
                return discovery.api_versions(request.host)
            case ["apis"]:
                return discovery.api_groups(self._registry)
            case ["api", version]:
                return discovery.api_resources(self._registry, "", version)
            case ["apis", group]:
                return discovery.api_group(self._registry, group)
            case ["apis", group, version]:
                return discovery.api_resources(self._registry, group, version)
            case ["openapi", "v3"]:
                return self._openapi.index()
            case ["openapi", "v3", "api", version]:
                return self._openapi_document("", version)
            case ["openapi", "v3", "apis", group, version]:
                return self._openapi_document(group, version)
        return None

    def _openapi_document(self, group: str, version: str) -> web.Response | None:
        document = self._openapi.document(group, version)
        if document is None:
            return None
        return web.Response(body=document, content_type="application/json")


def _json(value: JSON) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")
