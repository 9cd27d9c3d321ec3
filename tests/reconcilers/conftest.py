from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

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


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions that a thread would compute beside the event loop; they are computed at once."""
    names: list[str] = []

    async def noted(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        names.append(function.__name__)
        return function(*args, **kwargs)

    monkeypatch.setattr(asyncio, "to_thread", noted)
    return names
