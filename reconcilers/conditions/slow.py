"""Warning `Slow`: steps take longer than before, by rank 0's report; with the changes at that time. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from controller.wording import first_line
from crds.agent_report import Slow
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, SlotLife
from crds.job_status import JobWarning
from crds.model import ConditionData
from crds.phases import RendezvousPhase
from crds.rendezvous import Rendezvous
from crds.texts import shortened
from reconcilers.look import DesiredJob, WarningState
from reconcilers.observed.conditions import warning_of
from reconcilers.observed.worker_state import current_report
from reconcilers.observed.workers import Workers

SLOW = "Slow"

BEFORE = timedelta(seconds=120)
AFTER = timedelta(seconds=30)
"""Changes in this time before and after the first slow step may be the cause. Windows of steps begin before
their cause, and a report takes a while."""
MOST_NAMED = 2
MAX_WHY = 64
NOTHING_CHANGED = "then neither round nor nodes changed"


def judge(before: JobWarning | None, look: DesiredJob) -> WarningState | JobWarning | None:
    """Judge the pace by rank 0's report; while the world does not train, the warning stays.

    The message stays while the figures are the same, so changes are only searched once.
    """
    speaker = speaker_of(look.workers, look.world)
    if speaker is None:
        return before
    slow = _slow_of(speaker)
    if slow is None:
        return None
    if is_shown(before, slow):
        return before
    began = began_at(speaker, look.now)
    found = changes(began, look.workers, look.world)
    what = "; ".join(found) or NOTHING_CHANGED
    return WarningState(f"{_figures(slow, began)}; {what}", data=_facts(slow))


def news_of(job: ElasticJob, workers: Workers) -> Slow | None:
    """Return the slowness that is reported, and not yet in the job's status."""
    speaker = speaker_of(workers, job.status.world)
    slow = _slow_of(speaker) if speaker is not None else None
    return None if slow is None or is_shown(warning_of(job.status.warnings, SLOW), slow) else slow


def began_at(speaker: ElasticWorker, now: datetime) -> datetime:
    """Return when steps began to take longer, by our clock, if the agent has just reported it.

    The age is the difference of two times of the agent's own clock.
    """
    slow, report = _slow_of(speaker), current_report(speaker)
    if slow is None or report is None or report.progress is None:
        return now
    return now - max(report.progress.time - slow.since, timedelta())


def speaker_of(workers: Workers, world: Rendezvous) -> ElasticWorker | None:
    """Return rank 0's worker, if it trains in the world."""
    if world.phase is not RendezvousPhase.FORMED or not world.members:
        return None
    lead = workers.rank_0(world)
    report = current_report(lead) if lead is not None else None
    trains = report is not None and any(figures.round == world.round for figures in report.rounds[-1:])
    return lead if trains else None


def is_shown(before: JobWarning | None, slow: Slow) -> bool:
    return before is not None and before.data == _facts(slow)


def changes(since: datetime, workers: Workers, world: Rendezvous) -> Iterator[str]:
    """Yield clauses about changes of the job and its nodes when its steps began to take longer."""
    begin, end = since - BEFORE, since + AFTER
    if world.round > 1 and world.formed_at is not None and begin <= world.formed_at <= end:
        why = shortened(first_line(world.reason), MAX_WHY)
        yield f"round {world.round} began at {_clock(world.formed_at)}" + (f" ({why})" if why else "")
    members = set(world.members)
    moved = [
        f"{worker.metadata.name} is on {now.node_name} since then, before on {before.node_name}"
        for worker in workers.training
        if worker.spec.index in members and (lives := _move_of(worker)) is not None
        for before, now in [lives]
        if now.running_at is not None and begin <= now.running_at <= end
    ]
    yield from moved[:MOST_NAMED]
    if len(moved) > MOST_NAMED:
        yield f"{len(moved) - MOST_NAMED} more workers came to other nodes"


def _move_of(worker: ElasticWorker) -> tuple[SlotLife, SlotLife] | None:
    """Return the last life and the present one, if they are on different nodes."""
    lives = [life for life in worker.status.history if life.node_name]
    if len(lives) < 2 or lives[-1].node_name == lives[-2].node_name:
        return None
    return lives[-2], lives[-1]


def _slow_of(worker: ElasticWorker) -> Slow | None:
    report = current_report(worker)
    return report.slow if report is not None else None


def _figures(slow: Slow, began: datetime) -> str:
    times = slow.seconds_per_step / slow.usual_seconds if slow.usual_seconds else 0.0
    usual = f"{times:.1f} times the {_seconds(slow.usual_seconds)} of before"
    duration = _seconds(slow.seconds_per_step)
    return f"a step takes {duration} since step {slow.step} ({_clock(began)}), {usual}"


def _facts(slow: Slow) -> ConditionData:
    """Return the figures that identify a slowness, with the digits of the message."""
    return ConditionData(step=slow.step, seconds_per_step=float(f"{slow.seconds_per_step:.3g}"))


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 0.1 else f"{value * 1000:.3g} ms"


def _clock(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
