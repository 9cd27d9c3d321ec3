"""Watches and lists: nothing missed, nothing twice, whatever the selection."""

import aiohttp
import pytest

from localcluster.apiserver import watch as watch_module
from localcluster.apiserver.server import Serving, serve
from localcluster.paths import Home
from tests.localcluster.apiserver.api import CONFIG_MAPS, PODS, WIDGETS, Api, config_map, pod, widget

pytestmark = pytest.mark.real

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
NO_CA = {"fieldSelector": "metadata.name!=kube-root-ca.crt"}


async def version(api: Api) -> str:
    return str((await api.get(CONFIG_MAPS)).body["metadata"]["resourceVersion"])


async def test_a_watch_goes_on_from_a_list(api: Api) -> None:
    await api.created(CONFIG_MAPS, config_map("before"))
    async with api.watch(CONFIG_MAPS, resourceVersion=await version(api)) as events:
        await api.created(CONFIG_MAPS, config_map("one"))
        changed = (await api.patch(f"{CONFIG_MAPS}/one", {"data": {"a": "c"}})).body
        await api.delete(f"{CONFIG_MAPS}/one")
        assert (await events.next())["type"] == "ADDED"
        assert await events.next() == {"type": "MODIFIED", "object": changed}
        deleted = await events.next()
    assert deleted["type"] == "DELETED"
    assert int(deleted["object"]["metadata"]["resourceVersion"]) > int(changed["metadata"]["resourceVersion"])


async def test_a_watch_without_version_begins_with_what_exists(api: Api) -> None:
    await api.created(CONFIG_MAPS, config_map("one"))
    async with api.watch(CONFIG_MAPS, **NO_CA) as events:
        await api.created(CONFIG_MAPS, config_map("two"))
        assert await events.seen(2) == [("ADDED", "one"), ("ADDED", "two")]


async def test_a_watch_replays_what_it_missed(api: Api) -> None:
    start = await version(api)
    for name in ("one", "two"):
        await api.created(CONFIG_MAPS, config_map(name))
    await api.delete(f"{CONFIG_MAPS}/one")
    async with api.watch(CONFIG_MAPS, resourceVersion=start) as events:
        assert await events.seen(3) == [("ADDED", "one"), ("ADDED", "two"), ("DELETED", "one")]


async def test_objects_enter_and_leave_a_selection(api: Api) -> None:
    async with api.watch(CONFIG_MAPS, labelSelector="on=yes") as events:
        await api.created(CONFIG_MAPS, config_map("one"))
        await api.patch(f"{CONFIG_MAPS}/one", {"metadata": {"labels": {"on": "yes"}}})
        await api.patch(f"{CONFIG_MAPS}/one", {"data": {"a": "c"}})
        left = (await api.patch(f"{CONFIG_MAPS}/one", {"metadata": {"labels": {"on": "no"}}})).body
        await api.delete(f"{CONFIG_MAPS}/one")
        await api.created(CONFIG_MAPS, config_map("two", labels={"on": "yes"}))
        assert await events.seen(2) == [("ADDED", "one"), ("MODIFIED", "one")]
        gone = await events.next()
        assert await events.seen(1) == [("ADDED", "two")]
    assert gone["type"] == "DELETED" and gone["object"]["metadata"]["labels"] == {"on": "yes"}
    assert gone["object"]["metadata"]["resourceVersion"] == left["metadata"]["resourceVersion"]


async def test_a_watch_of_one_name_sees_only_that(api: Api) -> None:
    async with api.watch(CONFIG_MAPS, fieldSelector="metadata.name=two") as events:
        for name in ("one", "two", "three"):
            await api.created(CONFIG_MAPS, config_map(name))
        await api.delete(f"{CONFIG_MAPS}/two")
        assert await events.seen(2) == [("ADDED", "two"), ("DELETED", "two")]


async def test_field_selectors_know_the_fields_that_kubernetes_knows(api: Api) -> None:
    await api.created(PODS, pod("one"))
    assert (await api.get(PODS, fieldSelector="spec.nodeName=,status.phase=Pending")).names == ["one"]
    assert (await api.get(PODS, fieldSelector="status.phase!=Pending")).names == []
    answer = await api.get(PODS, fieldSelector="spec.hostname=x")
    assert (answer.code, answer.message) == (400, "field label not supported: spec.hostname")
    assert (await api.get(PODS, labelSelector="a in (")).code == 400


async def test_a_version_from_before_history_is_expired(home: Home, api: Api, serving: Serving) -> None:
    serving.cluster.collection(serving.cluster.registry.lookup("", "v1", "configmaps")).complete_since = 5
    async with api.watch(CONFIG_MAPS, resourceVersion=1) as events:
        (error,) = await events.rest()
    assert error["type"] == "ERROR"
    assert (error["object"]["code"], error["object"]["reason"]) == (410, "Expired")


async def test_streaming_lists_end_with_a_bookmark(api: Api) -> None:
    await api.created(CONFIG_MAPS, config_map("one"))
    options = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", **NO_CA}
    async with api.watch(CONFIG_MAPS, allowWatchBookmarks="true", **options) as events:
        assert await events.seen(1) == [("ADDED", "one")]
        bookmark = await events.next()
        await api.created(CONFIG_MAPS, config_map("two"))
        assert await events.seen(1) == [("ADDED", "two")]
    assert bookmark["type"] == "BOOKMARK" and bookmark["object"]["kind"] == "ConfigMap"
    assert bookmark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    answer = await api.get(CONFIG_MAPS, watch="true", sendInitialEvents="true")
    assert answer.code == 422 and "resourceVersionMatch" in answer.message


async def test_a_watch_ends_in_time_with_a_bookmark(api: Api) -> None:
    current = await version(api)
    options = {"resourceVersion": current, "timeoutSeconds": 1}
    async with api.watch(CONFIG_MAPS, allowWatchBookmarks="true", **options) as events:
        (bookmark,) = await events.rest()
    assert (bookmark["type"], bookmark["object"]["metadata"]["resourceVersion"]) == ("BOOKMARK", current)
    async with api.watch(CONFIG_MAPS, **options) as events:
        assert await events.rest() == []


async def test_bookmarks_come_now_and_then(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "BOOKMARK_INTERVAL_SECONDS", 0.05)
    options = {"resourceVersion": await version(api), "allowWatchBookmarks": "true"}
    async with api.watch(CONFIG_MAPS, **options) as events:
        assert (await events.next())["type"] == "BOOKMARK"
        await api.created(PODS, pod("elsewhere"))
        later = await events.next()
    assert later["type"] == "BOOKMARK"


async def test_watches_across_namespaces(api: Api) -> None:
    start = await version(api)
    async with api.watch("/api/v1/configmaps", resourceVersion=start) as events:
        await api.created("/api/v1/namespaces/kube-system/configmaps", config_map("one"))
        await api.created(CONFIG_MAPS, config_map("two"))
        assert await events.seen(2) == [("ADDED", "one"), ("ADDED", "two")]
    everywhere = await api.get("/api/v1/configmaps")
    assert {"one", "two"} <= set(everywhere.names)


async def test_tables_of_lists_and_watches(widgets: Api) -> None:
    await widgets.created(WIDGETS, widget("one", {"size": 5}))
    table = (await widgets.get(WIDGETS, accept=TABLE)).body
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Size"]
    assert [row["cells"] for row in table["rows"]] == [["one", 5]]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    async with widgets.watch(WIDGETS, accept=TABLE) as events:
        first = await events.next()
        await widgets.patch(f"{WIDGETS}/one", {"spec": {"size": 6}})
        second = await events.next()
    assert first["object"]["columnDefinitions"] and not second["object"]["columnDefinitions"]
    assert second["object"]["rows"][0]["cells"] == ["one", 6]
    partial = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
    listed = (await widgets.get(WIDGETS, accept=partial)).body
    assert listed["kind"] == "PartialObjectMetadataList" and "spec" not in listed["items"][0]
    assert (await widgets.get(WIDGETS, accept="application/xml")).code == 406


async def test_pages_show_one_moment(api: Api) -> None:
    for number in range(5):
        await api.created(CONFIG_MAPS, config_map(f"map-{number}"))
    first = await api.get(CONFIG_MAPS, limit=2, **NO_CA)
    await api.delete(f"{CONFIG_MAPS}/map-4")
    await api.created(CONFIG_MAPS, config_map("map-5"))
    names, metadata = first.names, first.body["metadata"]
    while metadata.get("continue"):
        page = await api.get(CONFIG_MAPS, limit=2, **{"continue": metadata["continue"]})
        assert page.body["metadata"]["resourceVersion"] == first.body["metadata"]["resourceVersion"]
        names, metadata = names + page.names, page.body["metadata"]
    assert names == [f"map-{number}" for number in range(5)]


async def test_pages_count_what_remains_and_refuse_forged_tokens(api: Api) -> None:
    for number in range(3):
        await api.created(PODS, pod(f"pod-{number}"))
    page = await api.get(PODS, limit=1)
    assert page.body["metadata"]["remainingItemCount"] == 2
    assert (await api.get(PODS, **{"continue": "nonsense"})).code == 400
    token = page.body["metadata"]["continue"]
    answer = await api.get(CONFIG_MAPS, **{"continue": token})
    assert (answer.code, answer.reason) == (410, "Expired")


async def test_lists_of_other_moments_are_refused(api: Api) -> None:
    current = int(await version(api))
    assert (await api.get(CONFIG_MAPS, resourceVersion=current, resourceVersionMatch="Exact")).code == 200
    assert (await api.get(CONFIG_MAPS, resourceVersion=1, resourceVersionMatch="Exact")).code == 410
    assert (await api.get(CONFIG_MAPS, resourceVersion=1)).code == 200
    answer = await api.get(CONFIG_MAPS, resourceVersion=current + 100)
    assert (answer.code, answer.reason) == (504, "Timeout")


async def test_a_dropped_watch_is_forgotten(home: Home, api: Api, serving: Serving) -> None:
    collection = serving.cluster.store.collection("configmaps")
    with pytest.raises(aiohttp.ClientConnectionError):
        async with api.watch(CONFIG_MAPS) as events:
            await events.next()
            assert len(collection._broad) == 1
            raise aiohttp.ClientConnectionError
    await api.created(CONFIG_MAPS, config_map("one"))
    await api.eventually(CONFIG_MAPS, lambda _: not collection._broad)


async def test_watches_survive_a_restart_only_from_the_last_version(home: Home) -> None:
    from tests.localcluster.apiserver.conftest import connected

    async with serve(home) as serving, connected(home, serving) as api:
        await api.created(CONFIG_MAPS, config_map("one"))
        await api.delete(f"{CONFIG_MAPS}/one")
        old, last = 1, await version(api)
    async with serve(home) as serving, connected(home, serving) as api:
        async with api.watch(CONFIG_MAPS, resourceVersion=old) as events:
            assert (await events.next())["object"]["code"] == 410
        async with api.watch(CONFIG_MAPS, resourceVersion=last) as events:
            created = await api.created(CONFIG_MAPS, config_map("two"))
            assert await events.next() == {"type": "ADDED", "object": created}
        assert int(created["metadata"]["resourceVersion"]) > int(last)
