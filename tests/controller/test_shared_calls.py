"""Of many who want the same at once, one asks."""

import asyncio

import pytest

from controller.tasks import SharedCalls


async def test_all_who_come_meanwhile_get_the_answer_of_one_call_and_those_after_it_another() -> None:
    calls, go_on = SharedCalls[int](), asyncio.Event()
    made = []

    async def call() -> int:
        made.append(1)
        await go_on.wait()
        return len(made)

    waiting = [asyncio.create_task(calls.ask("key", call)) for _ in range(100)]
    await asyncio.sleep(0)
    assert "key" in calls and len(calls) == 1
    go_on.set()
    assert await asyncio.gather(*waiting) == [1] * 100
    assert len(calls) == 0 and await calls.ask("key", call) == 2


async def test_keys_do_not_wait_for_each_other() -> None:
    calls, never = SharedCalls[int](), asyncio.Event()

    async def hang() -> int:
        await never.wait()
        return 0

    async def one() -> int:
        return 1

    hanging = asyncio.create_task(calls.ask("a", hang))
    assert await calls.ask("b", one) == 1
    never.set()
    await hanging


async def test_all_get_the_error_and_a_cancelled_waiter_takes_nobody_with_it() -> None:
    calls, go_on = SharedCalls[int](), asyncio.Event()

    async def fail() -> int:
        await go_on.wait()
        raise ValueError("of the call")

    first, second = (asyncio.create_task(calls.ask("key", fail)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(ValueError, match="of the call"):
        await second
    assert first.cancelled() and len(calls) == 0
