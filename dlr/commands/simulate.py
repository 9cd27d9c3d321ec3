"""`dlr simulate`: a fleet on paper (docs/simulator.md)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dlr.kube.errors import UsageError

MAX_DAYS = 3_650


def simulate(
    file: Annotated[Path, typer.Option("--file", "-f", help="The fleet, as docs/simulator.md describes it.")],
    days: Annotated[float, typer.Option(help="How long each run lasts.")] = 30.0,
    seeds: Annotated[
        int, typer.Option(min=1, max=1_000, help="How many runs; each draws other faults.")
    ] = 20,
    effects: Annotated[
        bool, typer.Option(help="Tell what each change alone would bring: a dozen runs more a seed.")
    ] = True,
    times: Annotated[
        bool, typer.Option("--times", help="First print the table of times, and where each is from.")
    ] = False,
) -> None:
    """Simulate a fleet with the controller's own decisions."""
    from simulator.fleet import FleetError, read_fleet
    from simulator.report import effect_lines, summary, time_lines
    from simulator.runs import effects as effects_of
    from simulator.runs import simulate as run

    if not 0 < days <= MAX_DAYS:
        raise UsageError(f"--days must be more than 0 and at most {MAX_DAYS}, and is {days:g}")
    try:
        fleet = read_fleet(file)
    except FleetError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    if times:
        print("\n".join([*time_lines(fleet.times), ""]))
    progress = _Progress()
    result = run(fleet, days, range(seeds), progress.show)
    progress.clear()
    print("\n".join(summary(result)), flush=True)
    if effects:
        found = effects_of(result, range(seeds), progress.show)
        progress.clear()
        print("\n".join(["", *effect_lines(found)]))


class _Progress:
    """One line on a terminal's standard error; nothing anywhere else."""

    def __init__(self) -> None:
        self._shows = sys.stderr.isatty()
        self._last = ""

    def show(self, what: str, share: float) -> None:
        line = f"{what}: {share:.0%}"
        if self._shows and line != self._last:
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
            self._last = line

    def clear(self) -> None:
        if self._shows:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
