"""kill -9 of the embedded API server: what it acknowledged is there afterwards, and watchers go on."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from controller.resources import NAMESPACES

from .backend import Access, EmbeddedCluster
from .objects import unique, widget, widget_crd
from .rawapi import Api, WatchEnded, revision
from .resources import CRDS, WIDGETS
from .waiting import eventually

JSON = dict[str, Any]

WRITERS = 4
KILLS = 2

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("embedded")]


@pytest.fixture
def cluster(tmp_path: Any) -> Any:
    cluster = EmbeddedCluster(tmp_path / "home", with_nodes=False)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
async def own_api(cluster: EmbeddedCluster) -> AsyncIterator[Api]:
    async with aiohttp.ClientSession() as session:
        api = Api(session, Access.from_kubeconfig(cluster.kubeconfig))
        (await api.create(CRDS, widget_crd())).expect(201)
        await eventually(lambda: api.list(WIDGETS), until=lambda reply: reply.status == 200)
        (await api.create(NAMESPACES, {"metadata": {"name": "kept"}})).expect(201)
        yield api


@dataclass
class Ledger:
    """What the server acknowledged: the least that must be there later."""

    sizes: dict[str, int] = field(default_factory=dict)
    attempted: dict[str, int] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    latest: int = 0

    def acknowledged(self, body: JSON) -> None:
        self.latest = max(self.latest, revision(body))


async def write_until_it_dies(api: Api, writer: int, ledger: Ledger, started: asyncio.Event) -> None:
    chance = random.Random(writer)
    with contextlib.suppress(aiohttp.ClientError, OSError):
        for number in range(10_000):
            name = unique(f"w{writer}")
            body = (await api.create(WIDGETS, widget("kept", name, {"size": 1}))).expect(201)
            ledger.sizes[name] = 1
            ledger.acknowledged(body)
            for size in range(2, chance.randint(3, 6)):
                ledger.attempted[name] = size
                patch = {"spec": {"size": size}}
                ledger.acknowledged((await api.patch(WIDGETS, "kept", name, patch)).expect(200))
                ledger.sizes[name] = size
            if chance.random() < 0.2:
                ledger.attempted[name] = -1
                (await api.delete(WIDGETS, "kept", name)).expect(200)
                ledger.deleted.add(name)
            if number == 10:
                started.set()


async def follow_until_it_dies(api: Api, since: int) -> tuple[dict[str, int], int]:
    """What a watcher knew when the server died, and how far it had come."""
    known: dict[str, int] = {}
    with contextlib.suppress(aiohttp.ClientError, OSError, WatchEnded):
        async with api.watch(WIDGETS, "kept", resourceVersion=str(since)) as watch:
            while True:
                event = await watch.next()
                since = take(known, event)
    return known, since


def take(known: dict[str, int], event: JSON) -> int:
    obj = event["object"]
    if event["type"] == "DELETED":
        known.pop(obj["metadata"]["name"], None)
    else:
        known[obj["metadata"]["name"]] = obj["spec"]["size"]
    return revision(obj)


def check(ledger: Ledger, stored: dict[str, int]) -> None:
    for name, size in ledger.sizes.items():
        if name in ledger.deleted:
            assert name not in stored, f"{name} came back"
        elif ledger.attempted.get(name) == -1:
            assert stored.get(name, size) == size
        else:
            assert stored.get(name) in (size, ledger.attempted.get(name, size)), name


async def catch_up(api: Api, known: dict[str, int], since: int, final: dict[str, int]) -> None:
    """A watcher resumes where it was and ends with the truth, or is told to list again."""
    query = {"resourceVersion": str(since)}
    reply = await api.call(
        "GET", WIDGETS.path("kept"), query={"watch": "true", "timeoutSeconds": "1", **query}
    )
    if reply.status == 410:
        return
    reply.expect(200)
    async with api.watch(WIDGETS, "kept", timeoutSeconds="1", **query) as watch:
        for event in await watch.rest():
            if event["type"] == "ERROR":
                assert event["object"]["code"] == 410
                return
            at = take(known, event)
            assert at > since
            since = at
    assert known == final


async def test_nothing_acknowledged_is_lost_to_kill_9(cluster: EmbeddedCluster, own_api: Api) -> None:
    since = revision((await own_api.list(WIDGETS, "kept")).expect(200))
    ledger = Ledger()
    known: dict[str, int] = {}
    for _ in range(KILLS):
        started = asyncio.Event()
        writers = [
            asyncio.create_task(write_until_it_dies(own_api, index, ledger, started))
            for index in range(WRITERS)
        ]
        follower = asyncio.create_task(follow_until_it_dies(own_api, since))
        await asyncio.wait_for(started.wait(), 300)
        await asyncio.to_thread(cluster.kill)
        await asyncio.gather(*writers)
        seen, reached = await follower
        await asyncio.to_thread(cluster.start)
        body = (await own_api.list(WIDGETS, "kept")).expect(200)
        stored = {item["metadata"]["name"]: item["spec"]["size"] for item in body["items"]}
        check(ledger, stored)
        assert revision(body) >= ledger.latest
        made = (await own_api.create(WIDGETS, widget("kept", unique("after")))).expect(201)
        assert revision(made) > max(ledger.latest, reached)
        stored[made["metadata"]["name"]] = made["spec"]["size"]
        await catch_up(own_api, {**known, **seen}, reached, stored)
        known, since = stored, revision(made)
