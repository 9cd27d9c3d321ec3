"""The client against a tiny server in memory, and over real HTTP where that is the subject."""

import asyncio
import socket

import orjson
import pytest

from controller.api.limiter import RequestLimiter
from controller.client import LIST_PAGE_SIZE, AsyncClient
from controller.errors import (
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    InvalidStatus,
    NotFound,
    Refused,
    SilentWatch,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from controller.leader.elector import NotLeader
from controller.resources import EVENTS, PODS
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.shapes import SHAPES
from tests.controller.fake_api import client_of, connection_to, fake_api, memory_api
from tests.ports import free_port

PODS_PATH, EVENTS_PATH = "/api/v1/pods", "/api/v1/events"


def pod(name, namespace="ns", **more):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace, **more}}


async def test_create_get_replace_patch_delete():
    async with memory_api() as (api, client):
        created = await client.create(PODS, pod("a"))
        assert (await client.get(PODS, "a", "ns"))["metadata"]["uid"] == created["metadata"]["uid"]
        replaced = await client.replace(PODS, {**created, "spec": {"nodeName": "n"}})
        with pytest.raises(Conflict):
            await client.replace(PODS, created)
        patched = await client.patch(PODS, "a", {"status": {"phase": "Running"}}, "ns", subresource="status")
        assert patched["spec"] == replaced["spec"]
        assert api.requests[-1][1] == "/api/v1/namespaces/ns/pods/a/status"
        assert api.requests[-1][3] == "application/merge-patch+json"
        with pytest.raises(Conflict):
            await client.delete(PODS, "a", "ns", uid="another")
        await client.delete(PODS, "a", "ns", uid=created["metadata"]["uid"], grace_period_seconds=0)
        options = orjson.loads(api.requests[-1][4])
        assert options["gracePeriodSeconds"] == 0 and options["propagationPolicy"] == "Background"
        with pytest.raises(NotFound):
            await client.delete(PODS, "a", "ns")


async def test_a_name_that_no_object_has_reads_no_collection():
    async with memory_api() as (api, client):
        for name in ("", ".", ".."):
            with pytest.raises(NotFound) as refused:
                await client.get(PODS, name, "ns")
            assert refused.value.names_object and api.requests == []


async def test_list_follows_pages_and_completes_the_items():
    async with memory_api() as (api, client):
        for index in range(1203):
            api.put(PODS_PATH, pod(f"p{index:04}"))
        body = await client.list(PODS)
        assert len(body["items"]) == 1203
        assert {(item["apiVersion"], item["kind"]) for item in body["items"]} == {("v1", "Pod")}
        assert body["metadata"]["resourceVersion"] == str(api.version)
        assert len(api.requests) == -(-1203 // LIST_PAGE_SIZE)


async def test_a_list_beside_the_cache_comes_in_pages_that_fit_and_ends_where_it_is_too_large(monkeypatch):
    async with memory_api() as (api, client):
        for index in range(40):
            api.put(EVENTS_PATH, pod(f"e{index:02}", note="x" * 600_000))
        monkeypatch.setattr("controller.client.MOST_WHOLE_BYTES", 30_000_000)
        assert len((await client.list(EVENTS))["items"]) == 40
        limits = [int(query["limit"]) for _, _, query, _, _ in api.requests]
        assert limits[0] == LIST_PAGE_SIZE and max(limits[3:]) <= 4
        monkeypatch.setattr("controller.client.MOST_WHOLE_BYTES", 10_000_000)
        with pytest.raises(TooLarge, match="the list of events is larger than what is read at once"):
            await client.list(EVENTS)


async def test_a_list_of_as_many_values_as_fit_is_asked_for_in_smaller_pages():
    async with memory_api() as (api, client):
        for index in range(30):
            api.put(EVENTS_PATH, pod(f"e{index:02}", ownerReferences=[{}] * 20_000))
        assert len((await client.list(EVENTS))["items"]) == 30
        api.put(EVENTS_PATH, pod("f") | {"series": [{}] * 200_000})
        with pytest.raises(TooLarge, match=r"has \d+ values"):
            await client.list(EVENTS)
        with pytest.raises(TooLarge):
            await client.get(EVENTS, "f", "ns")
        found = await client.get(EVENTS, "f", "ns", metadata_only=True)
        assert found["metadata"]["name"] == "f"


async def test_what_is_read_beside_the_cache_is_what_the_cache_would_keep():
    async with memory_api() as (api, client):
        noted = []
        ours = client.guarded(None, lambda _, obj: noted.append(obj), shapes=SHAPES)
        labels = {"team": "a", "app.kubernetes.io/managed-by": "dlr"}
        wide = pod("a", labels=labels) | {"spec": {"nodeName": "n", "volumes": [{}] * 20_000}}
        await ours.create(PODS, wide)
        api.put(PODS_PATH, pod("wide") | {"spec": {"volumes": [{}] * 200_000}})
        for found in (*noted, await ours.get(PODS, "a", "ns"), *(await ours.list(PODS))["items"]):
            assert (
                found["kind"] == "Pod" and found["spec"]["nodeName"] == "n" and "volumes" not in found["spec"]
            )
            assert found["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "dlr"}
        with pytest.raises(TooLarge, match="its spec has"):
            await ours.get(PODS, "wide", "ns")
        written = await ours.patch(PODS, "wide", {"status": {"phase": "x"}}, "ns", subresource="status")
        assert written["metadata"]["name"] == "wide" and len(noted) == 1


async def test_list_whose_token_expires_is_read_in_one_piece():
    async with memory_api() as (api, client):
        for index in range(600):
            api.put(PODS_PATH, pod(f"p{index:04}"))
        first = asyncio.Event()

        def expire(method, status):
            if not first.is_set():
                first.set()
                api.fail_next(410, {"reason": "Expired"})

        client.observers.append(expire)
        assert len((await client.list(PODS))["items"]) == 600
        assert "limit" not in api.requests[-1][2]


async def test_namespaced_object_without_a_namespace_is_refused_before_it_is_sent():
    async with memory_api() as (api, client):
        with pytest.raises(ValueError, match=r"Pod 'a' has no metadata\.namespace"):
            await client.create(PODS, {"metadata": {"name": "a"}})
        with pytest.raises(ValueError, match="namespaced"):
            await client.get(ELASTICJOBS, "a")
        assert not api.requests


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, Invalid),
        (401, Unauthorized),
        (403, Forbidden),
        (404, NotFound),
        (410, Gone),
        (422, Invalid),
        (405, Refused),
    ],
)
async def test_refusals_are_typed_and_carry_the_servers_words(status, error):
    async with memory_api() as (api, client):
        api.fail_next(
            status, {"reason": "Why", "message": "because", "details": {"causes": [{"field": "spec"}]}}
        )
        with pytest.raises(error, match="because") as caught:
            await client.patch(PODS, "a", {}, "ns")
        assert caught.value.details["causes"][0]["field"] == "spec"
        assert caught.value.status == status
        assert len(api.requests) == 1


@pytest.mark.parametrize(
    ("status", "message", "is_final"),
    [
        (422, "status.phase: Unsupported value", True),
        (
            422,
            "ValidatingAdmissionPolicy 'freeze' with binding 'all' denied request: no changes today",
            False,
        ),
        (400, 'admission webhook "w" denied the request: no changes today', False),
    ],
)
async def test_a_status_is_final_where_it_is_invalid_and_not_where_somebody_denies_it(
    status, message, is_final
):
    """A denial may be over at any time, and nothing tells of that."""
    async with memory_api() as (api, client):
        await client.create(PODS, pod("a"))
        api.fail_next(status, {"kind": "Status", "reason": "Invalid", "message": message})
        with pytest.raises(Invalid) as caught:
            await client.patch(PODS, "a", {"status": {"phase": "x"}}, "ns", subresource="status")
        assert isinstance(caught.value, InvalidStatus) is is_final


@pytest.mark.parametrize(
    "words",
    [
        "etcdserver: request is too large",
        "rpc error: code = ResourceExhausted desc = trying to send message larger than max (2097200 vs. 2097152)",
    ],
)
async def test_an_object_without_room_in_etcd_is_invalid_and_no_sign_of_overload(words):
    """A tenant's objects of 1.5 MB would else be written for ever, and make all requests wait for each other."""
    async with memory_api() as (api, client):
        limiter = RequestLimiter()
        client = client.guarded(None, limiter=limiter)
        api.put(PODS_PATH, pod("a"))
        for subresource, error in ((None, Invalid), ("status", InvalidStatus)):
            api.fail_next(500, {"kind": "Status", "message": words, "code": 500})
            with pytest.raises(error, match="the object is too large for the API server to store: "):
                await client.patch(PODS, "a", {}, "ns", subresource=subresource)
        assert (len(api.requests), limiter.limit) == (2, RequestLimiter().limit)


async def test_reads_and_what_was_surely_not_written_are_tried_again_and_other_writes_are_not():
    async with memory_api() as (api, client):
        api.put(PODS_PATH, pod("a"))
        api.fail_next(503, times=2)
        assert await client.get(PODS, "a", "ns")
        api.fail_next(429, **{"Retry-After": "0.05"})
        await client.patch(PODS, "a", {"x": 1}, "ns")
        assert [method for method, *_ in api.requests] == ["GET"] * 3 + ["PATCH"] * 2
        api.fail_next(503, {"message": "etcdserver: request timed out"})
        with pytest.raises(Unavailable, match="etcdserver") as caught:
            await client.patch(PODS, "a", {}, "ns")
        assert caught.value.status == 503 and len(api.requests) == 6


async def test_only_calls_that_wait_for_no_admission_webhook_tell_that_the_server_is_slow(monkeypatch):
    monkeypatch.setattr("controller.api.limiter.SLOW_SECONDS", -1.0)
    calls = {
        "get": lambda view: view.get(PODS, "a", "ns"),
        "status": lambda view: view.patch(PODS, "a", {"status": {}}, "ns", subresource="status"),
        "create": lambda view: view.create(PODS, pod("b")),
        "patch": lambda view: view.patch(PODS, "a", {}, "ns"),
        "delete": lambda view: view.delete(PODS, "a", "ns"),
    }
    limits = {}
    async with memory_api() as (api, client):
        api.put(PODS_PATH, pod("a"))
        for name, call in calls.items():
            limiter = RequestLimiter()
            await call(client.guarded(None, limiter=limiter))
            limits[name] = limiter.limit
    assert limits == {"get": 32, "status": 32, "create": 64, "patch": 64, "delete": 64}


async def test_who_was_told_to_come_back_later_keeps_nobody_waiting():
    async with memory_api() as (api, client):
        api.put(PODS_PATH, pod("a"))
        api.fail_next(429, **{"Retry-After": "0.3"})
        view = client.guarded(None, limiter=RequestLimiter(most=1, least=1))
        await asyncio.gather(view.patch(PODS, "a", {}, "ns"), view.get(PODS, "a", "ns"))
        assert [method for method, *_ in api.requests] == ["PATCH", "GET", "PATCH"]


async def test_a_hanging_server_is_given_up_in_time_however_many_attempts_there_may_be():
    async with memory_api(call_timeout_seconds=1.0) as (api, client):
        api.stop_answering()
        attempts = []
        client.observers.append(lambda method, status: attempts.append((method, status)))
        for call in (client.get(PODS, "a", "ns"), client.create(PODS, pod("a"))):
            with pytest.raises(Unavailable, match=r"did not answer (GET|POST) .* within 1 s"):
                await call
        assert attempts == [("GET", None), ("POST", None)], "no time is left for another"


@pytest.mark.real
async def test_no_server_is_one_clear_sentence():
    url = f"http://127.0.0.1:{free_port()}"
    async with AsyncClient(connection_to(url)) as client:
        with pytest.raises(Unavailable) as caught:
            await client.version()
    assert str(caught.value) == f"No API server answers at {url}, which the test names (Connection refused)."


async def test_something_that_is_no_api_server_is_said_so():
    async with memory_api() as (api, client):
        api.fail_next(200, body=["<html>"], times=3)
        with pytest.raises(Unavailable, match="is it an API server, or a login page before one"):
            await client.version()


async def test_a_refusal_that_says_too_little_is_told_as_the_commands_tell_it():
    async with memory_api() as (api, client):
        api.fail_next(503, times=9)
        with pytest.raises(Unavailable, match=r"^The API server at http://memory cannot answer now \(503: "):
            await client.delete(PODS, "a", "ns")


async def test_only_answers_that_took_storage_feed_the_contact():
    async with memory_api() as (api, client):
        for status in (401, 403):
            api.fail_next(status)
            with pytest.raises(Refused):
                await client.get(PODS, "a", "ns")
        api.fail_next(503)
        with pytest.raises(Unavailable):
            await client.delete(PODS, "a", "ns")
        assert client.contact.last_answer is None
        with pytest.raises(NotFound):
            await client.get(PODS, "a", "ns")
        assert client.contact.last_answer is not None


async def test_guard_holds_writes_back_but_not_reads():
    async with memory_api() as (api, client):
        api.put(PODS_PATH, pod("a"))

        def refuse():
            raise NotLeader("not the leader")

        guarded = client.guarded(refuse)
        assert await guarded.get(PODS, "a", "ns")
        for write in (
            guarded.create(PODS, pod("b")),
            guarded.delete(PODS, "a", "ns"),
            guarded.patch(PODS, "a", {}, "ns"),
        ):
            with pytest.raises(NotLeader):
                await write
        await client.delete(PODS, "a", "ns")
        assert [method for method, *_ in api.requests] == ["GET", "DELETE"]


@pytest.mark.real
async def test_watch_yields_lines_however_the_bytes_are_cut():
    async with fake_api() as api, client_of(api) as client:
        big = pod("big", annotations={"x": "y" * 3_000_000})
        async with client.watch(PODS, resource_version="100", timeout_seconds=60) as stream:
            api.put(PODS_PATH, big)
            api.put(PODS_PATH, pod("small"))
            lines = []
            while len(lines) < 2:
                lines += [line for line in await stream.lines(60) if line]
        assert [orjson.loads(line)["object"]["metadata"]["name"] for line in lines] == ["big", "small"]


@pytest.mark.real
async def test_silent_watch_times_out():
    async with (
        fake_api() as api,
        client_of(api) as client,
        client.watch(PODS, resource_version="100", timeout_seconds=60) as stream,
    ):
        with pytest.raises(SilentWatch):
            while True:
                assert await stream.lines(0.05) == [b""]


@pytest.mark.real
async def test_server_that_vanished_without_a_word_is_missed_by_the_kernel_in_seconds():
    """Tried once with a network namespace that was taken away: 43 s without this, as long as a silent watch is
    trusted, and 8 s with it."""
    async with (
        fake_api() as api,
        client_of(api) as client,
        client.watch(PODS, "ns", resource_version="1", timeout_seconds=60) as stream,
    ):
        sock = stream._response.connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, interval, count = (
            sock.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + count * interval <= 20
