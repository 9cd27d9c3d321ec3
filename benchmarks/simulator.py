"""What the simulator says of others' fleets and of dlr's features: docs/simulator.md's figures and picture.

Calibration: fleets of others, with policies of dlr's off, against what they published. Steps: one feature
after the other at four sizes, with 6.5 failures per thousand node-days. Stalls: replica groups, by the time
for which the others stand still when one of them dies.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path

from simulator.account import Outcome, Part
from simulator.engine import Simulation
from simulator.fleet import Fleet, Restart, parsed, read_fleet
from simulator.picture import bars
from simulator.runs import Mean, mean_of, simulate
from simulator.times import Times

ROOT = Path(__file__).parent.parent
REPORT = ROOT / "docs" / "simulator.md"
PICTURE = ROOT / "docs" / "images" / "simulator.svg"
EXAMPLES = ROOT / "examples" / "simulate"
SIZES = (128, 2_048, 12_500, 100_000)
LARGE = 12_500
MOST_GROUPS = 250
LEAST_GROUP_NODES = 50
HOPELESS_DAYS = 0.5
"""A job of 100,000 nodes that restarts as a whole never trains: more days would tell no more."""

Step = Callable[[Fleet], Fleet]


def policies(**changed: object) -> Step:
    return lambda fleet: fleet.changed(**changed)


def stalls(seconds: float) -> Step:
    changed = {"group_stall_seconds": seconds}
    return lambda fleet: fleet.model_copy(update={"times": fleet.times.model_copy(update=changed)})


def groups(fleet: Fleet) -> Fleet:
    size = max(LEAST_GROUP_NODES, fleet.nodes // MOST_GROUPS)
    return fleet.changed(group_nodes=size, standby=0)


STEPS: tuple[tuple[str, Step], ...] = (
    ("everybody restarts in new Pods, from storage", lambda fleet: fleet),
    ("restart in place", policies(restart=Restart.IN_PLACE)),
    ("+ checkpoints in memory", policies(memory_checkpoint_seconds="auto")),
    ("+ their copies in other Pods: dlr's defaults", policies(replicas=1)),
    ("+ 4 standby workers", policies(standby=4)),
    (
        "+ hangTimeoutSeconds: 60, heartbeat: 10",
        policies(hang_timeout_seconds=60, heartbeat_timeout_seconds=10),
    ),
)
BEYOND: tuple[tuple[str, Step], ...] = (
    ("+ replica groups, others stall 180 s (FT-HSDP)", lambda fleet: stalls(180.0)(groups(fleet))),
    ("+ others stall 0.1 s: dlr's replica groups", stalls(Times().group_stall_seconds)),
    ("+ hangTimeoutSeconds: 10", policies(hang_timeout_seconds=10)),
)
STALLS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Seconds for which the others stand still when a group dies."""
GOALS = (0.99, 0.97)


@dataclass(frozen=True)
class Row:
    nodes: int
    name: str
    goodput: Mean
    full_speed: Mean
    shares: Mapping[Part, float]
    days: float
    seeds: int
    cpu_seconds: float


def first(nodes: int) -> Fleet:
    """Return a fleet without any of dlr's features."""
    return parsed(
        {
            "name": f"{nodes}",
            "nodes": nodes,
            "spares": max(nodes // 20, 20),
            "policies": {
                "restart": "Everybody",
                "memoryCheckpointSeconds": None,
                "replicas": 0,
                "restartCount": 1_000,
            },
        },
        "benchmarks/simulator.py",
    )


def rows(days: float, seeds: int, sizes: tuple[int, ...]) -> Iterator[Row]:
    for nodes in sizes:
        fleet = first(nodes)
        for name, step in STEPS + (BEYOND if nodes >= LARGE else ()):
            fleet = step(fleet)
            whole = nodes <= LARGE or fleet.policies.group_nodes is not None
            lasts, runs = days if whole else min(days, HOPELESS_DAYS), 1 if nodes > LARGE else seeds
            begun = time.process_time()
            result = simulate(fleet, lasts, range(runs))
            shares = {part: mean.value for part, mean in result.shares.items()}
            cpu = (time.process_time() - begun) / runs
            row = Row(nodes, name, result.goodput, result.full_speed, shares, lasts, runs, cpu)
            print(_line(row), flush=True)
            yield row


def stall_lines(days: float, sizes: tuple[int, ...]) -> Iterator[str]:
    """Goodput of replica groups by the others' stall, with the stalls from which on the goals are missed."""
    for nodes in sizes:
        fleet = first(nodes)
        for _, step in STEPS + BEYOND:
            fleet = step(fleet)
        for hang in (60, 10):
            waits = fleet.changed(hang_timeout_seconds=hang)
            found = [simulate(stalls(seconds)(waits), days, [0]).goodput.value for seconds in STALLS]
            cells = " | ".join(f"{value * 100:.2f}" for value in found)
            limits = " | ".join(_limit(found, goal) for goal in GOALS)
            yield f"| {nodes:,} | {hang} s | {cells} | {limits} |"


def _limit(goodputs: list[float], goal: float) -> str:
    """The stall at which goodput falls below a goal, on a line between two of `STALLS`."""
    if goodputs[0] < goal:
        return "never met"
    pairs = [*zip(STALLS, goodputs, strict=True)]
    for (shorter, higher), (longer, lower) in pairwise(pairs):
        if lower < goal:
            return f"{shorter + (longer - shorter) * (higher - goal) / (higher - lower):.2g} s"
    return f"> {STALLS[-1]:g} s"


def _percent(mean: Mean, digits: int = 2) -> str:
    width = f" ± {mean.half_width * 100:.{digits}f}" if mean.half_width else ""
    return f"{mean.value * 100:.{digits}f}{width}"


def _line(row: Row) -> str:
    return (
        f"| {row.nodes:,} | {row.name} | {_percent(row.goodput)} | {_percent(row.full_speed)} "
        f"| {row.seeds} × {row.days:g} | {row.cpu_seconds:.0f} |"
    )


def calibration(aire_seeds: int, seeds: int) -> Iterator[str]:
    """The lines of the table."""

    def example(name: str) -> Fleet:
        return read_fleet(EXAMPLES / f"{name}.yaml")

    def runs(fleet: Fleet, days: float, count: int, work_days: float | None = None) -> list[Outcome]:
        return [Simulation(fleet, seed).run(days, work_days=work_days) for seed in range(count)]

    found = runs(example("airesim"), 460, aire_seeds, 256)
    speed = mean_of([outcome.full_speed for outcome in found])
    failures = mean_of([o.interruptions / (o.account.work / 86_400) * 256 for o in found])
    yield f"| AIReSim: share of the time that trains | 62.3 ± 1 % | {_percent(speed)} % | {aire_seeds} |"
    width = f" ± {failures.half_width:,.0f}" if failures.half_width else ""
    counted = f"{failures.value:,.0f}{width}"
    yield f"| AIReSim: failures in 256 days of training | 11,146 ± 3 % | {counted} | {aire_seeds} |"
    found = runs(example("llama3"), 54, seeds)
    interruptions = mean_of([float(outcome.interruptions) for outcome in found])
    speed = mean_of([outcome.full_speed for outcome in found])
    width = f" ± {interruptions.half_width:.0f}" if interruptions.half_width else ""
    yield f"| Llama 3: interruptions in 54 days | 419 ± 60 | {interruptions.value:.0f}{width} | {seeds} |"
    yield f"| Llama 3: share that trains | > 90 % | {_percent(speed)} % | {seeds} |"
    for nodes in (128, 1_024, 2_048, 12_500):
        expected = 1 - nodes * 6.5 / 1_000 * 120 / 86_400
        found = runs(example("rsc").model_copy(update={"nodes": nodes}), 30, seeds)
        speed = mean_of([outcome.full_speed for outcome in found])
        yield f"| RSC's closed form, {nodes:,} nodes | {expected:.2%} ± 1 | {_percent(speed)} % | {seeds} |"
    for name, wanted in (("ft-hsdp", 44), ("ft-hsdp-groups", 80)):
        fleet = example(name)
        speed = mean_of([outcome.full_speed for outcome in runs(fleet, 30, seeds)])
        yield f"| {fleet.name} | {wanted} ± 5 % | {_percent(speed)} % | {seeds} |"


def picture(found: list[Row]) -> str:
    lines: list[tuple[str, Mapping[Part, float]]] = []
    for nodes in dict.fromkeys(row.nodes for row in found):
        lines.append((f"{nodes:,} nodes of 8 GPUs", {}))
        lines += [(row.name, row.shares) for row in found if row.nodes == nodes]
    note = "Simulated with the controller's own decisions. docs/simulator.md"
    return bars("What each feature brings, at 6.5 failures per thousand node-days", lines, note)


def with_section(text: str, name: str, lines: list[str]) -> str:
    """The text, with these lines between its markers of that name."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return "\n".join([f"{before}{begin}", *lines, f"{end}{after}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--aire-seeds", type=int, default=3)
    parser.add_argument("--only", choices=["calibration", "steps", "stalls"])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    asked = parser.parse_args()
    text = REPORT.read_text()
    machine = f"{date.today()}, {platform.system()}, Python {platform.python_version()}, one core."
    if asked.only in (None, "calibration"):
        head = ["| | published | simulated | runs |", "|---|--:|--:|--:|"]
        lines = [line for line in calibration(asked.aire_seeds, asked.seeds) if not print(line, flush=True)]
        text = with_section(text, "calibration", [*head, *lines, "", machine])
        REPORT.write_text(text)
    if asked.only in (None, "stalls"):
        titles = " | ".join(f"{seconds:g} s" for seconds in STALLS)
        goals = " | ".join(f"< {goal:.0%} from" for goal in GOALS)
        head = [
            f"| nodes | hangTimeoutSeconds | {titles} | {goals} |",
            f"|--:|--:|{'--:|' * (len(STALLS) + len(GOALS))}",
        ]
        sizes = tuple(nodes for nodes in asked.sizes if nodes >= LARGE)
        lines = [line for line in stall_lines(asked.days, sizes) if not print(line, flush=True)]
        text = with_section(text, "stalls", [*head, *lines, "", machine])
        REPORT.write_text(text)
    if asked.only in (None, "steps"):
        head = [
            "| nodes | | goodput, % | full speed, % | runs × days | CPU s a run |",
            "|--:|---|--:|--:|--:|--:|",
        ]
        found = list(rows(asked.days, asked.seeds, tuple(asked.sizes)))
        text = with_section(text, "steps", [*head, *map(_line, found), "", machine])
        REPORT.write_text(text)
        PICTURE.write_text(picture(found))


if __name__ == "__main__":
    main()
