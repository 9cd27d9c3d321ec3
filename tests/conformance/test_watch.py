"""Watches: what they start with, what they send, how they end, and how a client goes on afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from .backend import Backend
from .conftest import Maker
from .rawapi import Api, revision
from .resources import WIDGETS

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
