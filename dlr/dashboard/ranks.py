"""The grid of a job's ranks on its nodes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from crds import names
from crds.grouping import is_grouped
from dlr.dashboard.curves import FIGURES, usage_of
from dlr.job.case import Case
from dlr.job.odd_ranks import OddRanks
from dlr.job.report import AT_EASE, current_report, is_finished, ranks, state_of
from dlr.kube.api import JSON

MOST_CELLS = 4_096
"""Most cells of the grid; with more workers, a cell shows the worst of several consecutive ranks."""
CODED = {"node": "nodes", "state": "states", "class": "classes"}
"""Columns that hold indices into a list of words, to keep an update short, with the names of the lists."""
COLUMNS = (
    *("rank", "index", *CODED, "step", "lag", "secondsPerStep", "slowness", "ago", "odd"),
    *("cpu", "memory", "gpu", "gpuMemory"),
)


def grid(case: Case, odd: Sequence[OddRanks]) -> JSON:
    """Return the workers that train or stand by as rows of figures; empty for replica groups."""
    rows = [] if is_grouped(case.job) else rows_of(case, odd)
    size = max(1, -(-len(rows) // MOST_CELLS))
    shown = [max(rows[at : at + size], key=_badness) for at in range(0, len(rows), size)]
    words = {column: sorted({row[column] for row in shown}) for column in CODED}
    place = {column: {word: at for at, word in enumerate(known)} for column, known in words.items()}
    return {
        "perCell": size,
        "workers": len(rows),
        **{plural: words[column] for column, plural in CODED.items()},
        "odd": [{"what": each.what, "state": each.tone} for each in odd],
        "finished": is_finished(case.job),
        "columns": COLUMNS,
        "cells": [
            [place[each][row[each]] if each in CODED else row[each] for each in COLUMNS] for row in shown
        ],
    }


def rows_of(case: Case, odd: Sequence[OddRanks]) -> list[JSON]:
    """Return a row for each worker, in rank order; workers without a rank come last.

    `lag` is the number of steps behind the furthest worker, `slowness` the ratio of its step time to the
    median; `class` and `ago` describe its last failure, `odd` is the index of its gravest kind of odd ranks,
    and the last columns are the present usage of its Pod.
    """
    rank_of = ranks(case.job)
    kind_of = {index: number for number, kind in reversed([*enumerate(odd)]) for index in kind.indices}
    training = [worker for worker in case.workers if worker["spec"]["type"] == names.WORKER]
    agents = {worker["spec"]["index"]: current_report(worker) for worker in training}
    progress = {index: agent.get("progress") or {} for index, agent in agents.items()}
    steps = [each["step"] for index, each in progress.items() if index in rank_of and "step" in each]
    speeds = [speed for each in progress.values() if (speed := each.get("secondsPerStep"))]
    furthest, usual = max(steps, default=None), median(speeds) if speeds else None
    rows = []
    for worker in training:
        index = worker["spec"]["index"]
        step, speed = progress[index].get("step"), progress[index].get("secondsPerStep")
        failure = case.failure_of.get(worker["metadata"]["name"])
        usage = usage_of({} if is_finished(case.job) else agents[index])
        row = {
            "rank": rank_of.get(index),
            "index": index,
            "node": (worker.get("status") or {}).get("nodeName") or "",
            "state": state_of(worker) or "Pending",
            "class": failure.what if failure else "",
            "step": step,
            "lag": None if index not in rank_of or step is None or furthest is None else furthest - step,
            "secondsPerStep": _short(speed),
            "slowness": _short(speed / usual if speed and usual else None),
            "ago": round(case.seconds_since(failure)) if failure else None,
            "odd": kind_of.get(index),
        }
        rows.append(row | dict(zip(COLUMNS[-len(FIGURES) :], usage, strict=True)))
    return sorted(rows, key=lambda row: (row["rank"] is None, row["rank"] or 0, row["index"]))


def _badness(row: JSON) -> tuple[bool, bool, int, float, float]:
    """Return a sort key, greater for workers in more trouble."""
    return (
        row["odd"] is not None,
        row["state"] not in AT_EASE,
        row["lag"] or 0,
        row["slowness"] or 0.0,
        0.0 if row["ago"] is None else 1.0 / (1.0 + row["ago"]),
    )


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")
