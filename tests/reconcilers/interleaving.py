"""One way in which a phase of a job's life can go, and what comes of it otherwise than without any disturbance."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import pytest

from controller.resources import LEASES, NODES, PODDISRUPTIONBUDGETS, PODS
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS, SCALEPLANS
from tests.reconcilers.life import LIFE, Chapter, Run, undisturbed
from tests.reconcilers.outcome import differences, end_state, unsound, worlds
from tests.reconcilers.process import Lag

BY_HAND = int(os.environ.get("DLR_INTERLEAVINGS", "0"))
STRIDE = 1 if BY_HAND else 3
"""Of the systematic families that would take too long, every third is played."""
WATCHED = {
    resource.kind: resource
    for resource in (
        *(ELASTICJOBS, ELASTICWORKERS, NODECHECKS, SCALEPLANS),
        *(LEASES, NODES, PODDISRUPTIONBUDGETS, PODS),
    )
}
PHASES = [phase.name for phase in LIFE]
each_phase = pytest.mark.parametrize("phase", PHASES)
in_time = pytest.mark.timeout(0 if BY_HAND else 900)


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
    return asyncio.run(played(run, life()[way.phase]))


async def played(run: Run, chapter: Chapter) -> list[str]:
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
            found = await played(run_of(way), life()[way.phase])
            if found:
                wrong.append("\n    ".join([repr(way), *found[:6]]))
        return wrong

    none_of(asyncio.run(all_of_them()))


def none_of(wrong: Sequence[str]) -> None:
    shown = wrong if BY_HAND else wrong[:5]
    assert not wrong, f"{len(wrong)} interleavings ended otherwise:\n" + "\n".join(shown)


def starts(phase: str, *, last: bool = True) -> range:
    """After how many writes: from none to all, or to all but the last."""
    return range(len(life()[phase].moments) + (1 if last else 0))
