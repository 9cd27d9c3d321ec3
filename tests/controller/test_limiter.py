"""The limit of concurrent requests against a model of a server, in virtual time."""

import asyncio

import pytest

from controller.api.fairness import current_flow
from controller.api.limiter import RequestLimiter
from controller.clock import monotonic as now
from controller.errors import NotFound, Unavailable, error_of_status


class Server:
    """Works on one request after the other, each for `work_seconds`, so that who sends many waits long."""

    def __init__(self, work_seconds):
        self.work_seconds = work_seconds
        self.free_at = 0.0
        self.latencies = []
        self.answered_at = []

    async def answer(self):
        sent = now()
        self.free_at = max(self.free_at, sent) + self.work_seconds
        await asyncio.sleep(self.free_at - sent)
        self.latencies.append(now() - sent)
        self.answered_at.append(now())


async def flood(limiter, server, count, flow="big"):
    """So many requests, all wanted at once."""
    current_flow.set((flow, None))

    async def request():
        async with limiter.slot():
            await server.answer()

    await asyncio.gather(*(request() for _ in range(count)))


def test_a_slow_server_is_asked_for_no_more_than_it_answers_promptly():
    async def scenario():
        limiter, server = RequestLimiter(), Server(work_seconds=0.1)
        await flood(limiter, server, 1000)
        assert max(server.latencies) == pytest.approx(6.4), "all 64 at first"
        assert max(server.latencies[200:]) < 1.3
        assert server.free_at == pytest.approx(100.0), "and it was never idle"
        return limiter

    limiter = asyncio.run(scenario())
    assert limiter.in_flight == 0


async def test_the_limit_comes_back_with_the_server():
    limiter, server = RequestLimiter(), Server(work_seconds=0.5)
    await flood(limiter, server, 300)
    assert limiter.limit == 4
    server.work_seconds = 0.001
    await flood(limiter, server, 3000)
    assert limiter.limit == 64


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("busy", status=429, processed=False),
        Unavailable("no etcd", status=503),
        Unavailable("late"),
    ],
)
async def test_overload_halves_the_limit_once_for_all_that_were_on_their_way(error):
    limiter = RequestLimiter()

    async def request():
        with pytest.raises(Unavailable):
            async with limiter.slot():
                await asyncio.sleep(0.1)
                raise error

    await asyncio.gather(*(request() for _ in range(64)))
    assert limiter.limit == 32


async def test_a_server_that_cannot_be_reached_or_refuses_or_whose_webhook_is_away_is_not_slow():
    limiter = RequestLimiter()
    webhook = error_of_status(
        {"message": 'Internal error occurred: failed calling webhook "w": refused'}, 500
    )
    for error in (Unavailable("refused", processed=False), NotFound(404, "NotFound", "no"), webhook):
        with pytest.raises(type(error)):
            async with limiter.slot():
                raise error
    assert limiter.limit == 64


async def test_one_request_of_another_flow_does_not_wait_for_a_thousand():
    limiter, server = RequestLimiter(), Server(work_seconds=0.1)
    big = asyncio.create_task(flood(limiter, server, 1000))
    await asyncio.sleep(30.0)
    asked = now()
    await flood(limiter, server, 1, flow="small")
    assert now() - asked < 2.0
    assert not big.done()
    big.cancel()


async def test_who_gives_up_waiting_leaves_no_slot_behind():
    limiter, server = RequestLimiter(most=1, least=1), Server(work_seconds=1.0)
    tasks = [asyncio.create_task(flood(limiter, server, 1)) for _ in range(10)]
    await asyncio.sleep(0.5)
    for task in tasks[1:9]:
        task.cancel()
    await asyncio.wait(tasks)
    assert tasks[9].exception() is None
    assert limiter.in_flight == 0 and now() == pytest.approx(2.0)
