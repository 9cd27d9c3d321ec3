"""Many writers, many watchers: whatever happens in between, all end with the same picture."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from .conftest import Maker
from .objects import widget
from .rawapi import Api, revision
from .resources import WIDGETS

pytestmark = pytest.mark.real

JSON = dict[str, Any]

OBJECT_NAMES = [f"w{index}" for index in range(6)]
WRITERS = 4
WRITES_EACH = 40
LAST = "the-last-one"


@dataclass
class Picture:
    """What one watcher believes exists, and every event it was told."""

    objects: dict[str, JSON] = field(default_factory=dict)
    history: list[tuple[int, str, str]] = field(default_factory=list)
    revision: int = 0

    def take(self, event: JSON) -> None:
        obj = event["object"]
        name, at = obj["metadata"].get("name"), revision(obj)
        assert at >= self.revision, f"{event['type']} {name} went back from {self.revision} to {at}"
        if event["type"] == "BOOKMARK":
            self.revision = at
            return
        assert at > self.revision, f"{event['type']} {name} came twice"
        assert (event["type"] == "ADDED") == (name not in self.objects), (event["type"], name)
        self.revision = at
        self.history.append((at, event["type"], name))
        if event["type"] == "DELETED":
            del self.objects[name]
        else:
            self.objects[name] = obj


async def follow(
    api: Api, namespace: str, picture: Picture, chance: random.Random | None, **query: str
) -> None:
    """Watch until the last object comes; with a `chance`, hang up now and then and resume."""
    while True:
        since = str(picture.revision)
        async with api.watch(WIDGETS, namespace, resourceVersion=since, **query) as watch:
            patience = chance.randint(1, 12) if chance else None
            while patience is None or patience > 0:
                event = await watch.next()
                assert event["type"] != "ERROR", event
                picture.take(event)
                if LAST in picture.objects:
                    return
                if patience is not None:
                    patience -= 1


async def write(api: Api, namespace: str, chance: random.Random) -> None:
    for _ in range(WRITES_EACH):
        name = chance.choice(OBJECT_NAMES)
        action = chance.randrange(5)
        if action == 0:
            labels = {"tier": chance.choice(["front", "back"])}
            reply = await api.create(WIDGETS, widget(namespace, name, labels=labels))
        elif action == 1:
            reply = await api.delete(WIDGETS, namespace, name)
        elif action == 2:
            patch: JSON = {"metadata": {"labels": {"tier": chance.choice(["front", "back", None])}}}
            reply = await api.patch(WIDGETS, namespace, name, patch)
        elif action == 3:
            patch = {"status": {"phase": str(chance.random())}}
            reply = await api.patch(WIDGETS, namespace, name, patch, sub="status")
        else:
            reply = await api.patch(WIDGETS, namespace, name, {"spec": {"size": chance.randint(1, 100)}})
        assert reply.status in (200, 201, 404, 409), reply.text


async def test_watchers_agree_with_each_other_and_with_the_list(api: Api, make: Maker) -> None:
    chance = random.Random(1)
    await make.widget("w0", labels={"tier": "front"})
    start = (await api.list(WIDGETS, make.namespace)).expect(200)
    front = {"labelSelector": "tier=front"}
    settings: list[tuple[random.Random | None, dict[str, str]]] = [
        (None, {}),
        (None, {"allowWatchBookmarks": "true"}),
        (random.Random(2), {}),
        (random.Random(3), {"allowWatchBookmarks": "true"}),
        (None, front),
        (random.Random(4), front),
    ]
    pictures = []
    async with asyncio.TaskGroup() as group:
        for hang_ups, query in settings:
            objects = {item["metadata"]["name"]: item for item in start["items"]}
            picture = Picture(objects, revision=revision(start))
            pictures.append(picture)
            group.create_task(follow(api, make.namespace, picture, hang_ups, **query))
        async with asyncio.TaskGroup() as writers:
            for _ in range(WRITERS):
                writers.create_task(write(api, make.namespace, random.Random(chance.random())))
        await make.widget(LAST, labels={"tier": "front"})
    for picture, (_, query) in zip(pictures, settings, strict=True):
        selector = {key: value for key, value in query.items() if key == "labelSelector"}
        final = (await api.list(WIDGETS, make.namespace, **selector)).expect(200)
        assert picture.objects == {item["metadata"]["name"]: item for item in final["items"]}
    everything = [p.history for p, (_, query) in zip(pictures, settings, strict=True) if query != front]
    selected = [p.history for p, (_, query) in zip(pictures, settings, strict=True) if query == front]
    assert all(history == everything[0] for history in everything)
    assert selected[0] == selected[1]
    assert {at for at, _, _ in selected[0]} <= {at for at, _, _ in everything[0]}


async def test_a_watcher_that_never_reads_holds_nobody_up(api: Api, make: Maker) -> None:
    since = (await api.list(WIDGETS, make.namespace)).body["metadata"]["resourceVersion"]
    async with (
        api.watch(WIDGETS, make.namespace, resourceVersion=since),
        api.watch(WIDGETS, make.namespace, resourceVersion=since) as reader,
    ):
        await make.widget("w")
        padding = {"blob": "x" * 20_000}
        for size in range(1, 101):
            patch = {"spec": {"size": size, "extra": padding}}
            (await api.patch(WIDGETS, make.namespace, "w", patch)).expect(200)
        sizes = [(await reader.next())["object"]["spec"]["size"] for _ in range(101)]
    assert sizes[1:] == list(range(1, 101))
