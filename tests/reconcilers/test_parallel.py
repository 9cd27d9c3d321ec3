from __future__ import annotations

import asyncio

import pytest

from controller.errors import Conflict, Forbidden
from reconcilers.runtime.acts import PARALLEL_WRITES, in_parallel


async def test_ten_thousand_calls_are_never_more_tasks_than_run_at_once() -> None:
    most, done = 0, []

    async def call(number: int) -> None:
        nonlocal most
        await asyncio.sleep(0)
        most = max(most, len(asyncio.all_tasks()))
        done.append(number)

    await in_parallel(call(number) for number in range(10_000))
    assert sorted(done) == list(range(10_000))
    assert most <= PARALLEL_WRITES + 1


async def test_the_first_error_is_raised_when_all_have_ended() -> None:
    done = []

    async def call(number: int) -> None:
        await asyncio.sleep(0)
        if number % 10 == 3:
            raise ValueError(number)
        done.append(number)

    with pytest.raises(ValueError, match=r"^3$"):
        await in_parallel(call(number) for number in range(100))
    assert len(done) == 90


async def test_whoever_is_cancelled_leaves_no_call_behind() -> None:
    running = 0

    async def call() -> None:
        nonlocal running
        running += 1
        if running == PARALLEL_WRITES:
            time_out.reschedule(asyncio.get_running_loop().time())
        try:
            await asyncio.Event().wait()
        finally:
            running -= 1

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(300) as time_out:
            await in_parallel(call() for _ in range(100))
    assert running == 0


async def test_a_refusal_is_raised_before_any_other_error() -> None:
    async def call(error: Exception) -> None:
        raise error

    quota = Forbidden(403, "Forbidden", "exceeded quota")
    with pytest.raises(Forbidden):
        await in_parallel(call(error) for error in (Conflict(409, "Conflict", "changed"), quota))
