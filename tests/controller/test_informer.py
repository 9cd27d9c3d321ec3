"""Cache and informer against a tiny server in memory: what a watch goes through in its life."""

import asyncio
from contextlib import asynccontextmanager

import orjson

from controller import slices
from controller.cache import Cache
from controller.errors import SilentWatch
from controller.resources import PODS
from controller.shape import WHOLE
from controller.watch.informer import Informer
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.shapes import SHAPES
from tests.controller.fake_api import FakeApi, memory_client
from tests.controller.test_client import PODS_PATH, pod
from tests.controller.waiting import background


@asynccontextmanager
async def served(*resources):
    """A server, its client, and a cache of it that runs and is filled."""
    api = FakeApi()
    client = memory_client(api)
    async with running_cache(client, *resources) as cache:
        yield api, client, cache


@asynccontextmanager
async def running_cache(client, *resources):
    cache = Cache(client)
    cache.keep_only({PODS: WHOLE, ELASTICJOBS: SHAPES[ELASTICJOBS]})
    for resource in resources:
        cache.store(resource)
    async with background(cache.run()):
        yield cache


class Heard:
    """A handler that remembers, and can be waited on."""

    def __init__(self, cache, resource):
        self.changes = []
        self.news = asyncio.Event()
        cache.add_handler(resource, self)

    def __call__(self, change):
        self.changes.append(change)
        self.news.set()

    async def until(self, condition):
        async with asyncio.timeout(300):
            while not condition():
                self.news.clear()
                await self.news.wait()


async def test_lists_then_follows_and_tells():
    async with served(PODS) as (api, _, cache):
        api.put(PODS_PATH, pod("old"))
        await cache.wait_synced(300)
        heard = Heard(cache, PODS)
        await cache.tell_all(PODS, heard)
        store = cache.store(PODS)
        assert store.get("ns", "old")["kind"] == "Pod"
        assert heard.changes[0].old is None  # what is there is told to who comes late
        api.put(PODS_PATH, pod("new"))
        await heard.until(lambda: store.get("ns", "new"))
        api.remove(PODS_PATH, pod("old"))
        await heard.until(lambda: store.get("ns", "old") is None)
        assert heard.changes[-1].new is None


async def test_resources_asked_for_later_are_watched_too():
    async with served(PODS) as (api, _, cache):
        await cache.wait_synced(300)
        api.put("/apis/elastic.iml.github.io/v1alpha1/elasticjobs", pod("job"))
        store = cache.store(ELASTICJOBS)
        await cache.wait_synced(300)
        assert len(store) == 1


async def test_a_handler_that_fails_costs_nobody_else_an_event():
    async with served(PODS) as (api, _, cache):
        await cache.wait_synced(300)

        def broken(change):
            raise KeyError("spec")

        cache.add_handler(PODS, broken)
        heard = Heard(cache, PODS)
        api.put(PODS_PATH, pod("a"))
        await heard.until(lambda: heard.changes)


class RefusingClient:
    """Lists fine; every watch ends at once."""

    def __init__(self):
        self.lists = self.watches = 0

    async def list_page(self, *_, **__):
        self.lists += 1
        return {"items": [], "metadata": {"resourceVersion": "1"}}

    @asynccontextmanager
    async def watch(self, *_, **__):
        self.watches += 1
        yield self

    async def lines(self, idle_timeout_seconds):
        return None


def many(count, version="5"):
    return [
        {"metadata": {"name": f"p{i}", "namespace": "ns", "uid": f"u{i}", "resourceVersion": version}}
        for i in range(count)
    ]


class CrowdedClient(RefusingClient):
    """Hundreds of objects in one list, and then as many events in one piece."""

    async def list_page(self, *_, **__):
        return {"items": many(300), "metadata": {"resourceVersion": "5"}}

    async def lines(self, idle_timeout_seconds):
        return [orjson.dumps({"type": "MODIFIED", "object": obj}) for obj in many(300, "6")]


async def test_others_have_a_turn_while_many_objects_are_taken_in(monkeypatch):
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0.0)  # a turn after every piece of work
    informer = Informer(CrowdedClient(), PODS, WHOLE)
    turns = 0

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task, counts = asyncio.create_task(other()), []
    for _ in range(3):  # list, open, read
        before = turns
        await informer.advance()
        counts.append(turns - before)
    before = turns
    await informer.intake.tell_all(lambda change: None)
    counts.append(turns - before)
    task.cancel()
    assert [count >= 300 for count in counts] == [True, False, True, True]
    assert {obj["metadata"]["resourceVersion"] for obj in informer.store.list()} == {"6"}


class Garbled(RefusingClient):
    """Every watch brings a line that is no event, at the same version."""

    async def lines(self, idle_timeout_seconds):
        return [b"no event"]


def test_a_watch_without_progress_shows_and_one_that_is_quiet_or_brings_news_does_not(threadless):
    def age_after_ten_minutes(client):
        async def scenario():
            cache = Cache(client)
            cache.keep_only({PODS: WHOLE})
            cache.store(PODS)
            task = asyncio.create_task(cache.run())
            await asyncio.sleep(600)
            seconds, stalled = cache.seconds_since_progress()["pods"], cache.stalled(120)
            task.cancel()
            return seconds, stalled

        return asyncio.run(scenario())

    class Quiet(RefusingClient):
        async def lines(self, idle_timeout_seconds):
            await asyncio.sleep(idle_timeout_seconds)
            raise SilentWatch("quiet")

    seconds, stalled = age_after_ten_minutes(Garbled())
    assert seconds > 590 and "no news of pods for 600 s: a watch line that is no event" in stalled
    seconds, stalled = age_after_ten_minutes(Quiet())
    assert seconds < 60 and stalled is None
