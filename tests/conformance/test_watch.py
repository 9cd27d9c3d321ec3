"""Watches: what they start with, what they send, how they end, and how a client goes on afterwards."""

from __future__ import annotations

import time
from typing import Any

import pytest

from .backend import Backend
from .conftest import Maker
from .kubectl import Kubectl
from .objects import condition, unschedulable_pod
from .rawapi import STRATEGIC_PATCH, Api, Reply, revision
from .resources import (
    PODS,
    WG,
    WIDGETS,
)

pytestmark = pytest.mark.real

JSON = dict[str, Any]

STREAMED_LIST = {
    "sendInitialEvents": "true",
    "resourceVersionMatch": "NotOlderThan",
    "allowWatchBookmarks": "true",
}
INITIAL_EVENTS_END = "k8s.io/initial-events-end"


def seen(events: list[JSON]) -> list[tuple[str, str]]:
    """Type and name of what happened to objects; a server may add bookmarks that nobody asked for."""
    return [
        (event["type"], event["object"]["metadata"].get("name", ""))
        for event in events
        if event["type"] != "BOOKMARK"
    ]


def for_name(name: str) -> Any:
    return lambda event: event["object"]["metadata"].get("name") == name


async def list_revision(api: Api, namespace: str) -> str:
    return str((await api.list(WIDGETS, namespace)).expect(200)["metadata"]["resourceVersion"])


async def test_a_watch_from_a_revision_sends_only_what_came_later(api: Api, make: Maker) -> None:
    await make.widget("before")
    since = await list_revision(api, make.namespace)
    await make.widget("after")
    await api.patch(WIDGETS, make.namespace, "before", {"spec": {"size": 4}})
    await api.delete(WIDGETS, make.namespace, "after")
    async with api.watch(WIDGETS, make.namespace, resourceVersion=since) as watch:
        events = [await watch.next() for _ in range(3)]
    assert seen(events) == [("ADDED", "after"), ("MODIFIED", "before"), ("DELETED", "after")]
    revisions = [revision(event["object"]) for event in events]
    assert revisions == sorted(set(revisions))
    assert revisions[0] > int(since)


@pytest.mark.parametrize("query", [{}, {"resourceVersion": "0"}], ids=["unset", "zero"])
async def test_a_watch_from_nowhere_starts_with_what_exists(
    api: Api, make: Maker, query: dict[str, str]
) -> None:
    await make.widget("a")
    await make.widget("b")
    async with api.watch(WIDGETS, make.namespace, **query) as watch:
        first = [await watch.next() for _ in range(2)]
        await make.widget("c")
        (last,) = await watch.until(lambda event: True)
    assert sorted(seen(first)) == [("ADDED", "a"), ("ADDED", "b")]
    assert seen([last]) == [("ADDED", "c")]


async def test_a_watch_of_one_namespace_says_nothing_of_another(api: Api, make: Maker) -> None:
    since = await list_revision(api, make.namespace)
    async with (
        api.watch(WIDGETS, make.namespace, resourceVersion=since) as here,
        api.watch(WIDGETS, "elsewhere", resourceVersion=since, timeoutSeconds="1") as elsewhere,
        api.watch(WIDGETS, resourceVersion=since) as everywhere,
    ):
        await make.widget("w")
        assert seen([await here.next()]) == [("ADDED", "w")]
        await everywhere.until(for_name("w"))
        assert await elsewhere.rest() == []


async def test_a_watch_ends_at_its_time_out(api: Api, make: Maker) -> None:
    await make.widget("w")
    started = time.monotonic()
    async with api.watch(WIDGETS, make.namespace, timeoutSeconds="1") as watch:
        events = await watch.rest()
    assert seen(events) == [("ADDED", "w")]
    assert time.monotonic() - started > 0.8


async def test_the_stream_is_json_lines(api: Api, make: Maker) -> None:
    async with api.watch(WIDGETS, make.namespace, timeoutSeconds="1") as watch:
        assert watch.response.headers["Content-Type"].startswith("application/json")
        assert watch.response.headers["Transfer-Encoding"] == "chunked"


async def test_bookmarks_tell_how_far_a_quiet_watch_has_come(api: Api, make: Maker) -> None:
    await make.widget("w")
    since = await list_revision(api, make.namespace)
    query = {"resourceVersion": since, "allowWatchBookmarks": "true", "timeoutSeconds": "3"}
    async with api.watch(WIDGETS, make.namespace, **query) as watch:
        event = (await watch.until(lambda event: event["type"] == "BOOKMARK"))[-1]
    assert event["object"]["kind"] == WIDGETS.kind
    assert event["object"]["apiVersion"] == WIDGETS.api_version
    assert revision(event["object"]) >= int(since)
    async with api.watch(
        WIDGETS, make.namespace, resourceVersion=event["object"]["metadata"]["resourceVersion"]
    ) as watch:
        await make.widget("later")
        assert seen([await watch.next()]) == [("ADDED", "later")]


async def test_no_bookmarks_unless_asked_for(api: Api, make: Maker) -> None:
    since = await list_revision(api, make.namespace)
    async with api.watch(WIDGETS, make.namespace, resourceVersion=since, timeoutSeconds="2") as watch:
        assert await watch.rest() == []


async def streamed(api: Api, backend: Backend, namespace: str) -> None:
    path = WIDGETS.path(namespace)
    query = {"watch": "true", "timeoutSeconds": "1", **STREAMED_LIST}
    if not backend.embedded and (await api.call("GET", path, query=query)).status == 422:
        pytest.skip("this API server has no streaming lists (WatchList)")


async def test_a_streamed_list_ends_with_a_marked_bookmark(api: Api, backend: Backend, make: Maker) -> None:
    await streamed(api, backend, make.namespace)
    await make.widget("a")
    await make.widget("b")
    at_least = await list_revision(api, make.namespace)
    async with api.watch(WIDGETS, make.namespace, **STREAMED_LIST) as watch:
        events = await watch.until(lambda event: event["type"] == "BOOKMARK")
        await make.widget("c")
        assert seen([await watch.next()]) == [("ADDED", "c")]
    assert sorted(seen(events[:-1])) == [("ADDED", "a"), ("ADDED", "b")]
    bookmark = events[-1]["object"]
    assert bookmark["metadata"]["annotations"] == {INITIAL_EVENTS_END: "true"}
    assert revision(bookmark) >= int(at_least)


async def test_a_streamed_list_of_nothing_is_a_bookmark(api: Api, backend: Backend, namespace: str) -> None:
    await streamed(api, backend, namespace)
    async with api.watch(WIDGETS, namespace, **STREAMED_LIST) as watch:
        event = await watch.next()
    assert event["type"] == "BOOKMARK"
    assert event["object"]["metadata"]["annotations"] == {INITIAL_EVENTS_END: "true"}


@pytest.mark.parametrize(
    "query",
    [
        {"sendInitialEvents": "true", "allowWatchBookmarks": "true"},
        {"resourceVersionMatch": "NotOlderThan", "resourceVersion": "1"},
        {"sendInitialEvents": "true", "resourceVersionMatch": "Exact", "allowWatchBookmarks": "true"},
    ],
    ids=["no-match", "match-alone", "wrong-match"],
)
async def test_contradictory_watch_options_are_refused(
    api: Api, namespace: str, query: dict[str, str]
) -> None:
    reply = await api.call("GET", WIDGETS.path(namespace), query={"watch": "true", **query})
    reply.refused(422, "Invalid")


def is_gone(reply_or_event: Reply | JSON) -> bool:
    """Both ways a server says that a revision is too old."""
    if isinstance(reply_or_event, Reply):
        return reply_or_event.status == 410
    return reply_or_event["type"] == "ERROR" and reply_or_event["object"]["code"] == 410


async def test_a_watch_from_the_distant_past_is_gone_or_complete(api: Api, make: Maker) -> None:
    for index in range(3):
        await make.widget(f"w{index}")
    query = {"watch": "true", "resourceVersion": "1", "timeoutSeconds": "1"}
    reply = await api.call("GET", WIDGETS.path(make.namespace), query=query)
    if reply.status == 410:
        assert reply.refused(410, reply.body["reason"])["reason"] in ("Expired", "Gone")
        return
    reply.expect(200)
    async with api.watch(WIDGETS, make.namespace, resourceVersion="1", timeoutSeconds="1") as watch:
        events = await watch.rest()
    if is_gone(events[0]):
        assert events[0]["object"]["kind"] == "Status"
        assert events[0]["object"]["reason"] in ("Expired", "Gone")
        assert len(events) == 1
    else:
        assert seen(events) == [("ADDED", "w0"), ("ADDED", "w1"), ("ADDED", "w2")]


async def test_a_watch_of_forgotten_changes_is_told_to_list_again(
    embedded: Any, api: Api, make: Maker
) -> None:
    """How much an API server remembers is its own affair; what is here is more than the embedded one does."""
    since = await list_revision(api, make.namespace)
    await make.widget("big")
    for size in range(1, 26):
        patch = {"spec": {"size": size, "extra": {"blob": "x" * 800_000}}}
        (await api.patch(WIDGETS, make.namespace, "big", patch)).expect(200)
    query = {"watch": "true", "resourceVersion": since, "timeoutSeconds": "1"}
    reply = await api.call("GET", WIDGETS.path(make.namespace), query=query)
    refusal = reply.body if reply.status == 410 else reply.body["object"]
    assert (refusal["kind"], refusal["code"]) == ("Status", 410)
    assert refusal["reason"] in ("Expired", "Gone")
    await api.delete(WIDGETS, make.namespace, "big")
    since = await list_revision(api, make.namespace)
    async with api.watch(WIDGETS, make.namespace, resourceVersion=since) as watch:
        await make.widget("small")
        assert seen([await watch.next()]) == [("ADDED", "small")]


async def test_label_selectors_turn_transitions_into_additions_and_deletions(api: Api, make: Maker) -> None:
    await make.widget("w")
    since = await list_revision(api, make.namespace)
    query = {"labelSelector": "tier=front", "resourceVersion": since}
    async with api.watch(WIDGETS, make.namespace, **query) as watch:
        for patch in (
            {"metadata": {"labels": {"tier": "front"}}},
            {"spec": {"size": 9}},
            {"metadata": {"labels": {"tier": "back"}}},
            {"spec": {"size": 10}},
            {"metadata": {"labels": {"tier": "front"}}},
        ):
            (await api.patch(WIDGETS, make.namespace, "w", patch)).expect(200)
        (await api.delete(WIDGETS, make.namespace, "w")).expect(200)
        events = [await watch.next() for _ in range(5)]
    kinds = [event["type"] for event in events]
    assert kinds == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]
    revisions = [revision(event["object"]) for event in events]
    assert revisions == sorted(set(revisions))


async def test_field_selectors_turn_transitions_into_additions_and_deletions(api: Api, make: Maker) -> None:
    since = (await api.list(PODS, make.namespace)).body["metadata"]["resourceVersion"]
    query = {"fieldSelector": "status.phase=Failed", "resourceVersion": since}
    async with api.watch(PODS, make.namespace, **query) as watch:
        (await api.create(PODS, unschedulable_pod(make.namespace, "p"))).expect(201)
        for status in ({"phase": "Failed"}, {"message": "why"}, {"phase": "Succeeded"}):
            patch = {"status": status}
            reply = await api.patch(
                PODS, make.namespace, "p", patch, sub="status", content_type=STRATEGIC_PATCH
            )
            reply.expect(200)
        events = await watch.until(lambda event: event["type"] == "DELETED")
    assert events[0]["type"] == "ADDED"
    assert {event["type"] for event in events[1:-1]} == {"MODIFIED"}


async def test_a_watch_of_one_object_by_name(api: Api, make: Maker) -> None:
    since = await list_revision(api, make.namespace)
    query = {"fieldSelector": "metadata.name=b", "resourceVersion": since}
    async with api.watch(WIDGETS, make.namespace, **query) as watch:
        for name in ("a", "b", "c"):
            await make.widget(name)
        await api.delete(WIDGETS, make.namespace, "b")
        events = [await watch.next(), await watch.next()]
    assert seen(events) == [("ADDED", "b"), ("DELETED", "b")]


async def test_status_changes_are_watched(api: Api, make: Maker) -> None:
    await make.widget("w")
    since = await list_revision(api, make.namespace)
    async with api.watch(WIDGETS, make.namespace, resourceVersion=since) as watch:
        await api.patch(WIDGETS, make.namespace, "w", {"status": {"phase": "Running"}}, sub="status")
        event = await watch.next()
    assert event["type"] == "MODIFIED"
    assert event["object"]["status"]["phase"] == "Running"


async def test_removing_the_last_finalizer_is_seen_as_deletion(api: Api, make: Maker) -> None:
    await make.widget("w", finalizers=["conformance.dlr.dev/hold"])
    since = await list_revision(api, make.namespace)
    async with api.watch(WIDGETS, make.namespace, resourceVersion=since) as watch:
        await api.delete(WIDGETS, make.namespace, "w")
        await api.patch(WIDGETS, make.namespace, "w", {"metadata": {"finalizers": None}})
        events = [await watch.next(), await watch.next()]
    assert seen(events) == [("MODIFIED", "w"), ("DELETED", "w")]
    assert events[0]["object"]["metadata"]["deletionTimestamp"]


async def test_a_deleted_object_is_sent_as_it_last_was(api: Api, make: Maker) -> None:
    await make.widget("w", {"size": 9}, labels={"a": "b"})
    since = await list_revision(api, make.namespace)
    async with api.watch(WIDGETS, make.namespace, resourceVersion=since) as watch:
        await api.delete(WIDGETS, make.namespace, "w")
        event = await watch.next()
    assert event["object"]["spec"]["size"] == 9
    assert event["object"]["metadata"]["labels"] == {"a": "b"}
    assert revision(event["object"]) > int(since)


async def test_kubectl_waits_for_a_condition(kubectl: Kubectl, api: Api, make: Maker) -> None:
    await make.widget("w")
    arguments = ("wait", f"{WG}/w", "--for=condition=Ready", "--timeout=300s")
    async with kubectl.stream(*arguments, namespace=make.namespace) as output:
        status = {"status": {"conditions": [condition("Ready")]}}
        (await api.patch(WIDGETS, make.namespace, "w", status, sub="status")).expect(200)
        await output.until("condition met")
        assert await output.process.wait() == 0


async def test_kubectl_waits_for_a_value(kubectl: Kubectl, api: Api, make: Maker) -> None:
    await make.widget("w")
    arguments = ("wait", f"{WG}/w", "--for=jsonpath={.status.phase}=Done", "--timeout=300s")
    async with kubectl.stream(*arguments, namespace=make.namespace) as output:
        await api.patch(WIDGETS, make.namespace, "w", {"status": {"phase": "Done"}}, sub="status")
        await output.until("condition met")


async def test_kubectl_waits_for_deletion(kubectl: Kubectl, api: Api, make: Maker) -> None:
    await make.widget("w", finalizers=["conformance.dlr.dev/hold"])
    async with kubectl.stream("delete", WG, "w", namespace=make.namespace) as output:
        await output.until("deleted")
        assert output.process.returncode is None
        await api.patch(WIDGETS, make.namespace, "w", {"metadata": {"finalizers": None}})
        assert await output.process.wait() == 0


async def test_kubectl_gives_up_waiting_in_time(kubectl: Kubectl, make: Maker) -> None:
    await make.widget("w")
    arguments = ("wait", f"{WG}/w", "--for=condition=Ready", "--timeout=1s")
    said = await kubectl.refused(*arguments, namespace=make.namespace)
    assert (
        "timed out waiting" in said or "context deadline exceeded" in said
    )  # as it has listed by then, or not
