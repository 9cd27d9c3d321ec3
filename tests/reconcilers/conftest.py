from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.reconcilers.cluster import ApiServer, Hollow, connected, controllers, install_crds
from tests.reconcilers.played import Played


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One that knows our kinds, a module."""
    process = ApiServer(tmp_path_factory.mktemp("home"))

    async def install() -> None:
        async with connected(process) as hollow:
            await install_crds(hollow)

    asyncio.run(install())
    yield process
    process.stop()


@pytest.fixture
async def hollow(server: ApiServer) -> AsyncIterator[Hollow]:
    """With all controllers, on a real API server."""
    async with connected(server) as client, controllers(server):
        yield client


@pytest.fixture
async def played() -> AsyncIterator[Played]:
    """With all controllers, in memory."""
    stage = Played()
    stage.begin()
    yield stage
    stage.end()
