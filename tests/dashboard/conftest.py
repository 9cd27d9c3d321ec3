"""A dashboard beside an API server that is scripted."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from agent.kube import api as transport
from dlr.dashboard import feed as feeds
from dlr.dashboard.server import Dashboard, serve
from dlr.kube.api import Api
from dlr.kube.connection import connect
from tests.cli.conftest import patient_requests
from tests.cli.scripted import GROUP_PATH, JSON, Script, kubeconfig_for, listing
from tests.cli.troubled import troubled_events, troubled_job, troubled_workers

__all__ = ["patient_requests"]


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


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Served]:
    server = Script()
    monkeypatch.setattr(transport, "_pool", lambda _: server)
    config = tmp_path / "kubeconfig"
    config.write_text(yaml.safe_dump(kubeconfig_for(server.url)))
    monkeypatch.setenv("KUBECONFIG", str(config))
    monkeypatch.setattr(feeds, "INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(feeds, "TROUBLE_WAIT_SECONDS", 0.02)
    server.answers |= {
        JOB: troubled_job(),
        f"GET {WITHIN}/elasticjobs": listing(troubled_job()),
        f"GET {WITHIN}/elasticworkers": listing(*troubled_workers()),
        f"GET {WITHIN}/nodechecks": listing(),
        "GET /api/v1/namespaces/default/events": listing(*troubled_events()),
    }
    for number in range(4):
        node = {"metadata": {"name": f"node-{number}"}, "status": {}}
        server.answers[f"GET /api/v1/nodes/node-{number}"] = node
    cluster = Api(connect(None, None, None))
    session = aiohttp.ClientSession(read_bufsize=2**22)
    async with serve(Dashboard(cluster), 0) as url, session:
        yield Served(url, server, session)
