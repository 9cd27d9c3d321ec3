"""A server in this process, on a free port, with its state in a folder of the test's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from localcluster.apiserver.server import Serving, serve
from localcluster.paths import Home
from tests.conformance import rawapi
from tests.conformance.backend import Access
from tests.conformance.objects import widget_crd
from tests.localcluster.apiserver.api import CRDS, Api


def start(home: Home, port: int = 0) -> subprocess.Popen[str]:
    """The server as a process of its own."""
    command = [sys.executable, "-m", "localcluster.apiserver", "--home", str(home.root), "--port", str(port)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@asynccontextmanager
async def connected(home: Home) -> AsyncIterator[Api]:
    """The admin's client."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield Api(rawapi.Api(session, Access.from_kubeconfig(home.kubeconfig)))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
async def serving(home: Home) -> AsyncIterator[Serving]:
    async with serve(home) as running:
        yield running


@pytest.fixture
async def api(home: Home, serving: Serving) -> AsyncIterator[Api]:
    async with connected(home) as client:
        yield client


@pytest.fixture
async def widgets(api: Api) -> Api:
    """The server with a CRD that tests are written against."""
    await api.created(CRDS, widget_crd())
    return api
