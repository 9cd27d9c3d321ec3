"""A dashboard beside an API server that is scripted."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from dlr.dashboard import feed as feeds
from dlr.dashboard.server import Dashboard, serve
from dlr.kube.api import Api
from dlr.kube.connection import connect
from tests.cli.conftest import clock, patient_requests, server
from tests.cli.scripted import GROUP_PATH, JSON, Script, listing, show
from tests.cli.troubled import troubled_events, troubled_job, troubled_workers

__all__ = ["clock", "patient_requests", "server"]


WITHIN = f"{GROUP_PATH}/default"
JOB = f"GET {WITHIN}/elasticjobs/digits"
WAIT_SECONDS = 300.0


@dataclass
class Served:
    url: str
    api: Script
    session: aiohttp.ClientSession

    async def get(self, path: str, **headers: str) -> tuple[int, str, Any]:
        async with self.session.get(f"{self.url}{path}", headers=headers) as answer:
            return answer.status, await answer.text(), answer.headers

    @contextlib.asynccontextmanager
    async def events(self, query: str) -> AsyncIterator[Callable[[Callable[[JSON], Any]], Any]]:
        """What waits for an update that is as asked."""
        async with self.session.get(f"{self.url}events?{query}") as answer:
            assert answer.status == 200, await answer.text()

            async def until(fits: Callable[[JSON], Any]) -> JSON:
                async with asyncio.timeout(WAIT_SECONDS):
                    while True:
                        line = await answer.content.readuntil(b"\n\n")
                        told: JSON = json.loads(line.removeprefix(b"data: "))
                        if fits(told):
                            return told

            yield until


def show_troubled(server: Script) -> None:
    """Have a server with the troubled job and its nodes."""
    show(server, troubled_job(), troubled_workers(), *troubled_events())
    server.answers[f"GET {WITHIN}/elasticjobs"] = listing(troubled_job())
    for number in range(4):
        node = {"metadata": {"name": f"node-{number}"}, "status": {}}
        server.answers[f"GET /api/v1/nodes/node-{number}"] = node


@pytest.fixture
async def served(server: Script, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(feeds, "INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(feeds, "TROUBLE_WAIT_SECONDS", 0.02)
    show_troubled(server)
    cluster = Api(connect(None, None, None))
    session = aiohttp.ClientSession(read_bufsize=2**22)
    async with serve(Dashboard(cluster), 0) as url, session:
        yield Served(url, server, session)
