"""No object stops another's on its way into the cache: what the API server takes and we do not is skipped."""

import asyncio
import contextlib
import json
import time

import pytest
from aiohttp import web

from controller import salvage
from controller.cache import Cache
from controller.errors import ApiError
from controller.watch.informer import Informer
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.shapes import SHAPES
from tests.controller.fake_api import client_of, fake_api
from tests.controller.waiting import background, eventually

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


def line(kind, text, version=7):
    metadata = f'{{"name":"evil","namespace":"team-b","uid":"u","resourceVersion":"{version}"}}'
    return f'{{"type":"{kind}","object":{{"metadata":{metadata},"spec":{{"x":{text}}}}}}}'.encode()


@pytest.mark.parametrize(
    "text",
    [
        "[" * 750_000 + "]" * 750_000,
        '{"":' * 250_000 + "0" + "}" * 250_000,
        '"' + '\\"' * 700_000,
    ],
    ids=["deep", "deep objects", "escapes"],
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
        await Informer(None, ELASTICJOBS, SHAPES[ELASTICJOBS]).intake.event_of(text)
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
        async with background(cache.run()):
            await cache.wait_synced(300)
            api.put(JOBS, job("evil", "team-b", x="@hostile@"))
            api.put(JOBS, job("after"))
            await eventually(lambda: store.get("team-a", "after"))
            assert store.get("team-b", "evil") is None and seen == [(ELASTICJOBS, "evil")]
            assert cache.unreadable_counts()[ELASTICJOBS.group_resource] == 1

        again = Cache(client)
        again.keep_only(SHAPES)
        store = again.store(ELASTICJOBS)
        async with background(again.run()):
            await again.wait_synced(300)
            assert {raw["metadata"]["name"] for raw in store.list()} == {"good", "after"}
            assert again.unreadable_counts()[ELASTICJOBS.group_resource] == 1

            api.put(JOBS, job("evil", "team-b"))
            await eventually(lambda: store.get("team-b", "evil"))
            assert again.unreadable_counts()[ELASTICJOBS.group_resource] == 0, "it comes back by itself"
            api.put(JOBS, job("evil", "team-b", x="@hostile@"))
            await eventually(lambda: store.get("team-b", "evil") is None)
            api.remove(JOBS, job("evil", "team-b"))
            await eventually(lambda: not again.unreadable_counts()[ELASTICJOBS.group_resource])
