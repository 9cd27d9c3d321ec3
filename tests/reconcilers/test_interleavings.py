"""The controller is killed, lags and is succeeded at every moment of a job's life; nothing comes of it but time.

A job's life (`life.py`) is played in phases, from one quiet moment to the next, by the real reconcilers over an API
server in memory. Each phase is played undisturbed once; that says how it has to end. Then it is played again with

* a kill after each of its writes, and after each pair of its writes;
* a write of the old leader that arrives when the new one has acted already;
* watches that lag, all together and each kind of object by itself.

All of that at once, with agents that go their own way, is in tests/played/test_jobs.py.

What there is in the end, the worlds that were formed, incarnations, restarts and budgets, and the Events must be those
of the undisturbed run. Each failure names its `Interleaving`, which `play` plays again.

By hand, with as many processes as there are cores, `DLR_INTERLEAVINGS=1 pytest -n 16 --dist worksteal` plays them without
gaps and with three kills: nine minutes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import pytest

from controller.resources import (
    LEASES,
    NODES,
    PODDISRUPTIONBUDGETS,
    PODS,
)
from reconcilers.runtime.kinds import (
    ELASTICJOBS,
    ELASTICWORKERS,
    ELASTICWORLDS,
    NODECHECKS,
    SCALEPLANS,
)
from tests.reconcilers.api import Api, Event, Write
from tests.reconcilers.cluster_model import act, lose_node, renew_leases
from tests.reconcilers.life import LIFE, Chapter, Run, again, beginning, edit, submit, undisturbed
from tests.reconcilers.outcome import Told, differences, end_state, fingerprint, told, unsound, worlds
from tests.reconcilers.process import Lag, Process

BY_HAND = int(os.environ.get("DLR_INTERLEAVINGS", "0"))
STRIDE = 1 if BY_HAND else 3
"""Of the systematic families that would take too long, every third is played."""
WATCHED = {
    resource.kind: resource
    for resource in (
        ELASTICJOBS,
        ELASTICWORKERS,
        LEASES,
        NODECHECKS,
        NODES,
        PODDISRUPTIONBUDGETS,
        PODS,
        SCALEPLANS,
    )
}
ON_DEAD_NODE = {"j-worker-1-2"}
COUNTED = {
    *(
        "WorldFormed",
        "WorldBroken",
        "WorldChanged",
        "WorkerRelaunched",
        "MemoryRaised",
        "Suspended",
        "Resumed",
    ),
    *("TrainingSucceeded", "ScaleRequested", "ScalePlanTaken", "Cordoned", "CheckFinished"),
}
"""Events that tell of something that happened once. Others tell of what is seen: once more does no harm."""
PHASES = [phase.name for phase in LIFE]
pytestmark = pytest.mark.timeout(0 if BY_HAND else 900)


@dataclass(frozen=True)
class Interleaving:
    """One way in which a phase can go."""

    phase: str
    start: int = 0
    """The first controller was killed after so many writes; the next one begins there."""
    kills: tuple[int, ...] = ()
    """Further ones, after so many writes since."""
    late: bool = False
    """The write after `start` was under way at the kill."""
    late_after: int | None = None
    """It arrives after so many writes of the next one; None: when that has nothing more to do."""
    behind: int = 0
    """So many versions the caches lag while there is something else to do."""
    of: str | None = None
    """The kind that lags; None: all."""
    seed: int | None = None
    """Draws each lag, and the order of work."""

    def __repr__(self) -> str:
        told = (
            f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default
        )
        return f"Interleaving({', '.join(told)})"


TOLD_AFTER = "an Event is told after the write that it tells of: killed in between, nobody tells it"


FOUND = {
    "counted twice: a stale phase, written without a resourceVersion, takes an end back": Interleaving(
        "Pod failure", start=1, behind=3
    ),
    "a worker that is looked at before the cache has its job is looked at by nobody again": Interleaving(
        "create", start=3, behind=1, of="ElasticJob"
    ),
    "a worker deletes Pods of later incarnations than the one that it knows": Interleaving(
        "check", start=12, behind=3, of="ElasticWorker"
    ),
    "a job gives up its world once more for a check that has finished": Interleaving(
        "check", start=3, behind=3, of="NodeCheck"
    ),
    "a Pod that is gone is taken for its namesake, which has not ended": Interleaving(
        "resume", behind=3, of="Pod"
    ),
    "a member that runs is called Pending by an old state of its Pod, and relaunched": Interleaving(
        "roll", behind=3, of="Pod"
    ),
}
"""One of each."""


def _cells() -> list[tuple[str, str]]:
    """The phases, with the kinds of objects that matter in them."""
    kinds = ("ElasticJob", "ElasticWorker", "Pod")
    cells = [(phase, of) for phase in PHASES for of in kinds]
    cells += [
        ("create", "Lease"),
        ("grow", "Lease"),
        ("roll", "ScalePlan"),
        ("grow", "ScalePlan"),
        ("check", "NodeCheck"),
    ]
    return cells


each_phase = pytest.mark.parametrize("phase", PHASES)


@cache
def life() -> dict[str, Chapter]:
    return asyncio.run(undisturbed())


def run_of(way: Interleaving) -> Run:
    chapter = life()[way.phase]
    lag = Lag(way.behind, (WATCHED[way.of],) if way.of else (), way.seed)
    late = chapter.moments[way.start] if way.late else None
    api = late.before.copy() if late else chapter.after(way.start)
    write = late.write if late else None
    return Run(api, chapter.phase.script, lag, kill_after=way.kills, late=write, late_after=way.late_after)


def play(way: Interleaving) -> list[str]:
    """What came out otherwise than without any disturbance, a line each."""
    run = run_of(way)
    return asyncio.run(_played(run, life()[way.phase]))


async def _played(run: Run, chapter: Chapter) -> list[str]:
    try:
        await run.settle()
    except AssertionError as error:
        return [str(error)]
    wrong = list(differences(_end_of(chapter.phase.name), end_state(run.api)))
    expected = _worlds_of(chapter.phase.name)
    wrong += [f"a world that should not be: {world}" for world in worlds(run.api) if world not in expected]
    wrong += sorted(set(unsound(run.api)).difference(unsound(chapter.end)))
    return wrong + run.errors


@cache
def _end_of(phase: str) -> dict[str, Any]:
    return end_state(life()[phase].end)


@cache
def _worlds_of(phase: str) -> frozenset[Any]:
    return frozenset(worlds(life()[phase].end))


def play_all(ways: Iterable[Interleaving]) -> None:
    """Each of them.

    Raises:
        AssertionError: with the first few that ended otherwise, and how many there are.
    """

    async def all_of_them() -> list[str]:
        wrong = []
        for way in ways:
            found = await _played(run_of(way), life()[way.phase])
            if found:
                wrong.append("\n    ".join([repr(way), *found[:6]]))
        return wrong

    _none_of(asyncio.run(all_of_them()))


def _none_of(wrong: Sequence[str]) -> None:
    shown = wrong if BY_HAND else wrong[:5]
    assert not wrong, f"{len(wrong)} interleavings ended otherwise:\n" + "\n".join(shown)


def starts(phase: str, *, last: bool = True) -> range:
    """After how many writes: from none to all, or to all but the last."""
    return range(len(life()[phase].moments) + (1 if last else 0))


# --- without any disturbance ----------------------------------------------------------------------------------


def test_undisturbed_life_goes_as_it_should() -> None:
    """Or the comparisons below would prove little."""
    states = {name: chapter.end.find(ELASTICJOBS, "j") or {} for name, chapter in life().items()}
    reached = {}
    for name, job in states.items():
        status = job.get("status", {})
        world = status.get("rendezvous") or status.get("cluster") or {}
        reached[name] = (status.get("phase"), world.get("round"), world.get("phase") or world.get("version"))
    assert reached == {
        "create": ("Running", 1, "Formed"),
        "process failure": ("Running", 2, "Formed"),
        "Pod failure": ("Running", 3, "Formed"),
        "out of memory": ("Running", 4, "Formed"),
        "roll": ("Running", 10, "Formed"),
        "shrink": ("Running", 11, "Formed"),
        "grow": ("Running", 12, "Formed"),
        "node loss": ("Running", 13, "Formed"),
        "check": ("Running", 14, "Formed"),
        "suspend": ("Suspended", 14, "Forming"),
        "resume": ("Running", 15, "Formed"),
        "hang": ("Running", 16, "Formed"),
        "stand by": ("Running", 16, "Formed"),
        "stand in": ("Running", 17, "Formed"),
        "finish": ("Succeeded", 17, "Formed"),
        "delete and make again": ("Running", 1, "Formed"),
        "delete": (None, None, None),
        "roles": ("Running", None, 1),
        "server loss": ("Running", None, 2),
        "server moves": ("Running", None, 3),
        "roles suspend": ("Suspended", None, 3),
        "roles resume": ("Running", None, 3),
        "chief finishes": ("Succeeded", None, 3),
    }


def test_after_a_hang_the_world_and_the_history_name_who_was_first_and_not_who_told_first() -> None:
    """Also where the next world waits, which begins from what the last one said of itself."""
    end = life()["hang"].end
    status = end.get(ELASTICJOBS, "j")["status"]
    told = "j-worker-2 rank 2: no step for 11 s: rank 2 is in read_cache"
    assert status["rendezvous"]["reason"] == told
    recovering = [e["reason"] for e in status["history"] if e["state"] == "Recovering" and e["round"] >= 15]
    assert recovering == [told, told]
    assert [event.message for event in end.events if event.reason == "WorldBroken"] == [
        f"round 15: {told} (Hang)"
    ]


@each_phase
def test_every_quiet_moment_is_sound(phase: str) -> None:
    chapter = life()[phase]
    assert [*chapter.errors, *unsound(chapter.end)] == []


# --- kills ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kills:
    """What came of kills after any write of a phase, and after any two."""

    wrong: tuple[str, ...]
    played: int
    covered: int
    """With those that met another in the same state: they go on alike, and are played once."""
    told_after: Mapping[int, tuple[Event, ...]]
    """By the writes that were made before the only kill, what the successor told."""


@cache
def kills(phase: str) -> Kills:
    """By hand: also after any three."""
    return asyncio.run(_explore(life()[phase]))


async def _explore(chapter: Chapter) -> Kills:
    phase, most = chapter.phase.name, 2 if BY_HAND else 1
    ways = [(Interleaving(phase, n), chapter.after(n)) for n in range(len(chapter.moments) + 1)]
    known: dict[bytes, tuple[Event, ...]] = {}
    wrong, told_after, covered = [], {}, 0
    while ways:
        (way, api), covered = ways.pop(), covered + 1
        mark, before = fingerprint(api), len(api.events)
        if mark not in known:
            run = Run(api, chapter.phase.script, keeps_moments=len(way.kills) < most)
            found = await _played(run, chapter)
            known[mark] = tuple(run.api.events[before:])
            if found:
                wrong.append("\n    ".join([repr(way), *found[:6]]))
            first = way.kills[-1] + 1 if way.kills else 1
            for number, moment in enumerate(run.moments, first):
                ways.append((Interleaving(phase, way.start, (*way.kills, number)), moment.after))
        if not way.kills:
            told_after[way.start] = known[mark]
    return Kills(tuple(wrong), len(known), covered, told_after)


@each_phase
def test_kill_after_any_write_and_after_any_two(phase: str) -> None:
    _none_of(kills(phase).wrong)


@each_phase
def test_write_of_an_ex_leader_that_arrives_late(phase: str) -> None:
    play_all(
        Interleaving(phase, start, late=True, late_after=after)
        for start in starts(phase, last=False)
        for after in ((1, 2, 4, None) if BY_HAND else (1 + start % 3 if start % 2 else None,))
    )


@each_phase
def test_delete_at_any_moment_leaves_nothing(phase: str) -> None:
    """But what a dead node keeps, since its kubelet cannot say that it is gone."""

    async def left_after(api: Api) -> set[str]:
        for job in api.list(ELASTICJOBS):
            api.delete(ELASTICJOBS, job["metadata"]["name"])
        await Run(api).settle()
        kinds = (ELASTICJOBS, ELASTICWORKERS, LEASES, PODDISRUPTIONBUDGETS, PODS)
        return {obj["metadata"]["name"] for kind in kinds for obj in api.list(kind)} - ON_DEAD_NODE

    for start in starts(phase)[::STRIDE]:
        assert asyncio.run(left_after(life()[phase].after(start))) == set(), Interleaving(phase, start)


# --- caches that are late -------------------------------------------------------------------------------------


@each_phase
def test_watches_that_lag(phase: str) -> None:
    """Own writes are known at once (`Informer.note_write`), and all else some versions late."""
    play_all(
        Interleaving(phase, start, behind=behind)
        for start in starts(phase)[::STRIDE]
        for behind in ((1, 2, 3, 5) if BY_HAND else (1 + start % 3,))
    )


@pytest.mark.parametrize(("phase", "of"), _cells())
def test_watch_of_one_kind_that_lags(phase: str, of: str) -> None:
    """It tells the rest when there is nothing more to do."""
    play_all(
        Interleaving(phase, start, behind=behind, of=of)
        for start in starts(phase)[::STRIDE]
        for behind in ((1, 2, 3, 5) if BY_HAND else (3,))
    )


@pytest.mark.parametrize("way", FOUND.values(), ids=FOUND.keys())
def test_what_has_gone_wrong_once(way: Interleaving) -> None:
    assert play(way) == []


def test_job_whose_suspension_is_seen_late_trains_on_when_it_is_resumed() -> None:
    """Its agents left for the suspension, with exit code 0: that is no success."""
    run = run_of(Interleaving("suspend", start=1, behind=3, of="ElasticJob"))
    asyncio.run(run.settle())
    edit(run.api, {"suspend": False})
    asyncio.run(Run(run.api).settle())
    assert run.api.get(ELASTICJOBS, "j")["status"]["phase"] == "Running"


def test_nobody_is_blamed_for_not_answering_what_the_last_leader_did_not_get_to_ask() -> None:
    """It died when the status had the question and the ElasticWorld had not; the next one came 20 s later."""
    chapter = life()["hang"]
    api = chapter.after(1)
    assert api.get(ELASTICJOBS, "j")["status"]["rendezvous"]["hangSince"]
    assert "hang" not in api.get(ELASTICWORLDS, "j")["spec"].get("asked", {})
    for _ in range(20):
        act(api, chapter.phase.script)
        api.seconds += 1
        renew_leases(api)
    asyncio.run(Run(api, chapter.phase.script).settle())
    assert api.get(ELASTICJOBS, "j")["status"]["lastFailure"]["worker"] == "j-worker-2"


@pytest.mark.parametrize("is_scaled", [True, False])
def test_a_slot_that_is_made_again_waits_for_no_pod_on_a_dead_node(is_scaled: bool) -> None:
    """Neither where a smaller count is taken back, nor where the job is applied again."""
    api, runs = beginning(), list[Run]()

    def settle() -> None:
        runs.append(Run(api, process=runs[-1].process if runs else None))
        asyncio.run(runs[-1].settle())

    submit(api)
    settle()
    lose_node(api, "node-2")
    settle()
    assert "deletionTimestamp" in api.get(PODS, "j-worker-2-1")["metadata"]
    if is_scaled:
        edit(api, {"replicaSpecs": {"worker": {"replicas": 2}}})
        settle()
        edit(api, {"replicaSpecs": {"worker": {"replicas": 3}}})
    else:
        api.delete(ELASTICJOBS, "j")
        settle()
        submit(api)
    for _ in range(3):
        settle()
    world = api.get(ELASTICJOBS, "j")["status"]["rendezvous"]
    assert world["members"] == "0-2"
    assert api.get(PODS, "j-worker-2-2")["status"]["phase"] == "Running"


async def test_a_job_that_is_applied_again_asks_for_no_worker_whose_name_is_taken_yet() -> None:
    """A hundred would be asked for again and again, until garbage collection has come to the last of them."""
    api, asked = beginning(), list[Write]()
    submit(api)
    await Run(api).settle()
    again(api)
    process = Process(api, before_write=asked.append)
    while await process.step():
        pass
    assert asked and not [write for write in asked if write.resource == ELASTICWORKERS]
    await Run(api, process=process).settle()
    assert api.get(ELASTICJOBS, "j")["status"]["rendezvous"]["members"] == "0-2"


# --- Events ---------------------------------------------------------------------------------------------------


def _told_with_a_kill_after(phase: str, writes: int) -> tuple[Told, Told]:
    """(by a controller that died in the very write and by its successor, and also before the next write)."""
    chapter = life()[phase]
    before, successor = chapter.after(writes).events, [*kills(phase).told_after[writes]]
    following = chapter.moments[writes].before if writes < len(chapter.moments) else chapter.end
    return told(before + successor), told(following.events + successor)


@each_phase
def test_no_event_of_something_that_happened_once_is_told_twice(phase: str) -> None:
    expected = told(life()[phase].end.events)
    for writes in starts(phase):
        found, _ = _told_with_a_kill_after(phase, writes)
        twice = {key for key in found - expected if key[3] in COUNTED}
        assert not twice, f"{Interleaving(phase, writes)}: {twice}"


@each_phase
def test_no_event_is_lost_by_a_kill_between_two_writes(phase: str) -> None:
    """Once a look has gone on to its next write, what it did before is told."""
    expected = told(life()[phase].end.events)
    for writes in starts(phase):
        _, found = _told_with_a_kill_after(phase, writes)
        assert found.keys() >= expected.keys(), f"{Interleaving(phase, writes)}: {expected - found}"


@pytest.mark.xfail(strict=True, raises=AssertionError, reason=TOLD_AFTER)
def test_no_event_is_lost_by_a_kill_in_the_very_write_that_it_tells_of() -> None:
    """Nothing but the objects tells the successor of it (docs/contract.md)."""
    for phase in PHASES:
        expected = told(life()[phase].end.events)
        for writes in starts(phase):
            found, _ = _told_with_a_kill_after(phase, writes)
            assert found.keys() >= expected.keys(), f"{Interleaving(phase, writes)}: {expected - found}"
