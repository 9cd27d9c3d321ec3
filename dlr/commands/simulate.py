"""`dlr simulate`: simulates a fleet (docs/simulator.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dlr.kube.errors import UsageError
from dlr.kube.waiting import show_passing

MAX_DAYS = 3_650


def simulate(
    file: Annotated[Path, typer.Option("--file", "-f", help="The fleet, as docs/simulator.md describes it.")],
    days: Annotated[float, typer.Option(help="How long each run lasts.")] = 30.0,
    seeds: Annotated[
        int, typer.Option(min=1, max=1_000, help="How many runs; each draws other faults.")
    ] = 20,
    effects: Annotated[
        bool, typer.Option(help="Show the effect of each change alone: a dozen more runs per seed.")
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
    result = run(fleet, days, range(seeds), _show)
    show_passing("")
    print("\n".join(summary(result)), flush=True)
    if effects:
        found = effects_of(result, range(seeds), _show)
        show_passing("")
        print("\n".join(["", *effect_lines(found)]))


def _show(what: str, share: float) -> None:
    show_passing(f"{what}: {share:.0%}")
