"""What a process has written is in its cache at once, and the watch that follows does not take it back."""

import asyncio
import json
from contextlib import asynccontextmanager

from hypothesis import given
from hypothesis import strategies as st

from controller.resources import LEASES, PODS
from controller.shape import WHOLE
from controller.watch.informer import Informer
from reconcilers.runtime.kinds import ELASTICJOBS
from tests.controller.fake_api import memory_api
from tests.controller.test_client import PODS_PATH, pod
from tests.controller.test_informer import Heard, running_cache
from tests.controller.test_manager import JOBS_PATH, job


async def test_a_look_decides_from_the_last_write_though_the_watch_is_late():
    async with memory_api() as (api, client):
        api.put(JOBS_PATH, job("a"))
        async with running_cache(client, ELASTICJOBS) as cache:
            await cache.wait_synced(300)
            heard, ours = Heard(cache, ELASTICJOBS), client.guarded(None, cache.note_write)
            api.hold_watches()
            for step in range(5):
                seen = cache.store(ELASTICJOBS).get("ns", "a")
                patch = {
                    "metadata": {"resourceVersion": seen["metadata"]["resourceVersion"]},
                    "status": {"step": step},
                }
                await ours.patch(ELASTICJOBS, "a", patch, "ns", subresource="status")
            api.release_watches()
            api.put(JOBS_PATH, job("b"))
            await heard.until(lambda: cache.store(ELASTICJOBS).get("ns", "b"))
            steps = [c.new.get("status", {}).get("step") for c in heard.changes]
            assert steps == [0, 1, 2, 3, 4, None], "each told once, and in order"


async def test_what_the_cache_does_not_watch_is_not_taken_into_it():
    async with memory_api() as (api, client):
        informer = Informer(client, PODS, WHOLE, namespace="ns", label_selector="ours=yes")
        for _ in range(2):
            await informer.advance()
        ours = pod("ours") | {"metadata": {"name": "ours", "namespace": "ns", "labels": {"ours": "yes"}}}
        elsewhere = pod("far") | {"metadata": ours["metadata"] | {"name": "far", "namespace": "other"}}
        for obj in (ours, elsewhere, pod("not-ours")):
            informer.note_write(api.put(PODS_PATH, obj))
        assert [o["metadata"]["name"] for o in informer.store.list()] == ["ours"]


# --- in any order --------------------------------------------------------------------------------------


class Stream:
    """A watch that delivers what it is given."""

    def __init__(self):
        self.next_lines = []

    async def lines(self, _):
        lines, self.next_lines = self.next_lines, []
        return lines


class EmptyServer:
    """The part of `Client` that an informer uses: an empty collection, and one watch of it."""

    def __init__(self):
        self.stream = Stream()

    async def list_page(self, *_, **__):
        return {"items": [], "metadata": {"resourceVersion": "1"}}

    @asynccontextmanager
    async def watch(self, *_, **__):
        yield self.stream


async def test_renewals_of_leases_come_together_before_they_are_read():
    for resource, seconds in ((PODS, 0.0), (LEASES, LEASES.gather_seconds)):
        informer = Informer(EmptyServer(), resource, WHOLE)
        assert [await informer.advance() for _ in range(3)] == [0.0, seconds, seconds]  # list, open, read
    assert 0 < LEASES.gather_seconds < 1, "heartbeats are judged by seconds"


NAMES = st.sampled_from(["a", "b"])
MOVES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["own write", "foreign write", "deletion"]), NAMES),
        st.tuples(st.sampled_from(["watch", "answer"]), st.integers(0, 5)),
    ),
    max_size=40,
)


@given(MOVES)
def test_however_late_watch_and_answers_are_nothing_goes_back_and_nothing_gone_comes_back(moves):
    asyncio.run(_play(moves))


async def _play(moves):
    world = World()
    await world.begin()
    for move, argument in moves:
        await getattr(world, move.replace(" ", "_"))(argument)
        world.check()
    await world.watch(len(world.history))
    for _ in range(len(world.answers)):
        await world.answer(0)
    assert {o["metadata"]["name"]: o for o in world.informer.store.list()} == world.objects


class World:
    """A server's history, of which the watch and the answers to own writes tell at any later time."""

    def __init__(self):
        self.server = EmptyServer()
        self.informer = Informer(self.server, PODS, WHOLE)
        self.version = 1
        self.objects, self.shown = {}, {}
        self.history, self.answers = [], []

    async def begin(self):
        for _ in range(2):  # a list, and the open watch
            await self.informer.advance()

    async def own_write(self, name):
        await self.foreign_write(name)
        self.answers.append(self.objects[name])

    async def foreign_write(self, name):
        kind = "MODIFIED" if name in self.objects else "ADDED"
        self.objects[name] = self._at_next_version(pod(name))
        self.history.append((kind, self.objects[name]))

    async def deletion(self, name):
        if name in self.objects:
            self.history.append(("DELETED", self._at_next_version(self.objects.pop(name))))

    async def watch(self, count):
        """The next so many events arrive."""
        events, self.history = self.history[:count], self.history[count:]
        for kind, obj in events:
            self.shown.pop(obj["metadata"]["name"], None)
            if kind != "DELETED":
                self.shown[obj["metadata"]["name"]] = obj
        if events:
            self.server.stream.next_lines = [
                json.dumps({"type": kind, "object": obj}).encode() for kind, obj in events
            ]
            await self.informer.advance()

    async def answer(self, which):
        if which < len(self.answers):
            self.informer.note_write(self.answers.pop(which))

    def check(self):
        """Nothing is older than what the watch has shown, and nothing is there that it has shown to go."""
        known = {o["metadata"]["name"]: o for o in self.informer.store.list()}
        for name, obj in self.shown.items():
            assert _version(known[name]) >= _version(obj)
        to_come = [obj for _, obj in self.history]
        assert all(obj in to_come or self.shown.get(name) == obj for name, obj in known.items())

    def _at_next_version(self, obj):
        self.version += 1
        return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}


def _version(obj):
    return int(obj["metadata"]["resourceVersion"])
