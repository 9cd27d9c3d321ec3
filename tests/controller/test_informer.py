"""Cache and informer against a tiny server over real HTTP: what a watch goes through in its life."""

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest

from controller.cache import Cache
from controller.errors import Unavailable
from controller.informer import Informer, WatchTiming
from controller.resources import ELASTICJOBS, PODS
from tests.controller import virtual_time
from tests.controller.fake_api import client_of, fake_api
from tests.controller.test_client import PODS_PATH, pod
from tests.controller.virtual_time import now

FAST = WatchTiming(idle_timeout_seconds=0.3, backoff_base_seconds=0.01, backoff_cap_seconds=0.05)


@asynccontextmanager
async def running_cache(client, *resources, timing=FAST):
    cache = Cache(client, timing=timing)
    for resource in resources:
        cache.store(resource)
    task = asyncio.create_task(cache.run())
    try:
        yield cache
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


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
        async with asyncio.timeout(5):
            while not condition():
                self.news.clear()
                await self.news.wait()


async def test_lists_then_follows_and_tells():
    async with fake_api() as api, client_of(api) as client:
        api.put(PODS_PATH, pod("old"))
        async with running_cache(client, PODS) as cache:
            await cache.wait_synced(5)
            heard = Heard(cache, PODS)
            store = cache.store(PODS)
            assert store.get("ns", "old")["kind"] == "Pod"
            assert heard.changes[0].old is None  # what is there is told to who comes late
            api.put(PODS_PATH, pod("new"))
            await heard.until(lambda: store.get("ns", "new"))
            api.remove(PODS_PATH, pod("old"))
            await heard.until(lambda: store.get("ns", "old") is None)
            assert heard.changes[-1].new is None


async def test_a_stopped_server_is_noticed_and_nothing_is_missed_when_it_goes_on():
    async with (
        fake_api() as api,
        client_of(api, call_timeout_seconds=0.2) as client,
        running_cache(client, PODS) as cache,
    ):
        await cache.wait_synced(5)
        heard = Heard(cache, PODS)
        api.stop_answering()
        api.put(PODS_PATH, pod("meanwhile"))
        await asyncio.sleep(0.8)
        assert cache._informers[PODS].last_error is not None
        api.go_on()
        await heard.until(lambda: cache.store(PODS).get("ns", "meanwhile"))


async def test_what_vanished_while_the_watch_was_blind_is_told_as_deleted():
    async with fake_api() as api, client_of(api) as client:
        api.put(PODS_PATH, pod("doomed"))
        api.put(PODS_PATH, pod("stays"))
        async with running_cache(client, PODS) as cache:
            await cache.wait_synced(5)
            heard = Heard(cache, PODS)
            api.history.clear()
            del api.objects["/api/v1/namespaces/ns/pods/doomed"]
            api.forget_history()
            await heard.until(lambda: cache.store(PODS).get("ns", "doomed") is None)
            gone = heard.changes[-1]
            assert gone.new is None and gone.old["metadata"]["name"] == "doomed"
            assert len(heard.changes) == 3  # the unchanged one is not told again


async def test_an_idle_watch_is_opened_again_without_a_list():
    async with fake_api() as api, client_of(api) as client, running_cache(client, PODS) as cache:
        await cache.wait_synced(5)
        await asyncio.sleep(4 * FAST.idle_timeout_seconds)
        assert api.watches >= 3
        lists = [query for _, _, query, _, _ in api.requests if "watch" not in query]
        assert len(lists) == 1


async def test_resources_asked_for_later_are_watched_too():
    async with fake_api() as api, client_of(api) as client, running_cache(client, PODS) as cache:
        await cache.wait_synced(5)
        api.put("/apis/elastic.iml.github.io/v1alpha1/elasticjobs", pod("job"))
        store = cache.store(ELASTICJOBS)
        await cache.wait_synced(5)
        assert len(store) == 1


async def test_not_synced_in_time_says_what_and_why():
    async with fake_api() as api, client_of(api) as client:
        api.fail_next(403, {"message": "pods is forbidden: User x cannot list"}, times=1000)
        async with running_cache(client, PODS) as cache:
            with pytest.raises(Unavailable, match=r"could not list pods within 0\.2 s: pods is forbidden"):
                await cache.wait_synced(0.2)


async def test_a_handler_that_fails_costs_nobody_else_an_event():
    async with fake_api() as api, client_of(api) as client, running_cache(client, PODS) as cache:
        await cache.wait_synced(5)

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


def test_a_server_that_ends_every_watch_at_once_is_not_asked_in_a_tight_loop():
    async def scenario():
        client = RefusingClient()
        task = asyncio.create_task(Informer(client, PODS).run())
        await asyncio.sleep(600)
        assert now() == pytest.approx(600)
        assert client.lists == 1 and client.watches < 90
        task.cancel()

    virtual_time.run(scenario())


class DownClient(RefusingClient):
    async def list_page(self, *_, **__):
        self.lists += 1
        raise Unavailable("down")


def test_a_server_that_is_down_is_asked_at_growing_intervals():
    async def scenario():
        client = DownClient()
        task = asyncio.create_task(Informer(client, PODS).run())
        await asyncio.sleep(3)
        early = client.lists
        await asyncio.sleep(597)
        assert early <= 8 and client.lists - early < 90
        task.cancel()

    virtual_time.run(scenario())
