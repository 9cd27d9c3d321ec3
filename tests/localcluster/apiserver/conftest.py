"""A server in this process, on a free port, with its state in a folder of the test's own."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from localcluster.apiserver.server import Serving, serve
from localcluster.paths import Home
from tests.localcluster.apiserver.api import CRDS, Api, widget_definition


@asynccontextmanager
async def connected(home: Home, serving: Serving) -> AsyncIterator[Api]:
    """The admin's client."""
    trust = ssl.create_default_context(cafile=str(home.ca_certificate))
    connector = aiohttp.TCPConnector(ssl=trust, limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Api(session, serving.url, home.admin_token.read_text())


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
async def serving(home: Home) -> AsyncIterator[Serving]:
    async with serve(home) as running:
        yield running


@pytest.fixture
async def api(home: Home, serving: Serving) -> AsyncIterator[Api]:
    async with connected(home, serving) as client:
        yield client


@pytest.fixture
async def widgets(api: Api) -> Api:
    """The server with a CRD that tests are written against."""
    await api.created(CRDS, widget_definition())
    return api
