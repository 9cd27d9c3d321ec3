"""No object costs the controller what its bytes do not show: neither memory nor the event loop, whatever its kind.

What it costs is counted in units (`controller/shape.py`). 20,000 objects are drawn, others each time, with

    DLR_HOSTILE_EXAMPLES=10 pytest -n0 tests/hostile/test_bytes.py --hypothesis-profile=random
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.api.pages import LIST_PAGE_SIZE, MOST_PAGE_BYTES, PageSize
from controller.errors import PageTooLarge
from controller.resources import Resource
from controller.shape import MOST_METADATA, units, units_of
from controller.shares import BURST_SECONDS, MEMORY_UNITS, SECONDS_A_UNIT, TIME_SHARE, Shares
from controller.store import Change, Store
from controller.watch.intake import LIST_AGAIN_SECONDS, MOST_WAITING_BYTES, Intake
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORLDS, NODECHECKS
from reconcilers.shapes import SHAPES
from tests.hostile.test_objects import TIMES
from tests.reconcilers.api import Api
from tests.reconcilers.process import Process

JSON = dict[str, Any]
OBJECTS = 2_000 * TIMES
MOST_LOOK_UNITS = 100_000
"""As many take 50 ms."""
BYTES_A_UNIT = 300
"""More memory than a unit takes: most of all a dictionary with one entry takes, with its text."""

MANY: dict[str, Callable[[int], Any]] = {
    "empty lists": lambda count: [[] for _ in range(count)],
    "empty dictionaries": lambda count: [{} for _ in range(count)],
    "small dictionaries": lambda count: {f"k{n}": {"a": 1, "b": []} for n in range(count // 3)},
    "names": lambda count: [{"name": "a"} for _ in range(count)],
    "numbers": lambda count: [n * 1.5 for n in range(count)],
    "texts": lambda count: [f"{n:06}" for n in range(count)],
    "one text": lambda count: "x" * (6 * count),
    "commas in a text": lambda count: "," * (6 * count),
    "levels": lambda count: "deep",
    "conditions": lambda count: [{"type": "Ready", "status": "True"}] * (count // 3),
    "containers": lambda count: [{"name": f"c{n}", "env": [{"name": "A"}]} for n in range(count // 5)],
}
CONTROLLERS = (ELASTICJOBS, NODECHECKS, ELASTICWORLDS)
"""Kinds whose status no tenant writes, nor the spec of the last: these have their own bounds in the CRDs."""
PLACES = ("status", "spec", "data", "imagePullSecrets", "rules", "subjects", "secrets")
METADATA_PLACES = ("labels", "annotations", "ownerReferences", "managedFields", "finalizers")
SIZES = (0, 3, 100, 5_000, 20_000)


def drawn(dice: random.Random, number: int) -> tuple[Resource, JSON]:
    """An object of any kind that is watched, with a great many values in some places."""
    resource = dice.choice(list(SHAPES))
    namespace = f"team-{dice.randrange(3)}" if resource.namespaced else None
    name = f"x{dice.randrange(400)}"
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"{namespace}-{name}",
        "resourceVersion": str(number),
    }
    obj: JSON = {"metadata": {key: value for key, value in metadata.items() if value is not None}}
    for _ in range(dice.randrange(1, 4)):
        many = MANY[dice.choice(list(MANY))](dice.choice(SIZES) if dice.random() < 0.3 else 10)
        places = PLACES[2 if resource == ELASTICWORLDS else 1 if resource in CONTROLLERS else 0 :]
        place = dice.choice((*places, *METADATA_PLACES))
        if place in METADATA_PLACES:
            obj["metadata"][place] = many
        else:
            obj[place] = {dice.choice(("containers", "conditions", "nodes", "agent", "template", "x")): many}
    return resource, obj


def text_of(type_: str, obj: JSON, dice: random.Random) -> bytes:
    line = orjson.dumps({"type": type_, "object": obj})
    levels = dice.choice((200, 300, 900))
    return line.replace(b'"deep"', b"[" * levels + b"]" * levels)


def play(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run what waits for nothing."""
    asyncio.run(coroutine)


class Town:
    """The caches of a controller whose clock stands, with all that its reconcilers register."""

    def __init__(self) -> None:
        process = Process(Api())
        self.now = 0.0
        self.shares = process.cache._shares
        self.sources = [each for found in process._controllers.values() for each in found.sources]
        self.intakes = {each: informer.intake for each, informer in process.cache._informers.items()}
        self.parsed = 0
        for resource, intake in self.intakes.items():
            intake._monotonic = lambda: self.now
            intake.add_handler(self._handler(resource))

    def _handler(self, resource: Resource) -> Callable[[Change], None]:
        mine = [source for source in self.sources if source.resource == resource]

        def hear(change: Change) -> None:
            for source in mine:
                for known in (change, Change(None, change.current), Change(change.current, change.current)):
                    list(source.requests(known))

        return hear

    def take(self, resource: Resource, line: bytes) -> None:
        intake = self.intakes[resource]
        intake.receive(intake._shape.event(line), line)


def kept(intake: Intake) -> Iterator[JSON]:
    return (obj for obj in intake.store.list() if obj["metadata"].get("namespace"))


def memory_of(value: Any) -> int:
    """Bytes of a parsed JSON value, shared texts and keys aside."""
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(map(memory_of, value.values()))
    if isinstance(value, list):
        return sys.getsizeof(value) + sum(map(memory_of, value))
    return sys.getsizeof(value)


def test_no_object_of_any_kind_takes_the_loop_or_the_cache_beyond_its_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    town, dice, most, parsed = Town(), random.Random(), 0, [0]
    town.shares.memory_units = 300_000
    loads = orjson.loads

    def counted(text: bytes) -> Any:
        parsed[0] += units(bytes(text))
        return loads(text)

    monkeypatch.setattr("controller.salvage.orjson.loads", counted)
    dice.seed(TIMES if TIMES == 1 else None)
    for number in range(1, OBJECTS + 1):
        resource, obj = drawn(dice, number)
        line = text_of(dice.choice(("ADDED", "MODIFIED", "MODIFIED", "DELETED")), obj, dice)
        parsed[0] = 0
        town.take(resource, line)
        most = max(most, parsed[0])
        town.now += dice.random()
        if town.intakes[resource]._waiting:
            play(town.intakes[resource].take_due())
        if number % 200 == 0:
            check(town)
    assert sum(len(intake.store) for intake in town.intakes.values()) > 200
    assert sum(len(intake.unreadable) for intake in town.intakes.values()) > 20
    print(f"{OBJECTS} objects, {most} units parsed for one at most, {town.shares.total} units kept")
    assert most <= MOST_LOOK_UNITS


def check(town: Town) -> None:
    """What is counted is what is there, within its bounds."""
    found: dict[str, int] = {}
    for intake in town.intakes.values():
        for obj in kept(intake):
            namespace = obj["metadata"]["namespace"]
            found[namespace] = found.get(namespace, 0) + units_of(obj)
        assert sum(each.size_bytes for each in intake._waiting.values()) <= MOST_WAITING_BYTES + 10_000_000
    assert found == town.shares.used and sum(found.values()) == town.shares.total
    assert all(used <= town.shares.memory_units for used in found.values())
    taken = sum(memory_of(obj) for intake in town.intakes.values() for obj in kept(intake))
    assert taken < BYTES_A_UNIT * max(town.shares.total, 1_000)


@pytest.mark.parametrize("name", MANY)
def test_a_unit_takes_a_bounded_amount_of_memory(name: str) -> None:
    value = MANY[name](5_000)
    assert memory_of(orjson.loads(orjson.dumps(value))) < BYTES_A_UNIT * max(units(orjson.dumps(value)), 10)


@pytest.mark.parametrize("resource", SHAPES, ids=lambda resource: resource.plural)
def test_what_a_tenant_writes_of_any_kind_is_bounded(resource: Resource) -> None:
    """Statuses, which no tenant writes but for a worker's report, apart."""
    parts = SHAPES[resource].parts
    tenants = sum(most for part, most in parts.items() if part == "spec" or resource not in CONTROLLERS)
    assert tenants + MOST_METADATA <= MOST_LOOK_UNITS or resource == ELASTICWORLDS


# --- a namespace's share of memory -------------------------------------------------------------------------


def line_of(
    name: str, version: int, count: int, namespace: str = "evil", type_: str = "MODIFIED", **more: Any
) -> bytes:
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"{namespace}-{name}",
        "resourceVersion": str(version),
    }
    template = {"spec": {"containers": [{"name": "m", "image": "x"}], "x": "many"}}
    obj = {"metadata": metadata | more, "spec": {"nodes": ["n"], "template": template}}
    many = b"[" + b",".join([b"[]"] * count) + b"]"
    return orjson.dumps({"type": type_, "object": obj}).replace(b'"many"', many)


class Checks:
    """The NodeChecks of a controller."""

    def __init__(self, shares: Shares | None = None) -> None:
        self.now = 0.0
        self.shares = shares or Shares()
        self.intake = Intake(NODECHECKS, SHAPES[NODECHECKS], self.shares, lambda: self.now)
        self.reported: list[str] = []
        self.intake.add_unreadable_handler(lambda _, found: self.reported.append(found.reason))

    def take(self, line: bytes) -> None:
        self.intake.receive(SHAPES[NODECHECKS].event(line), line)

    def names(self, namespace: str) -> int:
        return len(self.intake.store.list(namespace))


def test_checks_of_16_kb_take_their_namespace_s_share_and_no_more() -> None:
    checks = Checks(Shares(memory_units=MEMORY_UNITS // 10))
    for number in range(100):
        checks.now += 1.0
        checks.take(line_of(f"c{number}", number + 1, 5_100))
    checks.take(line_of("mine", 9_000, 5_100, "team-a"))
    used = checks.shares.used["evil"]
    assert MEMORY_UNITS // 10 - 20_000 < used <= MEMORY_UNITS // 10
    assert checks.names("evil") < 60 and checks.names("team-a") == 1
    assert len(checks.intake.unreadable) == len(checks.reported) == 100 - checks.names("evil")
    assert "namespace evil have" in checks.reported[0]
    assert sum(map(memory_of, checks.intake.store.list("evil"))) < 30 << 20


def test_a_refused_object_is_asked_for_again_once_there_is_room_and_not_all_the_time() -> None:
    checks = Checks(Shares(memory_units=25_000))
    for number in range(3):
        checks.take(line_of(f"c{number}", number + 1, 5_000))
    assert checks.names("evil") == 2 and not checks.intake.wants_list()
    checks.now += LIST_AGAIN_SECONDS
    assert not checks.intake.wants_list(), "there is no room"
    checks.take(line_of("c0", 9, 5_000, type_="DELETED"))
    assert checks.intake.wants_list()
    checks.intake.begin_list()
    assert not checks.intake.wants_list()
    checks.take(line_of("c2", 10, 5_000))
    assert checks.names("evil") == 2 and not checks.intake.unreadable


def test_what_is_remembered_of_objects_that_cannot_be_read_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("controller.watch.intake.MOST_UNREADABLE", 20)
    monkeypatch.setattr("controller.watch.intake.MOST_IN_A_NAMESPACE", 5)
    checks = Checks(Shares(memory_units=1))
    for number in range(60):
        checks.take(line_of(f"c{number}", number + 1, 3))
    assert len(checks.intake.unreadable) == 20
    checks.take(line_of("mine", 99, 3, "team-a"))
    assert ("team-a", "mine") in checks.intake.unreadable and len(checks.reported) == 21


def test_an_object_that_grows_beyond_its_share_goes_and_comes_back() -> None:
    checks = Checks(Shares(memory_units=15_000))
    for version, count, there in ((1, 5_000, 1), (2, 20_000, 0), (3, 5_000, 1)):
        checks.now += 100.0
        checks.take(line_of("c", version, count))
        assert (checks.names("evil"), len(checks.intake.unreadable)) == (there, 1 - there)
    checks.take(line_of("c", 4, 5_000, type_="DELETED"))
    assert not checks.shares.used and checks.shares.total == 0


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5), st.integers(0, 400_000)), max_size=80))
def test_all_namespaces_together_stay_within_what_there_is_and_a_small_one_has_room(moves: Any) -> None:
    shares, objects = Shares(memory_units=800_000, all_units=1_000_000), dict[tuple[str, int], int]()
    for namespace, name, after in moves:
        if shares.take(namespace, objects.get((namespace, name), 0), after):
            objects[namespace, name] = after
        assert shares.total == sum(shares.used.values()) == sum(objects.values())
        assert max(shares.used.values(), default=0) <= 800_000
        assert shares.total <= 1_000_000 + 250_000, "an equal part each beyond it"
    assert shares.take("new", 0, 1_000_000 // 5)


# --- a namespace's share of time ---------------------------------------------------------------------------


def test_a_large_object_that_changes_all_the_time_takes_no_more_than_its_share_of_the_loop() -> None:
    checks, counted = Checks(Shares(_debts={"evil": (BURST_SECONDS, 0.0)})), units(line_of("c", 1, 20_000))
    versions = set()
    for version in range(1, 91):
        checks.now += 1 / 30
        checks.take(line_of("c", version, 20_000, labels={"n": str(version)}))
        play(checks.intake.take_due())
        versions |= {obj["metadata"]["resourceVersion"] for obj in checks.intake.store.list()}
        assert len(checks.intake._waiting) <= 1
    seconds = len(versions) * counted * SECONDS_A_UNIT
    assert 0 < seconds <= TIME_SHARE * checks.now + 2 * counted * SECONDS_A_UNIT
    small = line_of("mine", 1, 3, "evil")
    checks.take(small)
    assert checks.intake.store.get("evil", "mine"), "small objects wait for nobody"
    checks.take(line_of("mine", 1, 20_000, "team-a"))
    assert checks.names("team-a") == 1, "nor do those of other namespaces"
    checks.now += checks.intake.seconds_to_next()
    play(checks.intake.take_due())
    (newest,) = (each for each in checks.intake.store.list("evil") if each["metadata"]["name"] == "c")
    assert newest["metadata"]["resourceVersion"] == "90" and not checks.intake._waiting


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from([3, 20_000]), st.sampled_from([0.0, 1.0])),
        max_size=60,
    )
)
@settings(deadline=None, max_examples=30)
def test_whatever_waits_the_store_ends_up_with_the_newest_of_each(moves: Any) -> None:
    checks = Checks(Shares(_debts={"evil": (BURST_SECONDS + 1.0, 0.0)}))
    newest: dict[str, int] = {}
    for version, (name, count, seconds) in enumerate(moves, start=1):
        checks.now += seconds
        is_gone = seconds == 1.0 and name in newest
        checks.take(line_of(name, version, count, type_="DELETED" if is_gone else "MODIFIED"))
        newest[name] = version
        if is_gone:
            del newest[name]
    checks.now += 1_000.0
    play(checks.intake.take_due())
    stored = {
        obj["metadata"]["name"]: int(obj["metadata"]["resourceVersion"]) for obj in checks.intake.store.list()
    }
    assert stored == newest


def test_what_waits_takes_a_bounded_amount_of_memory() -> None:
    checks = Checks(Shares(_debts={"evil": (1e6, 0.0)}))
    for number in range(50):
        checks.take(line_of(f"c{number}", number + 1, 300_000))
        play(checks.intake.take_due())
        assert sum(each.size_bytes for each in checks.intake._waiting.values()) <= MOST_WAITING_BYTES


# --- any object, as it comes -------------------------------------------------------------------------------

VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = (
    *("jobName", "checkName", "nodeName", "nodes", "phase", "ownerJob", "template", "replicaSpecs", "envs"),
    *("agent", "conditions", "verdicts", "results", "history", "incarnation", "managedBy", "createPods"),
)
PARTS = st.one_of(VALUES, st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5))
METADATA = st.fixed_dictionaries(
    {"name": st.just("evil"), "namespace": st.just("team-b"), "uid": st.just("u")},
    optional={
        "labels": VALUES,
        "annotations": VALUES,
        "ownerReferences": st.one_of(VALUES, st.lists(PARTS, max_size=2)),
        "generation": VALUES,
        "deletionTimestamp": VALUES,
        "managedFields": VALUES,
    },
)
ANY = st.fixed_dictionaries(
    {}, optional={"metadata": st.one_of(METADATA, VALUES), "spec": PARTS, "status": PARTS}
)
TOWN = Town()


@given(st.sampled_from(list(SHAPES)), ANY, st.sampled_from(["ADDED", "MODIFIED", "DELETED"]))
def test_whatever_an_object_is_the_watch_goes_on_and_no_registered_function_raises(
    resource: Resource, hostile: JSON, kind: str
) -> None:
    intake = TOWN.intakes[resource]
    intake.store.remove(("team-b", "evil"))
    try:
        line = orjson.dumps({"type": kind, "object": hostile})
    except TypeError:  # a number beyond 64 bits, which no API server sends
        return
    TOWN.take(resource, line)


def test_an_index_function_that_raises_costs_its_object_alone():
    store = Store()
    store.add_index("node", lambda raw: [raw["spec"]["nodeName"]])
    items = [
        {"metadata": {"name": n, "resourceVersion": "1"}, "spec": s}
        for n, s in (("a", {"nodeName": "n"}), ("b", {}))
    ]
    refused = []
    list(store.replace_stepwise(items, lambda obj, error: refused.append(obj["metadata"]["name"])))
    assert refused == ["b"] and [raw["metadata"]["name"] for raw in store.by_index("node", "n")] == ["a"]


@given(st.integers(1, 3_000_000), st.integers(1, 2_000))
def test_pages_of_any_objects_end_up_fitting_and_never_empty(object_bytes, objects):
    sizes, left, asked = PageSize(), objects, 0
    while left:
        asked += 1
        items = min(sizes.limit, left)
        size = items * object_bytes
        if sizes.most_bytes is not None and size > sizes.most_bytes:
            sizes.too_large(PageTooLarge(sizes.most_bytes + 1, 1_000_000))
            continue
        assert items == 1 or size <= MOST_PAGE_BYTES
        left -= items
        sizes.arrived(items, size)
        assert 1 <= sizes.limit <= LIST_PAGE_SIZE
    assert asked <= 2 * objects + 12


def test_a_time_out_leads_to_smaller_pages():
    sizes = PageSize()
    limits = []
    while sizes.limit > 1:
        sizes.timed_out()
        limits.append(sizes.limit)
    assert limits == [31, 3, 1]
