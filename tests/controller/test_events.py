import asyncio
from contextlib import asynccontextmanager

from hypothesis import given
from hypothesis import strategies as st

from controller.errors import AlreadyExists, Forbidden, NotFound, Unavailable
from controller.events import (
    BUCKET_BURST,
    COMBINED_PREFIX,
    SIMILAR_LIMIT,
    Correlator,
    EventRecorder,
    InvolvedObject,
    Occurrence,
)
from controller.resources import EVENTS
from tests.controller.waiting import background

JOB = {
    "apiVersion": "elastic.iml.github.io/v1alpha1",
    "kind": "ElasticJob",
    "metadata": {"name": "digits", "namespace": "ns", "uid": "u1"},
}
SUBJECT = InvolvedObject("v1", "Pod", "ns", "a", "u")


def occurrence(message="m", reason="R", subject=SUBJECT):
    return Occurrence(subject, "Normal", reason, message)


def test_too_many_similar_become_one_combined_series():
    correlator = Correlator()
    series = [correlator.observe(occurrence(f"step {n}"), n) for n in range(20)]
    singles, combined = series[:SIMILAR_LIMIT], series[SIMILAR_LIMIT:]
    assert len({id(s) for s in singles}) == SIMILAR_LIMIT
    assert len({id(s) for s in combined}) == 1
    assert combined[0].count == 20 - SIMILAR_LIMIT and combined[0].message == f"{COMBINED_PREFIX}step 19"


def test_one_reason_of_an_object_cannot_flood_nor_drown_others_and_recovers_slowly():
    correlator = Correlator()
    written = [correlator.observe(occurrence(f"m{n}"), 0) for n in range(100)]
    assert sum(s is not None for s in written) == BUCKET_BURST
    assert correlator.observe(occurrence("late"), 299) is None
    assert correlator.observe(occurrence("later"), 301) is not None
    assert correlator.observe(occurrence(reason="Other"), 0) is not None
    assert correlator.observe(occurrence(subject=InvolvedObject("v1", "Pod", "ns", "b", "u")), 0) is not None


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.floats(0, 50)), max_size=200))
def test_writes_of_one_reason_never_exceed_burst_plus_refill(history):
    correlator, now, writes = Correlator(), 0.0, 0
    for message, wait in history:
        now += wait
        writes += correlator.observe(occurrence(message), now) is not None
        assert writes <= BUCKET_BURST + now / 300 + 1


class EventApi:
    """What the recorder needs of a client."""

    def __init__(self):
        self.events = {}
        self.writes = []
        self.failures = []
        self.loses_answers = False

    async def create(self, resource, event):
        assert resource == EVENTS
        if self.loses_answers:
            await self.store(event)
        await self._fate("create")
        return await self.store(event)

    async def store(self, event):
        if event["metadata"]["name"] in self.events:
            raise AlreadyExists(409, "AlreadyExists", "there")
        self.events[event["metadata"]["name"]] = event
        return event

    async def patch(self, resource, name, patch, namespace):
        await self._fate("patch")
        if name not in self.events:
            raise NotFound(404, "NotFound", "gone")
        self.events[name].update(patch)

    async def _fate(self, verb):
        self.writes.append(verb)
        await asyncio.sleep(0.01)
        if self.failures:
            raise self.failures.pop(0)


@asynccontextmanager
async def recording(api):
    recorder = EventRecorder(api, "dlr-controller")
    async with background(recorder.run()):
        yield recorder


def record(api, *waits_and_events):
    async def scenario():
        async with recording(api) as recorder:
            for item in waits_and_events:
                if isinstance(item, tuple):
                    recorder.event(*item if isinstance(item[0], dict) else (JOB, *item))
                else:
                    await asyncio.sleep(item)
            await recorder.flush(3600)

    asyncio.run(scenario())
    return list(api.events.values())


def test_event_is_what_kubectl_describe_looks_for():
    (event,) = record(EventApi(), ("Warning", "WorkerFailed", "rank 1 died"))
    assert event["involvedObject"] == {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "name": "digits",
        "namespace": "ns",
        "uid": "u1",
    }
    assert event["metadata"]["namespace"] == "ns" and event["metadata"]["name"].startswith("digits.")
    assert event["count"] == 1 and event["firstTimestamp"] == event["lastTimestamp"]
    assert event["source"] == {"component": "dlr-controller"} and event["type"] == "Warning"


def test_repeated_event_is_patched_not_created_again():
    api = EventApi()
    (event,) = record(api, ("Normal", "R", "m"), 5, ("Normal", "R", "m"))
    assert api.writes == ["create", "patch"] and event["count"] == 2


def test_burst_costs_one_write_with_the_final_count():
    api = EventApi()
    (event,) = record(api, *[("Normal", "R", "m")] * 20)
    assert api.writes == ["create"] and event["count"] == 20


def test_event_that_the_server_forgot_is_made_anew():
    api = EventApi()

    async def scenario():
        async with recording(api) as recorder:
            recorder.event(JOB, "Normal", "R", "m")
            await recorder.flush(10)
            api.events.clear()
            recorder.event(JOB, "Normal", "R", "m")
            await recorder.flush(10)

    asyncio.run(scenario())
    (event,) = api.events.values()
    assert event["count"] == 1


def test_outage_delays_events_and_loses_none():
    api = EventApi()
    api.failures = [Unavailable("down")] * 8
    events = record(api, ("Normal", "A", "m"), ("Normal", "B", "m"))
    assert {e["reason"] for e in events} == {"A", "B"}


def test_event_whose_answer_is_lost_is_there_once_with_its_count():
    api = EventApi()
    api.loses_answers = True
    api.failures = [Unavailable("the answer was lost")]
    (event,) = record(api, ("Normal", "A", "m"), 0.1, ("Normal", "A", "m"))
    assert event["count"] == 2


def test_refused_event_is_dropped_and_the_next_is_written():
    api = EventApi()
    api.failures = [Forbidden(403, "Forbidden", "namespace is being terminated")]
    events = record(api, ("Normal", "A", "m"), ("Normal", "B", "m"))
    assert [e["reason"] for e in events] == ["B"]


async def test_recording_never_raises_and_never_waits():
    recorder = EventRecorder(EventApi(), "c")  # nobody writes
    recorder.event({}, "Normal", "R", "m")
    for n in range(1100):
        obj = {**JOB, "metadata": {"name": f"j{n}", "namespace": "ns", "uid": f"{n}"}}
        recorder.event(obj, "Normal", "R", "m" * 9000)
    assert len(recorder._pending["ns"]) == 1000


def of_namespace(namespace, number):
    metadata = {"name": f"j{number}", "namespace": namespace, "uid": f"{number}"}
    return {**JOB, "metadata": metadata}, "Normal", "R", "m"


def test_a_thousand_events_in_one_namespace_keep_none_of_another_waiting():
    flood = [of_namespace("evil", number) for number in range(1_099)]
    events = record(EventApi(), *flood, of_namespace("ns", 1_099))
    namespaces = [event["metadata"]["namespace"] for event in events]
    assert namespaces.index("ns") == 1 and len(namespaces) == 1_001


def test_cluster_scoped_objects_have_their_events_in_default():
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n" * 253, "uid": "u"}}
    (event,) = record(EventApi(), (node, "Warning", "R", "m" * 5000))
    assert event["metadata"]["namespace"] == "default" and "namespace" not in event["involvedObject"]
    assert len(event["metadata"]["name"]) <= 253 and len(event["message"]) == 1024
