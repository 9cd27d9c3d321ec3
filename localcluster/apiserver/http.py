"""The HTTP side: who asks, whether they may, which handler answers, and how failures are sent."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from localcluster.apiserver.cluster import Cluster
from localcluster.apiserver.discovery_paths import DiscoveryPaths
from localcluster.apiserver.errors import ApiError, bad_request, no_such_path, too_large
from localcluster.apiserver.handlers import Call, Handlers
from localcluster.apiserver.impersonation import impersonated
from localcluster.apiserver.rbac import Attributes
from localcluster.apiserver.requests import Context, Target, parse_target
from localcluster.json_text import BODY_MAX_BYTES, JsonError, dumps
from localcluster.selectors import SelectorError, parse_fields

log = logging.getLogger(__name__)

WARNINGS_MAX = 16
WARNING_MAX_LENGTH = 1024
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f]")
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


class HttpServer:
    """The one aiohttp handler of the server."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._handlers = Handlers(cluster)
        self._discovery = DiscoveryPaths(cluster.registry)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        warnings: list[str] = []
        try:
            return await self._handle(request, warnings)
        except ApiError as error:
            return failure(error, warnings)
        except web.HTTPRequestEntityTooLarge:
            return failure(too_large(BODY_MAX_BYTES), warnings)
        except JsonError as error:  # what came of a patch is nothing that can be stored
            return failure(bad_request(str(error)), warnings)
        except RecursionError:
            return failure(bad_request("the object is nested too deeply for this cluster"), warnings)
        except ConnectionError:
            return web.Response()  # The client hung up, as watchers do: nobody is there to read this.
        except HttpProcessingError:
            raise
        except Exception as error:
            log.exception("method=%s path=%s failed", request.method, request.path)
            message = f"Internal error occurred: {type(error).__name__}: {error}"
            return failure(ApiError(500, "InternalError", message), warnings)

    async def _handle(self, request: web.BaseRequest, warnings: list[str]) -> web.StreamResponse:
        header = request.headers.get("Authorization", "")
        user = self._cluster.authenticator.authenticate(header, time.time())
        name = request.headers.get("Impersonate-User", "")
        groups = tuple(request.headers.getall("Impersonate-Group", ()))
        user = impersonated(user, name, groups, self._cluster.authorizer)
        path = request.raw_path.partition("?")[0]
        target = parse_target(path)
        if target is None:
            return self._discovery.answer(request)
        resource_type = self._cluster.registry.lookup(target.group, target.version, target.plural)
        if resource_type is None or (target.namespace and not resource_type.namespaced):
            raise no_such_path()
        user_agent = request.headers.get("User-Agent", "")
        context = Context(user, resource_type, target, request.query, user_agent, warnings)
        self._cluster.authorizer.authorize(user, attributes(request.method, target, request.query))
        if resource_type.namespaced and not target.namespace and (target.name or request.method == "POST"):
            raise no_such_path()
        call = Call(
            context=context,
            method=request.method,
            accept=request.headers.get("Accept", ""),
            content_type=request.headers.get("Content-Type", ""),
            body=await request.read() if request.can_read_body else b"",
            stream=lambda media_type: _stream(request, media_type, warnings),
        )
        response = await self._handlers.answer(call)
        if warnings and not response.prepared:
            _add_warnings(response, warnings)
        return response


def attributes(method: str, target: Target, query: Mapping[str, str]) -> Attributes:
    """A request in RBAC's terms."""
    name = target.name
    if method in ("GET", "HEAD"):
        watching = query.get("watch", "").lower() in ("true", "1")
        verb = "get" if name else "watch" if watching else "list"
    elif method == "DELETE":
        verb = "delete" if name else "deletecollection"
    else:
        verb = _VERBS.get(method, method.lower())
    if not name and verb in ("list", "watch", "deletecollection"):
        name = _selected_name(query)
    return Attributes(verb, target.group, target.plural, target.subresource, target.namespace, name)


def _selected_name(query: Mapping[str, str]) -> str:
    """Rules with resourceNames allow a list or watch of that one name."""
    if "fieldSelector" not in query:
        return ""
    try:
        return parse_fields(query["fieldSelector"]).value_of("metadata.name") or ""
    except SelectorError:
        return ""


async def _stream(request: web.BaseRequest, media_type: str, warnings: list[str]) -> web.StreamResponse:
    response = web.StreamResponse()
    response.content_type = media_type
    response.headers["Cache-Control"] = "no-cache, private"
    _add_warnings(response, warnings)
    await response.prepare(request)
    return response


def _add_warnings(response: web.StreamResponse, warnings: list[str]) -> None:
    """Each once; as many, and as much of each, as fits into headers."""
    for warning in list(dict.fromkeys(warnings))[:WARNINGS_MAX]:
        text = _CONTROL_CHARACTERS.sub(" ", warning[:WARNING_MAX_LENGTH])
        text = text.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{text}"')


def failure(error: ApiError, warnings: list[str]) -> web.Response:
    response = web.Response(body=dumps(error.status()), status=error.code, content_type="application/json")
    if error.code == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if error.allowed:
        response.headers["Allow"] = ", ".join(error.allowed)
    if "retryAfterSeconds" in error.details:
        response.headers["Retry-After"] = str(error.details["retryAfterSeconds"])
    _add_warnings(response, warnings)
    return response
