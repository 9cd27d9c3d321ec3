"""Cells of many simulated fleets, played by several processes, and tallies that add up.

A benchmark names its cells, plays one fleet of one cell by its number, and makes a page of the sums. So a
range of numbers can be played on another machine, and what it wrote be merged:

    python -m benchmarks.NAME --jobs 16 --seed-range 0:100 --json a.json
    python -m benchmarks.NAME --jobs 16 --seed-range 100:200 --json b.json
    python -m benchmarks.NAME --merge a.json b.json

Only pydantic is needed beside the standard library.
"""

import argparse
import json
import multiprocessing
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path

CHUNK = 5
"""Fleets that a process plays before it asks for more: one of a thousand nodes takes a second or two."""

Tally = Mapping[str, int]
"""What one fleet adds to the sums of its cell."""


@dataclass(frozen=True)
class Cell:
    """One line of a table, or a part of it: fleets drawn alike."""

    name: str
    play: Callable[[int], Tally]
    """Plays one fleet, given its number, the only seed of its chance."""
    size: int
    """Nodes of a fleet. The largest begin."""


@dataclass(frozen=True)
class Results:
    """Sums by cell, of the fleets with numbers in some ranges."""

    cells: Mapping[str, Counter[str]]
    ranges: Sequence[tuple[int, int]]
    """Ranges of fleets: first, and last + 1."""
    cpu_seconds: float
    where: str

    @property
    def fleets(self) -> int:
        return sum(last - first for first, last in self.ranges)

    def to_json(self) -> str:
        return json.dumps(
            {
                "ranges": self.ranges,
                "cpuSeconds": round(self.cpu_seconds, 1),
                "where": self.where,
                "cells": self.cells,
            },
            indent=1,
        )

    @staticmethod
    def of_json(text: str) -> "Results":
        read = json.loads(text)
        cells = {name: Counter(sums) for name, sums in read["cells"].items()}
        return Results(cells, [(a, b) for a, b in read["ranges"]], read["cpuSeconds"], read["where"])

    def footer(self, module: str) -> str:
        """How the figures came about, and how others can be had."""
        ranges = " and ".join(f"{first} to {last - 1}" for first, last in sorted(self.ranges))
        return (
            f"{self.fleets} fleets a line, with the numbers {ranges}. {self.cpu_seconds:.0f} s of CPU time. "
            f"{self.where}.\nTo run it again, with other fleets:\n\n"
            f"    python -m benchmarks.{module} --jobs {os.cpu_count() or 1} "
            f"--seed-range {self.fleets}:{2 * self.fleets}\n"
        )


def merged(results: Sequence[Results]) -> Results:
    """The sums of all.

    Raises ValueError if a fleet would be counted twice.
    """
    ranges = sorted(range_ for result in results for range_ in result.ranges)
    for (_, end), (begin, _) in pairwise(ranges):
        if begin < end:
            raise ValueError(f"the fleets from number {begin} on were played twice")
    cells: dict[str, Counter[str]] = {}
    for result in results:
        for name, sums in result.cells.items():
            cells.setdefault(name, Counter()).update(sums)
    return Results(cells, ranges, sum(r.cpu_seconds for r in results), results[0].where)


_cells: Mapping[str, Cell] = {}
"""Of this process: those of its parent, which forked it. Functions of cells cannot be sent to it."""


def play(cells: Iterable[Cell], first: int, last: int, jobs: int) -> Results:
    """Play all fleets of these numbers, in so many processes; the largest fleets first."""
    global _cells
    _cells = {cell.name: cell for cell in cells}
    by_size = sorted(_cells.values(), key=lambda cell: -cell.size)
    work = [(cell.name, at, min(at + CHUNK, last)) for cell in by_size for at in range(first, last, CHUNK)]
    sums: dict[str, Counter[str]] = {name: Counter() for name in _cells}
    seconds = 0.0
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for name, tally, took in pool.imap_unordered(_played, work):
            sums[name].update(tally)
            seconds += took
    where = f"{date.today()}, {platform.system()}, Python {platform.python_version()}"
    return Results(sums, [(first, last)], seconds, where)


def _played(work: tuple[str, int, int]) -> tuple[str, Counter[str], float]:
    name, first, last = work
    began = time.process_time()
    tally: Counter[str] = Counter()
    for number in range(first, last):
        tally.update(_cells[name].play(number))
    return name, tally, time.process_time() - began


def main(description: str, cells: Sequence[Cell], page: Path, written: Callable[[Results], str]) -> None:
    """The benchmark's command line.

    Args:
        description: of the benchmark, in a line.
        cells: all of its cells.
        page: where the report goes.
        written: the page's whole text.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument(
        "--seed-range", default="0:200", metavar="FIRST:LAST", help="numbers of the fleets, without LAST"
    )
    parser.add_argument("--cells", default="", help="only cells whose names contain this; prints their sums")
    parser.add_argument("--json", type=Path, help="write the sums to this file, and no page")
    parser.add_argument("--merge", type=Path, nargs="+", help="make the page of such files, and play nothing")
    arguments = parser.parse_args()
    if arguments.merge:
        results = merged([Results.of_json(path.read_text()) for path in arguments.merge])
    else:
        first, last = map(int, arguments.seed_range.split(":"))
        chosen = [cell for cell in cells if arguments.cells in cell.name]
        results = play(chosen, first, last, arguments.jobs)
    if arguments.json:
        arguments.json.write_text(results.to_json())
    elif arguments.cells:
        print(results.to_json())
    else:
        page.write_text(written(results))


def percent(count: int, of: int, digits: int = 3) -> str:
    return f"{100 * count / of:.{digits}g}" if of else "0"


def median_and_worst(sums: Tally, prefix: str) -> str:
    """Return median and worst of a histogram that is kept as sums: "prefix 7" is how many had seven."""
    counts = sorted((int(key.removeprefix(prefix)), n) for key, n in sums.items() if key.startswith(prefix))
    total, seen = sum(n for _, n in counts), 0
    for value, n in counts:
        seen += n
        if 2 * seen >= total:
            return f"{value} / {counts[-1][0]}"
    return "–"
