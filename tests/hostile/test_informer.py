"""No object stops another's on its way into the cache: what the API server takes and we do not is skipped."""

import asyncio
import contextlib
import json
import sys
import time
from contextlib import suppress

import orjson
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from controller import salvage
from controller.api.pages import LIST_PAGE_SIZE, MOST_PAGE_BYTES, PageSize
from controller.cache import Cache
from controller.client import Client
from controller.errors import ApiError, PageTooLarge
from controller.resources import PODS, Resource
from controller.shape import WHOLE
from controller.store import Change
from controller.watch.informer import Informer, _read_line
from reconcilers.runtime.kinds import (
    ELASTICJOBS,
    ELASTICWORKERS,
    NODECHECKS,
    SCALEPLANS,
)
from reconcilers.shapes import SHAPES
from tests.controller.fake_api import client_of, connection_to, fake_api
from tests.hostile.memory_of_a_cache import Server

pytestmark = pytest.mark.real

JOBS = "/apis/elastic.iml.github.io/v1alpha1/elasticjobs"
HELD_UP_SECONDS = 0.15
"""Of CPU time; the scan of some of these lines takes more than that on any machine, and this one's parser 0.01."""


def job(name, namespace="team-a", **more):
    template = {"spec": {"containers": [{"name": "main", "image": "x"}], **more}}
    return {
        "apiVersion": ELASTICJOBS.api_version,
        "kind": "ElasticJob",
        "metadata": {"name": name, "namespace": namespace, "generation": 1},
        "spec": {"replicaSpecs": {"worker": {"replicas": 1, "template": template}}},
    }


def nested(levels):
    return "[" * levels + "]" * levels


UNPARSABLE = {
    "1,100 levels": nested(1_100),
    "10,000 levels": nested(10_000),
}


def serve_as(monkeypatch, text):
    """The fake server sends this JSON, which Python does not write, in the place of a text."""

    def written(value):
        return json.dumps(value).replace('"@hostile@"', text)

    async def send(response, event):
        await response.write(written(event).encode() + b"\n")

    def json_response(data, status=200):
        return web.Response(text=written(data), status=status, content_type="application/json")

    monkeypatch.setattr("tests.controller.fake_api._send", send)
    monkeypatch.setattr("tests.controller.fake_api.web.json_response", json_response)


async def until(condition):
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110 it is any condition
            await asyncio.sleep(0.01)


async def stop(task):
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def line(kind, text, version=7):
    metadata = f'{{"name":"evil","namespace":"team-b","uid":"u","resourceVersion":"{version}"}}'
    return f'{{"type":"{kind}","object":{{"metadata":{metadata},"spec":{{"x":{text}}}}}}}'.encode()


@pytest.mark.parametrize("text", UNPARSABLE.values(), ids=UNPARSABLE.keys())
async def test_a_line_that_cannot_be_parsed_is_skipped_and_the_version_goes_on(text):
    class Lines:
        async def lines(self, _):
            good = orjson.dumps(
                {
                    "type": "ADDED",
                    "object": {"metadata": {"name": "good", "uid": "g", "resourceVersion": "8"}},
                }
            )
            return [line("ADDED", text), good]

    informer = Informer(None, ELASTICJOBS, WHOLE)
    informer._version, informer._stream = "5", Lines()
    await informer.advance()
    assert informer._version == "8" and informer.last_error is None
    assert [raw["metadata"]["name"] for raw in informer.store.list()] == ["good"]
    assert list(informer.intake.unreadable) == [("team-b", "evil")]


@pytest.mark.parametrize(
    "text",
    [
        '["' * 350_000,
        "[" * 750_000 + "]" * 750_000,
        "[0]," * 300_000 + nested(1_100),
        '{"":' * 250_000 + "0" + "}" * 250_000,
        '"' + '\\"' * 700_000,
        "[" * 1_500_000,
        "\\" * 1_500_000,
    ],
    ids=["open strings", "deep", "wide", "deep objects", "escapes", "open lists", "backslashes"],
)
async def test_no_line_of_1_5_mb_holds_the_event_loop_up(text):
    bad = line("ADDED", text)
    assert min([await held_up_seconds(bad) for _ in range(3)]) < HELD_UP_SECONDS


async def held_up_seconds(text):
    """The longest CPU time for which this line, while it is read, lets no other task run."""
    longest, done = 0.0, False

    async def beat():
        nonlocal longest
        while not done:
            began = time.thread_time()
            await asyncio.sleep(0.001)
            longest = max(longest, time.thread_time() - began)

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0.01)
    with contextlib.suppress(ApiError):
        await _read_line(text)
    done = True
    await beating
    return longest


def test_what_is_nested_too_deeply_is_cut_out_and_nothing_else():
    deep, kept = nested(2_000), {"a": [1, '"]}\\"[', {"b": []}]}
    text = f'{{"deep":[{deep},{deep},0,{nested(5)}],"kept":{json.dumps(kept)}}}'.encode()
    found = asyncio.run(salvage.parsed_shallow(text))
    assert found["kept"] == kept and salvage.is_cut(found) and not salvage.is_cut(kept)
    assert found["deep"][2:] == [0, [[[[[]]]]]]


async def test_a_tenant_s_object_stops_neither_the_watch_nor_a_new_controller(monkeypatch):
    serve_as(monkeypatch, nested(10_000))
    async with fake_api() as api, client_of(api) as client:
        api.put(JOBS, job("good"))
        cache = Cache(client)
        cache.keep_only(SHAPES)
        store = cache.store(ELASTICJOBS)
        seen = []
        cache.add_unreadable_handler(
            lambda resource, found: seen.append((resource, found.obj["metadata"]["name"]))
        )
        running = asyncio.create_task(cache.run())
        await cache.wait_synced(300)
        api.put(JOBS, job("evil", "team-b", x="@hostile@"))
        api.put(JOBS, job("after"))
        await until(lambda: store.get("team-a", "after"))
        assert store.get("team-b", "evil") is None and seen == [(ELASTICJOBS, "evil")]
        assert cache.unreadable_counts()[ELASTICJOBS.group_resource] == 1
        await stop(running)

        again = Cache(client)
        again.keep_only(SHAPES)
        store = again.store(ELASTICJOBS)
        running = asyncio.create_task(again.run())
        await again.wait_synced(300)
        assert {raw["metadata"]["name"] for raw in store.list()} == {"good", "after"}
        assert again.unreadable_counts()[ELASTICJOBS.group_resource] == 1

        api.put(JOBS, job("evil", "team-b"))
        await until(lambda: store.get("team-b", "evil"))
        assert again.unreadable_counts()[ELASTICJOBS.group_resource] == 0, "it comes back by itself"
        api.put(JOBS, job("evil", "team-b", x="@hostile@"))
        await until(lambda: store.get("team-b", "evil") is None)
        api.remove(JOBS, job("evil", "team-b"))
        await until(lambda: not again.unreadable_counts()[ELASTICJOBS.group_resource])
        await stop(running)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = (
    *("jobName", "checkName", "nodeName", "nodes", "phase", "ownerJob", "template", "replicaSpecs", "envs"),
    *("agent", "conditions", "verdicts", "results", "history", "incarnation", "managedBy", "createPods"),
)
PARTS = st.one_of(VALUES, st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5))
METADATA = st.fixed_dictionaries(
    {"name": st.just("evil"), "namespace": st.just("team-b"), "uid": st.just("u")},
    optional={
        "labels": VALUES,
        "annotations": VALUES,
        "ownerReferences": st.one_of(VALUES, st.lists(PARTS, max_size=2)),
        "generation": VALUES,
        "deletionTimestamp": VALUES,
        "managedFields": VALUES,
    },
)
OBJECTS = st.fixed_dictionaries(
    {}, optional={"metadata": st.one_of(METADATA, VALUES), "spec": PARTS, "status": PARTS}
)
RESOURCES = (ELASTICJOBS, ELASTICWORKERS, NODECHECKS, SCALEPLANS, PODS)


def sources():
    """All that the reconcilers register, on stores of their own."""
    from controller.manager import Manager, ManagerOptions
    from reconcilers.setup import add_all

    manager = Manager(Client(connection_to("http://127.0.0.1:1")), ManagerOptions(leader_election=False))
    add_all(manager)
    return manager.cache, [source for each in manager._controllers for source in each.sources]


CACHE, SOURCES = sources()


@given(st.sampled_from(RESOURCES), OBJECTS, st.sampled_from(["ADDED", "MODIFIED", "DELETED"]))
@settings(max_examples=100, deadline=None)
def test_whatever_an_object_is_the_watch_goes_on_and_no_registered_function_raises(
    resource: Resource, hostile, kind
):
    informer = CACHE._informer(resource)
    informer.store.remove(("team-b", "evil"))
    good = {"metadata": {"name": "good", "namespace": "team-a", "uid": "g", "resourceVersion": "1"}}
    informer._take({"type": kind, "object": json.loads(json.dumps(hostile))}, is_cut=False)
    known = informer.store.get("team-b", "evil")
    for source in SOURCES:
        if known is not None and source.resource == resource:
            source.requests(Change(known, known))
            source.requests(Change(None, known))
            source.requests(Change(known, None))
            source.requests(Change(good, known))


def test_an_index_function_that_raises_costs_its_object_alone():
    store = Informer(None, PODS, WHOLE).store
    store.add_index("node", lambda raw: [raw["spec"]["nodeName"]])
    items = [
        {"metadata": {"name": n, "resourceVersion": "1"}, "spec": s}
        for n, s in (("a", {"nodeName": "n"}), ("b", {}))
    ]
    refused = []
    list(store.replace_stepwise(items, lambda obj, error: refused.append(obj["metadata"]["name"])))
    assert refused == ["b"] and [raw["metadata"]["name"] for raw in store.by_index("node", "n")] == ["a"]


@given(st.integers(1, 3_000_000), st.integers(1, 2_000))
def test_pages_of_any_objects_end_up_fitting_and_never_empty(object_bytes, objects):
    sizes, left, asked = PageSize(), objects, 0
    while left:
        asked += 1
        items = min(sizes.limit, left)
        size = items * object_bytes
        if sizes.most_bytes is not None and size > sizes.most_bytes:
            sizes.too_large(PageTooLarge(sizes.most_bytes + 1, 1_000_000))
            continue
        assert items == 1 or size <= MOST_PAGE_BYTES
        left -= items
        sizes.arrived(items, size)
        assert 1 <= sizes.limit <= LIST_PAGE_SIZE
    assert asked <= 2 * objects + 12


def test_a_time_out_leads_to_smaller_pages():
    sizes = PageSize()
    limits = []
    while sizes.limit > 1:
        sizes.timed_out()
        limits.append(sizes.limit)
    assert limits == [31, 3, 1]


async def test_a_thousand_jobs_of_a_megabyte_fit_into_the_limit_of_the_deployment():
    """A process of its own lists 40 of them; each may take a thousandth of what is left of 1 GiB."""
    server = Server(40)
    listening = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.hostile.memory_of_a_cache", url, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    listening.close()
    seen = json.loads(output)
    assert seen["jobs"] == 40
    assert seen["grownBytes"] / 40 < 0.7 * 2**20
    assert seen["heldUpSeconds"] < 10 * seen["parsedSeconds"], "by few of them at a time"
    assert min(server.limits) == 1 and server.limits[0] == LIST_PAGE_SIZE
