"""Work in slices: what is large gives others a turn now and then."""

from __future__ import annotations

import asyncio

from controller.slices import SLICE_SECONDS, let_go


class Slow:
    """Takes a while to free."""

    def __del__(self) -> None:
        asyncio.get_running_loop()._played.skipped_seconds += SLICE_SECONDS / 100  # type: ignore[attr-defined]


async def test_others_have_a_turn_while_many_objects_are_freed() -> None:
    objects, left = [Slow() for _ in range(1_000)], []
    freeing = asyncio.create_task(let_go(objects))
    while not freeing.done():
        left.append(len(objects))
        await asyncio.sleep(0)
    assert objects == []
    assert len(set(left)) > 3, "all at once would be 1,000 and then none"
