"""The whole runtime against a tiny server in memory; and over real HTTP, with its thread and its ports."""

import asyncio
import math
import time
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest

from controller.api import limiter
from controller.builder import ControllerBuilder, controller_owner
from controller.clock import monotonic as now
from controller.errors import Unavailable
from controller.leader.election import ElectionTiming
from controller.leader.elector import LeadershipLost
from controller.manager import Manager, ManagerOptions
from controller.reconciler import Reconciler, Request, Result
from controller.resources import NODES, PODS
from controller.serving.servers import Listen
from controller.shape import WHOLE
from controller.tasks import LoopThread
from reconcilers.runtime.kinds import ELASTICJOBS
from tests.controller.fake_api import client_of, fake_api, memory_api, memory_client
from tests.controller.waiting import eventually

JOBS_PATH = "/apis/elastic.iml.github.io/v1alpha1/elasticjobs"
PODS_PATH = "/api/v1/pods"
LEASE_PATH = "/apis/coordination.k8s.io/v1/namespaces/dlr/leases/dlr-controller"
NO_PORTS = Listen("127.0.0.1", None, None)
FREE = Listen("127.0.0.1", 0, 0)
PATIENT_ELECTION = ElectionTiming(60.0, 40.0, 0.1)
"""A machine that is busy for a while costs no leadership."""


class SameLoop:
    """In place of `LoopThread`: the event loop of all others."""

    def __init__(self, name):
        pass

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def run(self, coroutine):
        return await coroutine


@pytest.fixture(autouse=True)
def threads(request, monkeypatch):
    if request.node.get_closest_marker("real") is None:
        monkeypatch.setattr("controller.manager.LoopThread", SameLoop)


def job(name, **metadata):
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name, "namespace": "ns", **metadata},
    }


def owned_pod(name, owner, **reference):
    owner_reference = {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "name": owner,
        "uid": "u",
        "controller": True,
        **reference,
    }
    metadata = {"name": name, "namespace": "ns", "ownerReferences": [owner_reference]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}


class Marking(Reconciler):
    """Writes what it saw into the job's status, and remembers whom it was called for."""

    def __init__(self, manager):
        self.manager = manager
        self.requests = []
        self.called = asyncio.Event()
        self.hold = None

    async def reconcile(self, request):
        self.requests.append(request)
        self.called.set()
        if self.hold is not None:
            await self.hold.wait()
        found = self.manager.cache.store(ELASTICJOBS).get(request.namespace, request.name)
        if found is not None and "status" not in found:
            await self.manager.client.patch(
                ELASTICJOBS, request.name, {"status": {"phase": "Pending"}}, "ns", subresource="status"
            )
            self.manager.recorder.event(found, "Normal", "Created", "seen")
        return Result()

    async def until_called_for(self, name):
        async with asyncio.timeout(300):
            while Request("ns", name) not in self.requests:
                self.called.clear()
                await self.called.wait()


def make_manager(client, **options):
    manager = Manager(client, ManagerOptions(**{"listen": NO_PORTS, "graceful_seconds": 300.0} | options))
    manager.cache.keep_only({ELASTICJOBS: WHOLE, PODS: WHOLE})
    reconciler = Marking(manager)
    ControllerBuilder(manager, "job").for_(ELASTICJOBS).owns(PODS).with_workers(2).build(reconciler)
    return manager, reconciler


@asynccontextmanager
async def running(manager):
    stop = asyncio.Event()
    task = asyncio.create_task(manager.run(stop))
    try:
        yield task
    finally:
        stop.set()
        async with asyncio.timeout(300):
            await asyncio.wait([task])


def is_watching(cache):
    return all(informer._stream is not None for informer in cache._informers.values())


@pytest.mark.real
async def test_reconciles_what_is_there_what_comes_and_what_its_children_do():
    async with fake_api() as api, client_of(api) as client:
        api.put(JOBS_PATH, job("early"))
        manager, reconciler = make_manager(client, listen=FREE, election=PATIENT_ELECTION)
        async with running(manager) as task:
            await reconciler.until_called_for("early")
            api.put(JOBS_PATH, job("late"))
            await reconciler.until_called_for("late")
            reconciler.requests.clear()
            api.put(PODS_PATH, owned_pod("late-0", "late"))
            await reconciler.until_called_for("late")
            await eventually(lambda: [path for path in api.objects if "/events/" in path])
            async with aiohttp.ClientSession() as session:
                url = f"http://127.0.0.1:{manager.ports.metrics}/metrics"
                text = await (await session.get(url)).text()
        await task
        assert 'controller_runtime_reconcile_total{controller="job",result="success"}' in text
        assert 'leader_election_master_status{name="dlr-controller"} 1.0' in text
        assert 'rest_client_requests_total{code="200",host=' in text
        assert 'workqueue_unfinished_work_seconds{controller="job",name="job"} 0.0' in text
        assert api.objects[LEASE_PATH]["spec"]["holderIdentity"] == ""  # given back


async def test_a_standby_whose_watches_hang_acts_on_what_is_there_when_it_takes_over():
    async with memory_api() as (api, one), AsyncExitStack() as standby:
        two = memory_client(api)
        first, _ = make_manager(one)
        second, reconciler = make_manager(two)
        async with running(first):
            await eventually(lambda: first.is_leader)
            await standby.enter_async_context(running(second))
            await eventually(lambda: second.cache.synced and is_watching(second.cache))
            api.hold_watches()
            api.put(JOBS_PATH, job("a"))
        await reconciler.until_called_for("a")


async def test_an_outage_ends_no_leader_which_goes_on_when_the_server_is_back():
    async with memory_api() as (api, client):
        api.put(JOBS_PATH, job("before"))
        manager, reconciler = make_manager(client)
        async with running(manager) as task:
            await reconciler.until_called_for("before")
            transitions = api.objects[LEASE_PATH]["spec"]["leaseTransitions"]
            api.stop_answering()
            await asyncio.sleep(25)
            assert not manager.is_leader and not task.done()
            reconciler.requests.clear()
            api.go_on()
            began = now()
            await eventually(lambda: manager.is_leader)
            assert now() - began <= 1.5
            await reconciler.until_called_for("before")  # it looks at everything again
            api.put(JOBS_PATH, job("after"))
            await reconciler.until_called_for("after")
            assert api.objects[LEASE_PATH]["spec"]["leaseTransitions"] == transitions
            heard = [len(informer.intake._handlers) for informer in manager.cache._informers.values()]
            assert heard == [1, 1], "each term hears once of each change"


async def test_work_that_is_under_way_when_the_lease_runs_out_is_cancelled():
    async with memory_api() as (api, client):
        api.put(JOBS_PATH, job("a"))
        manager, reconciler = make_manager(client)
        cancelled = []

        async def look(request):
            reconciler.called.set()
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                cancelled.append(manager.is_leader)
                raise

        reconciler.reconcile = look
        async with running(manager) as task:
            await reconciler.called.wait()
            api.stop_answering()
            await asyncio.sleep(25)
            assert cancelled == [False] and not task.done()


async def test_a_leader_after_whom_another_has_led_ends_with_a_clear_error():
    async with memory_api() as (api, client):
        manager, _ = make_manager(client)
        async with running(manager) as task:
            await eventually(lambda: manager.is_leader or task.done())
            api.stop_answering()
            await asyncio.sleep(25)
            lease = api.objects[LEASE_PATH]
            api.put(
                LEASE_PATH.rpartition("/")[0].replace("/namespaces/dlr", ""),
                {**lease, "spec": {**lease["spec"], "holderIdentity": "other"}},
            )
            api.go_on()
            with pytest.raises(LeadershipLost, match="taken by other"):
                async with asyncio.timeout(300):
                    await task


@asynccontextmanager
async def fake_api_in_a_thread():
    """One that answers while the test's own event loop stands still."""
    async with LoopThread("api") as thread:
        served = fake_api()
        try:
            yield await thread.run(served.__aenter__())
        finally:
            await thread.run(served.__aexit__(None, None, None))


def renewals(api):
    return [request[0] for request in api.requests if request[1] == LEASE_PATH].count("PUT")


@pytest.mark.real
async def test_the_lease_is_renewed_while_a_look_computes_and_the_event_loop_stands_still():
    async with fake_api_in_a_thread() as api, client_of(api) as client:
        manager, reconciler = make_manager(client, listen=FREE, election=PATIENT_ELECTION)
        leads = []

        async def look(request):
            until = renewals(api) + 3
            while renewals(api) < until:
                time.sleep(0.01)  # noqa: ASYNC251 - it computes, and the event loop stands still
            leads.append(manager.is_leader)
            return Result()

        reconciler.reconcile = look
        api.put(JOBS_PATH, job("a"))
        async with running(manager) as task:
            await eventually(lambda: leads)
            await asyncio.sleep(0)  # whoever lost the Lease meanwhile would be told now
            assert leads == [True] and not task.done()


async def test_the_lease_is_renewed_while_all_our_other_requests_wait_for_a_slow_server(monkeypatch):
    monkeypatch.setattr(limiter, "SLOW_SECONDS", math.inf)  # or late answers would leave fewer slots
    async with memory_api() as (api, client):
        api.put(JOBS_PATH, job("a"))
        manager, reconciler = make_manager(client)

        async with running(manager), AsyncExitStack() as slow:
            await reconciler.until_called_for("a")
            for _ in range(limiter.MOST):
                await slow.enter_async_context(manager.client._limiter.slot())
            patch = {"status": {"phase": "Waiting"}}
            ours = asyncio.create_task(
                manager.client.patch(ELASTICJOBS, "a", patch, "ns", subresource="status")
            )
            before = renewals(api)
            await eventually(lambda: renewals(api) >= before + 3)
            assert manager.is_leader and not ours.done()
            await slow.aclose()
            await ours


async def test_stop_lets_what_is_in_work_finish_while_still_leading():
    async with memory_api() as (api, client):
        api.put(JOBS_PATH, job("a"))
        manager, reconciler = make_manager(client)
        reconciler.hold = asyncio.Event()
        stop = asyncio.Event()
        task = asyncio.create_task(manager.run(stop))
        await reconciler.until_called_for("a")
        stop.set()
        for _ in range(2):
            renewed = api.objects[LEASE_PATH]["spec"]["renewTime"]
            await eventually(lambda last=renewed: api.objects[LEASE_PATH]["spec"]["renewTime"] != last)
        assert manager.is_leader and not task.done()
        reconciler.hold.set()
        await task
        assert "status" in api.objects[f"{JOBS_PATH[:-12]}/namespaces/ns/elasticjobs/a"]


async def test_stop_does_not_wait_for_ever():
    async with memory_api() as (api, client):
        api.put(JOBS_PATH, job("a"))
        manager, reconciler = make_manager(client, graceful_seconds=0.2)
        reconciler.hold = asyncio.Event()
        async with running(manager):
            await reconciler.until_called_for("a")


async def test_a_cache_that_cannot_sync_ends_the_manager_with_the_reason():
    async with memory_api() as (api, client):
        api.fail_next(403, {"message": "forbidden for you"}, times=1000)
        manager, _ = make_manager(client)
        with pytest.raises(Unavailable, match=r"could not list .*forbidden for you"):
            await manager.run(asyncio.Event())


async def test_stop_works_at_every_stage_of_the_start():
    async with memory_api() as (api, client):
        other = memory_client(api)
        manager, _ = make_manager(client)
        async with running(manager):  # stopped while the first caches fill
            pass
        leader, _ = make_manager(other)
        async with running(leader):
            await eventually(lambda: leader.is_leader)
            manager, reconciler = make_manager(client)
            async with running(manager):  # stopped while standing by
                await eventually(lambda: manager.health.not_ready is None)
                assert not manager.is_leader
            assert not reconciler.requests


async def test_idle_manager_keeps_contact_and_an_outage_begins_it_anew():
    async with memory_api() as (api, client):
        contact = client.contact
        manager, _ = make_manager(client, leader_election=False)
        async with running(manager):
            await asyncio.sleep(60)
            started = contact.since
            assert started < 5 and now() - contact.last_answer < 5
            api.stop_answering()
            await asyncio.sleep(60)
            assert now() - contact.last_answer > 50
            api.go_on()
            await asyncio.sleep(20)
            assert contact.since > 100


def test_owner_is_the_one_that_controls_and_of_that_kind():
    requests = controller_owner(ELASTICJOBS)
    assert list(requests(owned_pod("p", "a"))) == [Request("ns", "a")]
    assert list(requests(owned_pod("p", "a", apiVersion="elastic.iml.github.io/v1beta1"))) == [
        Request("ns", "a")
    ]
    assert not list(requests(owned_pod("p", "a", controller=False)))
    assert not list(requests(owned_pod("p", "a", kind="ElasticWorker")))
    assert not list(requests(owned_pod("p", "a", apiVersion="batch/v1")))
    assert not list(requests({"metadata": {"name": "p"}}))
    assert list(controller_owner(NODES)(owned_pod("p", "n", apiVersion="v1", kind="Node"))) == [
        Request(None, "n")
    ]
