"""What a process has written is in its cache at once, and the watch that follows does not take it back.

In any order: the last test of test_recovery.py.
"""

from controller.resources import LEASES, PODS
from controller.shape import WHOLE
from controller.watch.informer import Informer
from reconcilers.runtime.kinds import ELASTICJOBS
from tests.controller.fake_api import memory_api
from tests.controller.test_client import PODS_PATH, pod
from tests.controller.test_informer import Heard, running_cache
from tests.controller.test_manager import JOBS_PATH, job
from tests.controller.test_recovery import ModelServer


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


async def test_renewals_of_leases_come_together_before_they_are_read():
    for resource, seconds in ((PODS, 0.0), (LEASES, LEASES.gather_seconds)):
        server = ModelServer()
        informer = Informer(server, resource, WHOLE)
        assert [await informer.advance() for _ in range(2)] == [0.0, seconds]  # list, open
        server.mutate("put", "a")
        assert await informer.advance() == seconds  # read
    assert 0 < LEASES.gather_seconds < 1, "heartbeats are judged by seconds"
