import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.api.fairness import FairQueue
from controller.clock import monotonic as now
from controller.queue.workqueue import BACKOFF_CAP_SECONDS, READY_AT_ONCE, QueueShutDown, WorkQueue
from controller.reconciler import Request


async def take(queue, within=0.0):
    async with asyncio.timeout(within or 1e-6):
        return await queue.get()


async def test_a_delay_goes_on_as_long_as_there_are_seconds_left():
    queue, asked_at = WorkQueue(), []

    def seconds_left():
        asked_at.append(now())
        return 11 - now()

    queue.add_after("a", 5, seconds_left)
    assert await take(queue, within=20) == "a"
    assert now() == pytest.approx(11)
    assert asked_at == pytest.approx([5, 11])


async def test_a_delay_ends_where_nobody_can_tell_what_is_left():
    queue = WorkQueue()
    queue.add_after("a", 5, lambda: 1 / 0)
    assert await take(queue, within=6) == "a"


async def test_shut_down_drops_what_waits_and_keeps_what_is_in_work():
    queue = WorkQueue()
    for key in ("a", "b"):
        queue.add(key)
    queue.add_after("c", 1)
    await take(queue)
    queue.shut_down()
    queue.add("d")
    with pytest.raises(QueueShutDown):
        await queue.get()
    assert len(queue.working_seconds()) == 1
    queue.done("a")
    assert not queue.working_seconds()


async def test_thousands_are_added_without_keeping_others_waiting():
    queue = WorkQueue()
    queue.add_all(range(3 * READY_AT_ONCE - 1))
    assert len(queue) == READY_AT_ONCE
    turns = 0
    while len(queue) < 3 * READY_AT_ONCE - 1:
        await asyncio.sleep(0)
        turns += 1
    assert turns == 2
    assert [await take(queue) for _ in range(len(queue))] == list(range(3 * READY_AT_ONCE - 1))


async def test_thousands_of_one_namespace_keep_nobody_else_waiting_and_administrators_come_first():
    queue = WorkQueue(flow_of=Request._make, goes_first={"ops"}.__contains__)
    for number in range(3_000):
        queue.add(Request("evil", f"check-{number}"))
    for namespace in ("team-a", "team-b", "ops"):
        queue.add(Request(namespace, "mine"))
        queue.add(Request(namespace, "other"))
    taken = [(await take(queue)).namespace for _ in range(10)]
    assert taken == ["ops", "ops", *["evil", "team-a", "team-b"] * 2, "evil", "evil"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy")), max_size=60))
def test_between_two_of_a_namespace_each_other_that_waits_has_its_turn(flows):
    queue = FairQueue()
    for number, flow in enumerate(flows):
        queue.push(flow, (*flow, number))
    taken = [queue.pop() for _ in flows]
    assert len(queue) == 0 and sorted(number for *_, number in taken) == list(range(len(flows)))
    for place, (namespace, _, _) in enumerate(taken):
        following = [later[0] for later in taken[place + 1 :]]
        if namespace in following:
            assert set(following) - {namespace} <= set(following[: following.index(namespace)])
    for flow in set(flows):
        assert [number for *of, number in taken if tuple(of) == flow] == [
            n for n, f in enumerate(flows) if f == flow
        ]


async def test_overtaken_delays_do_not_pile_up():
    queue = WorkQueue()
    for _ in range(10_000):
        queue.add_after("a", 300)
        queue.add("a")
        await take(queue)
        queue.done("a")
    assert len(queue._due) < 200


class CountingObserver:
    def __init__(self):
        self.adds = self.takes = self.ends = self.retries = self.depth = 0

    def added(self, depth):
        self.adds += 1
        self.depth = depth

    def taken(self, depth, waited_seconds):
        assert waited_seconds >= 0
        self.takes += 1
        self.depth = depth

    def finished(self, worked_seconds):
        assert worked_seconds >= 0
        self.ends += 1

    def retried(self):
        self.retries += 1


KEYS = st.sampled_from("abc")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), KEYS),
        st.tuples(st.just("after"), KEYS, st.floats(0, 20), st.floats(0, 20)),
        st.tuples(st.just("fail"), KEYS),
        st.tuples(st.just("pass"), st.floats(0, 15)),
    ),
    max_size=40,
)


@given(steps=STEPS, work_seconds=st.floats(0, 4), workers=st.integers(1, 3))
@settings(max_examples=200, deadline=None)
async def test_every_wish_is_worked_on_after_it_was_made_and_never_twice_at_once(
    steps, work_seconds, workers
):
    """For any interleaving: one in flight a key, no key lost, none too early, and the queue comes to rest."""
    observer = CountingObserver()
    queue = WorkQueue(observer=observer)
    in_work = set()
    started = {key: [] for key in "abc"}

    async def worker():
        while True:
            try:
                key = await queue.get()
            except QueueShutDown:
                return
            assert key not in in_work
            in_work.add(key)
            started[key].append(now())
            await asyncio.sleep(work_seconds)
            in_work.remove(key)
            queue.done(key)

    tasks = [asyncio.create_task(worker()) for _ in range(workers)]
    wishes = []
    earliest = {key: float("inf") for key in "abc"}
    for step in steps:
        match step:
            case ("add", key):
                queue.add(key)
                wishes.append((key, now()))
                earliest[key] = min(earliest[key], now())
            case ("after", key, delay, more):
                until = now() + delay + more
                queue.add_after(key, delay, lambda until=until: until - now())
                wishes.append((key, now()))
                earliest[key] = min(earliest[key], now() + delay)
            case ("fail", key):
                queue.add_rate_limited(key)
                wishes.append((key, now()))
                earliest[key] = min(earliest[key], now() + 0.005)
            case ("pass", seconds):
                await asyncio.sleep(seconds)
    await asyncio.sleep(BACKOFF_CAP_SECONDS * 2)
    assert len(queue) == 0 and not in_work
    for key, wished_at in wishes:
        assert started[key][-1] >= wished_at
    for key, times in started.items():
        assert not times or times[0] >= earliest[key] - 1e-6
    assert observer.takes == observer.ends == sum(map(len, started.values()))
    assert observer.depth == 0
    queue.shut_down()
    await asyncio.gather(*tasks)
