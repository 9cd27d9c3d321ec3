"""How fast it is. Reported, not judged: the machine decides."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from .objects import widget
from .rawapi import Api, Reply
from .resources import WIDGETS

pytestmark = pytest.mark.real

OBJECTS = 300
AT_ONCE = 16


async def spread(work: Callable[[int], Coroutine[Any, Any, Reply]], status: int) -> float:
    """Operations a second, with so many at once."""
    numbers = iter(range(OBJECTS))

    async def lane() -> None:
        for number in numbers:
            (await work(number)).expect(status)

    started = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(AT_ONCE)))
    return OBJECTS / (time.perf_counter() - started)


async def test_throughput(api: Api, namespace: str, record_property: Any, capsys: Any) -> None:
    since = (await api.list(WIDGETS, namespace)).body["metadata"]["resourceVersion"]
    figures: dict[str, float] = {}
    async with api.watch(WIDGETS, namespace, resourceVersion=since) as watch:
        figures["creates_per_second"] = await spread(
            lambda number: api.create(WIDGETS, widget(namespace, f"w{number}")), 201
        )
        figures["status_patches_per_second"] = await spread(
            lambda number: api.patch(
                WIDGETS, namespace, f"w{number}", {"status": {"phase": "Running"}}, sub="status"
            ),
            200,
        )
        figures["gets_per_second"] = await spread(
            lambda number: api.get(WIDGETS, namespace, f"w{number}"), 200
        )
        started = time.perf_counter()
        events = [await watch.next() for _ in range(2 * OBJECTS)]
        figures["seconds_to_read_the_events"] = time.perf_counter() - started
    started = time.perf_counter()
    listed = (await api.list(WIDGETS, namespace)).expect(200)
    figures["seconds_to_list"] = time.perf_counter() - started
    assert len(listed["items"]) == OBJECTS
    assert [event["type"] for event in events].count("MODIFIED") == OBJECTS
    for name, figure in figures.items():
        record_property(name, round(figure, 3))
    with capsys.disabled():
        shown = ", ".join(f"{name}={figure:.3g}" for name, figure in figures.items())
        print(f"\n  {OBJECTS} objects, {AT_ONCE} at once, one watcher: {shown}")
