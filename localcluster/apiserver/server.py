"""Putting the API server together, and running it."""

from __future__ import annotations

import asyncio
import errno
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from controller.serving.listening import HTTP_LOG
from localcluster.apiserver.authentication import Authenticator
from localcluster.apiserver.bootstrap import ensure_roles
from localcluster.apiserver.budgets import BudgetController
from localcluster.apiserver.cluster import Cluster
from localcluster.apiserver.database import Database
from localcluster.apiserver.deferred import Deferred
from localcluster.apiserver.definitions import DefinitionController
from localcluster.apiserver.expiry import sweep_for_ever
from localcluster.apiserver.garbage import GarbageCollector
from localcluster.apiserver.http import HttpServer
from localcluster.apiserver.namespaces import NamespaceController
from localcluster.apiserver.pki import Identity, load_identity, write_kubeconfig
from localcluster.apiserver.policies import Policies
from localcluster.apiserver.rbac import Authorizer
from localcluster.apiserver.schemas import Schemas
from localcluster.apiserver.store import Store
from localcluster.builtin import BUILTIN_TYPES
from localcluster.json_text import BODY_MAX_BYTES
from localcluster.paths import Home
from localcluster.resource import Registry

HOST = "127.0.0.1"
SHUTDOWN_SECONDS = 0.25
"""For requests in flight: a write takes milliseconds, and a watch never ends by itself."""
BACKLOG = 1024
KEEPALIVE_SECONDS = 3600.0
GC_THRESHOLDS = (50_000, 20, 50)
"""Rarer than Python's default: the store's many small dictionaries are not garbage."""


class CannotListen(Exception):
    """The port is not to be had; the message says what to do."""


@dataclass(frozen=True)
class Serving:
    """A running API server."""

    cluster: Cluster
    port: int

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}"


def build(home: Home, identity: Identity, database: Database) -> Cluster:
    """The cluster as the database left it, with its controllers at work."""
    store = Store(database)
    authorizer = Authorizer(store)
    cluster = Cluster(
        home=home,
        store=store,
        registry=Registry(BUILTIN_TYPES),
        authenticator=Authenticator(store, identity.admin_token, identity.token_key),
        authorizer=authorizer,
        schemas=Schemas(),
        policies=Policies(store, authorizer),
        deferred=Deferred(),
        ca_certificate=identity.ca_certificate.decode(),
        token_key=identity.token_key,
    )
    ensure_roles(store)
    DefinitionController(cluster)
    NamespaceController(cluster)
    GarbageCollector(cluster)
    BudgetController(cluster)
    return cluster


@asynccontextmanager
async def serve(home: Home, port: int = 0) -> AsyncIterator[Serving]:
    """Run an API server in this process. It listens, and its kubeconfig is written, when this yields."""
    home.create()
    identity = load_identity(home)
    database = Database(home.database)
    try:
        cluster = build(home, identity, database)
        http = HttpServer(cluster)
        runner = web.ServerRunner(
            web.Server(
                http.handle,
                request_factory=_request_factory,
                handler_cancellation=True,
                access_log=None,
                logger=HTTP_LOG,
                keepalive_timeout=KEEPALIVE_SECONDS,
                max_line_size=64 * 1024,
                max_field_size=64 * 1024,
            ),
            shutdown_timeout=SHUTDOWN_SECONDS,
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, HOST, port, ssl_context=identity.tls, backlog=BACKLOG)
            await _listen(site, port)
            actual = int(runner.addresses[0][1])
            serving = Serving(cluster, actual)
            write_kubeconfig(home, identity, serving.url)
            gc.set_threshold(*GC_THRESHOLDS)
            sweeper = asyncio.create_task(sweep_for_ever(cluster.store))
            try:
                yield serving
            finally:
                sweeper.cancel()
        finally:
            await runner.cleanup()
    finally:
        database.close()


async def _listen(site: web.TCPSite, port: int) -> None:
    try:
        await site.start()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CannotListen(
                f"port {port} on {HOST} is in use by another process: stop that, or choose another port "
                "(0 finds a free one)"
            ) from error
        raise CannotListen(f"cannot listen on {HOST} port {port}: {error.strerror or error}") from error


def _request_factory(message, payload, protocol, writer, task):  # type: ignore[no-untyped-def]
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=BODY_MAX_BYTES)
