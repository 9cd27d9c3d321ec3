"""The checkpoint that a world resumed from, where its job keeps some in memory: `rendezvous.resume`. Pure.

The agents of a round agree upon it when they meet (`agent/memory/resume.py`), since what the processes of the
last round have left shows only then. Rank 0's agent reports it, and it is published for people; nothing
is decided by it.
"""

from __future__ import annotations

from collections.abc import Iterator

from crds.protocol import RendezvousPhase
from crds.rendezvous import Rendezvous, Resume
from reconcilers.observed.workers import Workers
from reconcilers.runtime.acts import Event


def resumed(published: Rendezvous, workers: Workers) -> Resume | None:
    """The checkpoint that rank 0's agent reports for the published round; None if it has reported none."""
    if published.phase is not RendezvousPhase.FORMED or not published.members:
        return None
    rank_0 = workers.rank_0(published)
    report = rank_0.status.agent if rank_0 is not None else None
    found = report.memory.resumed if report is not None and report.memory is not None else None
    if found is None or found.round != published.round:
        return None
    return Resume(step=found.step, tier=found.tier)


def events(before: Rendezvous, world: Rendezvous) -> Iterator[Event]:
    """An Event when it is first reported."""
    if world.resume is not None and (before.round, before.resume) != (world.round, world.resume):
        yield Event("Normal", "TrainingResumed", f"round {world.round} goes on {in_words(world.resume)}")


def in_words(resume: Resume) -> str:
    """Such as `from memory, step 120`."""
    step = "" if resume.step is None else f", step {resume.step}"
    return f"{resume.tier.origin}{step}"
