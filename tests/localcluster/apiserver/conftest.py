"""A server in this process, on a free port, with its state in a folder of the test's own."""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp
import pytest
import yaml

from localcluster.apiserver.server import Serving, serve
from localcluster.paths import Home
from tests.localcluster.apiserver.api import CRDS, Api, widget_definition


def start(home: Home, port: int = 0) -> subprocess.Popen[str]:
    """The server as a process of its own."""
    command = [sys.executable, "-m", "localcluster.apiserver", "--home", str(home.root), "--port", str(port)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def running(home: Home) -> Iterator[None]:
    """The server as a process of its own, which lives until the end."""
    process = start(home)
    try:
        assert process.stdout is not None and "listening" in process.stdout.readline()
        yield
        assert process.poll() is None, "the server died"
    finally:
        process.kill()
        process.communicate()


class Running:
    """Just enough of a `Serving` for `connected`."""

    def __init__(self, home: Home) -> None:
        self.url = yaml.safe_load(home.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]


@asynccontextmanager
async def connected(home: Home, serving: Serving | Running) -> AsyncIterator[Api]:
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
