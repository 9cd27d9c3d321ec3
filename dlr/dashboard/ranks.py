"""The grid of a job's ranks on its nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from crds import names
from dlr.dashboard.curves import usage_of
from dlr.job.failures import worker_failures
from dlr.job.odd_ranks import OddRanks
from dlr.job.report import current_report, is_finished, ranks, state_of
from dlr.kube.api import JSON

MOST_CELLS = 4_096
"""More workers share cells: one shows the worst of some consecutive ranks."""


@dataclass(frozen=True)
class Cell:
    """One worker as the grid shows it."""

    rank: int | None
    """The rank in the current world."""
    index: int
    node: str
    state: str
    step: int | None
    lag: int | None
    """Steps behind the furthest of the world."""
    seconds_per_step: float | None
    slowness: float | None
    """Its step time over the median of all; 1 is as usual."""
    failed: str
    """The class of its last failure that did not follow from another's."""
    failed_seconds_ago: float | None
    odd: int | None
    """The place of its gravest kind in the verdict's odd ranks."""
    usage: Sequence[float | None]
    """What its Pod uses now, as `curves.usage_of`; nothing once the job has ended."""

    @property
    def badness(self) -> tuple[bool, bool, int, float, float]:
        """The greater, the more it deserves to be looked at."""
        age = self.failed_seconds_ago
        return (
            self.odd is not None,
            self.state not in ("Running", "Standby", "Succeeded"),
            self.lag or 0,
            self.slowness or 0.0,
            0.0 if age is None else 1.0 / (1.0 + age),
        )


def cells_of(job: JSON, workers: Sequence[JSON], odd: Sequence[OddRanks], now: datetime) -> list[Cell]:
    """Return a cell for each worker that trains or stands by, in rank order, without a rank last."""
    rank_of = ranks(job)
    kind_of = {index: number for number, kind in reversed([*enumerate(odd)]) for index in kind.indices}
    training = [worker for worker in workers if worker["spec"]["type"] == names.WORKER]
    agents = {worker["spec"]["index"]: current_report(worker) for worker in training}
    progress = {index: agent.get("progress") or {} for index, agent in agents.items()}
    steps = [each["step"] for index, each in progress.items() if index in rank_of and "step" in each]
    speeds = [speed for each in progress.values() if (speed := each.get("secondsPerStep"))]
    is_over = is_finished(job)
    furthest, usual = max(steps, default=None), median(speeds) if speeds else None
    cells = [
        _cell(worker, rank_of, kind_of, agents[worker["spec"]["index"]], is_over, furthest, usual, now)
        for worker in training
    ]
    return sorted(cells, key=lambda cell: (cell.rank is None, cell.rank or 0, cell.index))


def _cell(
    worker: JSON,
    rank_of: Mapping[int, int],
    kind_of: Mapping[int, int],
    agent: JSON,
    is_over: bool,
    furthest: int | None,
    usual: float | None,
    now: datetime,
) -> Cell:
    index, status = worker["spec"]["index"], worker.get("status") or {}
    progress = agent.get("progress") or {}
    step, speed = progress.get("step"), progress.get("secondsPerStep")
    own = [failure for failure in worker_failures(worker) if not (failure.follows or failure.waited)]
    last = max(own, key=lambda failure: failure.time, default=None)
    return Cell(
        rank_of.get(index),
        index,
        status.get("nodeName") or "",
        state_of(worker) or "Pending",
        step,
        None if index not in rank_of or step is None or furthest is None else furthest - step,
        speed,
        speed / usual if speed and usual else None,
        last.what if last else "",
        (now - last.time).total_seconds() if last else None,
        kind_of.get(index),
        usage_of({} if is_over else agent),
    )


def grid(job: JSON, workers: Sequence[JSON], odd: Sequence[OddRanks], now: datetime) -> JSON:
    """Return cells as rows of figures; nodes, states and classes are numbers, to keep an update short."""
    cells = cells_of(job, workers, odd, now)
    size = max(1, -(-len(cells) // MOST_CELLS))
    shown = [max(cells[at : at + size], key=lambda cell: cell.badness) for at in range(0, len(cells), size)]
    nodes = sorted({cell.node for cell in shown})
    states = sorted({cell.state for cell in shown})
    classes = sorted({cell.failed for cell in shown})
    node_at, state_at, class_at = (
        {each: number for number, each in enumerate(known)} for known in (nodes, states, classes)
    )
    columns = "rank index node state step lag secondsPerStep slowness class ago odd cpu memory gpu gpuMemory"
    return {
        "perCell": size,
        "workers": len(cells),
        "nodes": nodes,
        "states": states,
        "classes": classes,
        "odd": [{"what": each.what, "state": each.tone} for each in odd],
        "finished": is_finished(job),
        "columns": columns.split(),
        "cells": [
            [
                cell.rank,
                cell.index,
                node_at[cell.node],
                state_at[cell.state],
                cell.step,
                cell.lag,
                _short(cell.seconds_per_step),
                _short(cell.slowness),
                class_at[cell.failed],
                None if cell.failed_seconds_ago is None else round(cell.failed_seconds_ago),
                cell.odd,
                *cell.usage,
            ]
            for cell in shown
        ],
    }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")
