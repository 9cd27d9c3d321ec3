"""The controller is killed, lags and is succeeded at every moment of a job's life; nothing comes of it but time.

A job's life (`life.py`) is played in phases, from one quiet moment to the next, by the real reconcilers over an API
server in memory. Each phase is played undisturbed once; that says how it has to end. Then it is played again with

* a kill after each of its writes, and after every third pair of its writes;
* a write of the old leader that arrives when the new one has acted already;
* watches that lag, all together and each kind of object by itself (`test_lagging_watches`).

All of that at once, with agents that go their own way, is in tests/played/test_jobs.py.

What there is in the end, the worlds that were formed, incarnations, restarts and budgets, and the Events must be those
of the undisturbed run. Each failure names its `Interleaving`, which `play` plays again.

By hand, with as many processes as there are cores, `DLR_INTERLEAVINGS=1 pytest -n 16 --dist worksteal` plays them without
gaps and with three kills: nine minutes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import pytest

from controller.resources import LEASES, PODDISRUPTIONBUDGETS, PODS
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, ELASTICWORLDS
from tests.reconcilers.api import Api, Event, Write
from tests.reconcilers.cluster_model import act, lose_node, renew_leases
from tests.reconcilers.interleaving import (
    BY_HAND,
    STRIDE,
    Interleaving,
    each_phase,
    in_time,
    life,
    none_of,
    play_all,
    played,
    starts,
)
from tests.reconcilers.life import Chapter, Run, again, beginning, edit, submit
from tests.reconcilers.outcome import Told, fingerprint, told, unsound
from tests.reconcilers.process import Process

ON_DEAD_NODE = {"j-worker-1-2"}
COUNTED = {
    *("WorldFormed", "WorldBroken", "WorldChanged", "WorkerRelaunched", "MemoryRaised"),
    *("Suspended", "Resumed"),
    *("TrainingSucceeded", "ScaleRequested", "ScalePlanTaken", "Cordoned", "CheckFinished"),
}
"""Events that tell of something that happened once. Others tell of what is seen: once more does no harm."""
pytestmark = in_time


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
    """What came of kills after any write of a phase, and after pairs of them."""

    wrong: tuple[str, ...]
    played: int
    covered: int
    """With those that met another in the same state: they go on alike, and are played once."""
    told_after: Mapping[int, tuple[Event, ...]]
    """By the writes that were made before the only kill, what the successor told."""


@cache
def kills(phase: str) -> Kills:
    """By hand: after any two, and after any three."""
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
            found = await played(run, chapter)
            known[mark] = tuple(run.api.events[before:])
            if found:
                wrong.append("\n    ".join([repr(way), *found[:6]]))
            first = way.kills[-1] + 1 if way.kills else 1
            for number, moment in enumerate(run.moments, first):
                if (way.start + number) % STRIDE == 0:
                    ways.append((Interleaving(phase, way.start, (*way.kills, number)), moment.after))
        if not way.kills:
            told_after[way.start] = known[mark]
    return Kills(tuple(wrong), len(known), covered, told_after)


@each_phase
def test_kill_after_any_write_and_after_two(phase: str) -> None:
    none_of(kills(phase).wrong)


@each_phase
def test_write_of_an_ex_leader_that_arrives_late(phase: str) -> None:
    play_all(
        Interleaving(phase, start, late=True, late_after=after)
        for start in starts(phase, last=False)[::STRIDE]
        for after in ((1, 2, 4, None) if BY_HAND else (1 + start // 3 % 3 if start % 2 else None,))
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
