"""Who may read /metrics, and how often it is rendered."""

import asyncio

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from controller.clock import monotonic as now
from controller.errors import Unavailable
from controller.resources import TOKEN_REVIEWS
from controller.serving.metrics_access import MOST_KNOWN, MOST_REVIEWS, MetricsAccess
from controller.serving.servers import Renderer


class Reviews:
    """Knows `prometheus`, who may, and `anybody`, who may not."""

    def __init__(self):
        self.asked = []
        self.away = False
        self.gate = None

    async def create(self, resource, review):
        if self.gate is not None:
            await self.gate.wait()
        if self.away:
            raise Unavailable("down")
        self.asked.append(resource.plural)
        spec = review["spec"]
        if resource == TOKEN_REVIEWS:
            known = spec["token"] in ("prometheus", "anybody")
            return {"status": {"authenticated": known, "user": {"username": spec["token"], "groups": ["g"]}}}
        assert spec["nonResourceAttributes"] == {"path": "/metrics", "verb": "get"} and spec["groups"] == [
            "g"
        ]
        return {"status": {"allowed": spec["user"] == "prometheus"}}


async def statuses(access, *headers):
    refusals = [await access.refusal(each) for each in headers]
    return [200 if refusal is None else refusal.status for refusal in refusals]


async def test_the_bearer_of_a_token_that_may_get_metrics_sees_them_and_nobody_else():
    access = MetricsAccess(Reviews())
    found = await statuses(
        access,
        "Bearer prometheus",
        "bearer prometheus",
        "Bearer anybody",
        "Bearer x",
        "",
        "Basic prometheus",
        "Bearer ",
        "Bearer \udcff",  # a byte beyond ASCII, as aiohttp decodes it: no JSON can hold it
    )
    assert found == [200, 200, 403, 401, 401, 401, 401, 401]


async def test_answers_are_remembered_for_a_while_and_an_api_server_that_is_away_is_asked_again():
    reviews = Reviews()
    access = MetricsAccess(reviews)
    reviews.away = True
    assert await statuses(access, "Bearer prometheus") == [503]
    reviews.away = False
    for _ in range(50):
        assert await statuses(access, "Bearer prometheus", "Bearer x") == [200, 401]
    assert len(reviews.asked) == 3
    await asyncio.sleep(61)
    await statuses(access, "Bearer prometheus", "Bearer x")
    assert len(reviews.asked) == 6


async def test_false_tokens_push_out_no_good_one_and_take_few_reviews_at_a_time():
    reviews = Reviews()
    access = MetricsAccess(reviews)
    await statuses(access, "Bearer prometheus")
    for number in range(3 * MOST_KNOWN):
        await statuses(access, f"Bearer {number}")
    asked = len(reviews.asked)
    assert await statuses(access, "Bearer prometheus") == [200] and len(reviews.asked) == asked
    assert len(access._refused) <= MOST_KNOWN
    reviews.gate = asyncio.Event()
    many = [asyncio.create_task(access.refusal(f"Bearer new{n}")) for n in range(100)]
    await asyncio.sleep(0.1)
    assert sum(task.done() for task in many) == 100 - MOST_REVIEWS
    assert await statuses(access, "Bearer prometheus") == [200]
    await asyncio.sleep(61)
    again = asyncio.create_task(access.refusal("Bearer prometheus"))
    await asyncio.sleep(0.1)
    assert not again.done(), "it was allowed before, so it is reviewed beside them"
    reviews.gate.set()
    await asyncio.gather(*many)
    assert await again is None


class Counted(Collector):
    def __init__(self):
        self.times = 0

    def collect(self):
        self.times += 1
        yield GaugeMetricFamily("counted", "Counted", value=self.times)


async def test_metrics_are_rendered_once_a_second_whatever_format_and_however_many_ask(threadless):
    registry, counted = CollectorRegistry(), Counted()
    registry.register(counted)
    counted.times = 0
    renderer = Renderer(registry)
    await asyncio.gather(*(renderer.of("text/plain") for _ in range(200)))
    assert counted.times == 1
    await asyncio.gather(
        *(renderer.of(accept) for accept in ["application/openmetrics-text", "text/plain"] * 20)
    )
    assert counted.times <= 1 + now()
