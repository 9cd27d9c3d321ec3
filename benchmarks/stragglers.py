"""Slow nodes among healthy ones that differ by noise: who is found, and who is called slow though nothing is.

Every cell draws many fleets and plays the check as the NodeCheck reconciler does: all measure once, suspects
measure again, pairs meet. Beside our rule stands the one that it replaced: four robust standard deviations
below the median, by one measurement.
"""

from __future__ import annotations

import argparse
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from healthcheck.diagnosis import Verdict, Verdicts
from healthcheck.fleet import Node, NodeName
from healthcheck.measurements import GroupResult, History, LocalResult, Metric, RoundResult
from healthcheck.plan import next_step
from healthcheck.settings import Settings
from healthcheck.stragglers import class_findings, slow_nodes, to_measure_again

REPORT = Path(__file__).parent.parent / "docs" / "stragglers.md"
BEGIN, END = "<!-- begin: python -m benchmarks.stragglers -->", "<!-- end -->"

FIGURES = {
    Metric.GEMM_BF16_TFLOPS: 650.0,
    Metric.GEMM_FP16_TFLOPS: 640.0,
    Metric.GEMM_FP32_TFLOPS: 50.0,
    Metric.HOST_TO_DEVICE_GBPS: 55.0,
    Metric.DEVICE_TO_HOST_GBPS: 54.0,
    Metric.INTRA_NODE_BUS_GBPS: 370.0,
}
SLOW_FIGURE = Metric.GEMM_BF16_TFLOPS
"""The only one in which a slow node is slow: harder to find than one that is slow in three."""
PAIR_BUS_GBPS, PAIR_LATENCY_US = 45.0, 25.0
FOUND = 0.95
SETTINGS = Settings()

Noise = Callable[[random.Random], float]
"""One measurement's relative error."""
NOISES: Mapping[str, Noise] = {
    "normal 1 %": lambda rng: rng.gauss(0, 0.01),
    "normal 2 %": lambda rng: rng.gauss(0, 0.02),
    "normal 5 %": lambda rng: rng.gauss(0, 0.05),
    "t₃ of 1 %": lambda rng: 0.01 * rng.gauss(0, 1) / (rng.gammavariate(1.5, 2) / 3) ** 0.5,
}
HEAVY = "t₃ of 1 %"


@dataclass
class Fleet:
    """Nodes that are measured as often as they are asked to."""

    size: int
    noise: Noise
    rng: random.Random
    slow: Mapping[int, float] = field(default_factory=dict)
    """Node → how many times slower SLOW_FIGURE is."""
    slow_network: Mapping[int, float] = field(default_factory=dict)
    older: frozenset[int] = frozenset()
    """Nodes of an older generation under the same label: every figure is 20 % less."""
    kept: bool = False
    """Whether a node's error is its own, and so comes again."""
    _errors: dict[tuple[int, Metric], float] = field(default_factory=dict)

    def nodes(self) -> list[Node]:
        return [Node(str(number), "gpu") for number in range(self.size)]

    def measure(self, number: int) -> LocalResult:
        return LocalResult(
            measured={
                metric: max(0.0, full * self._share(number, metric) * (1 + self._error(number, metric)))
                for metric, full in FIGURES.items()
            }
        )

    def meet(self, members: Sequence[int]) -> dict[Metric, float]:
        pace = max(self.slow_network.get(number, 1.0) for number in members)
        return {
            Metric.PAIR_BUS_GBPS: PAIR_BUS_GBPS / pace * (1 + self.noise(self.rng)),
            Metric.PAIR_LATENCY_US: PAIR_LATENCY_US * (1 + self.noise(self.rng)),
        }

    def _share(self, number: int, metric: Metric) -> float:
        share = 0.8 if number in self.older else 1.0
        return share / self.slow.get(number, 1.0) if metric is SLOW_FIGURE else share

    def _error(self, number: int, metric: Metric) -> float:
        if not self.kept:
            return self.noise(self.rng)
        return self._errors.setdefault((number, metric), self.noise(self.rng))


def measured_once(fleet: Fleet) -> dict[NodeName, LocalResult]:
    return {str(number): fleet.measure(number) for number in range(fleet.size)}


def called_slow(fleet: Fleet, settings: Settings = SETTINGS) -> tuple[set[int], History]:
    """By the nodes' own figures alone, as far as they need to be measured."""
    nodes, history = fleet.nodes(), History(measured_once(fleet))
    while again := to_measure_again(history, nodes, settings):
        groups = tuple(GroupResult((n,), True, measured=fleet.measure(int(n)).measured) for n in again)
        rounds = (*history.rounds, RoundResult(len(history.rounds) + 1, groups))
        history = History(history.local, rounds)
    return {int(name) for name in slow_nodes(history, nodes, settings)}, history


def called_slow_before(local: Mapping[NodeName, LocalResult]) -> set[int]:
    """What was slow by the rule before: 4 · 1.4826 · MAD below the median and more than 5 %, or 1.5 times."""
    slow = set()
    for metric in FIGURES:
        values = {name: result.measured[metric] for name, result in local.items()}
        typical = statistics.median(values.values())
        spread = 1.4826 * statistics.median(abs(value - typical) for value in values.values())
        for name, value in values.items():
            lost = typical - value
            if lost > 0.05 * typical and (lost > 4 * spread or typical >= 1.5 * value):
                slow.add(int(name))
    return slow


def checked(fleet: Fleet) -> tuple[Verdicts, int]:
    """A whole check: its verdicts, and its rounds."""
    nodes, local = fleet.nodes(), measured_once(fleet)
    rounds: tuple[RoundResult, ...] = ()
    while not isinstance(step := next_step(History(local, rounds), nodes, SETTINGS), Verdicts):
        groups = []
        for names in step.groups:
            members = [int(name) for name in names]
            measured = fleet.meet(members) if len(members) > 1 else fleet.measure(members[0]).measured
            groups.append(GroupResult(names, True, measured=measured))
        rounds = (*rounds, RoundResult(step.number, tuple(groups)))
    return step, len(rounds)


def drawn(fleets: int, seed: int, cell: str) -> list[random.Random]:
    return [random.Random(f"{seed} {cell} {number}") for number in range(fleets)]


def healthy_fleets(fleets: int, seed: int, sizes: Sequence[int]) -> list[str]:
    lines = [
        "| noise | N | suspected | called slow | the same, with noise that stays | rule before |",
        "|---|---|---|---|---|---|",
    ]
    for name, noise in NOISES.items():
        for size in sizes:
            suspected = slow = kept = before = 0
            for rng in drawn(fleets, seed, f"healthy {name} {size}"):
                named, history = called_slow(Fleet(size, noise, rng))
                suspected += bool(history.rounds)
                slow += bool(named)
                before += bool(called_slow_before(history.local))
                if name != HEAVY:
                    kept += bool(called_slow(Fleet(size, noise, rng, kept=True))[0])
            stays = "" if name == HEAVY else f"{100 * kept / fleets:.3g}"
            shares = " | ".join(f"{100 * count / fleets:.3g}" for count in (suspected, slow))
            lines.append(f"| {name} | {size} | {shares} | {stays} | {100 * before / fleets:.3g} |")
    return lines


def detection(fleets: int, seed: int, sizes: Sequence[int]) -> list[str]:
    lines = ["| noise | N | found in 95 % from | the same, with noise that stays |", "|---|---|---|---|"]
    for name, noise in NOISES.items():
        for size in sizes:
            points = [
                _detection_point(fleets, f"{seed} {name} {size} {kept}", size, noise, kept=kept)
                for kept in (False, True)
            ]
            stays = "" if name == HEAVY else f"{points[1]:.2f}×"
            lines.append(f"| {name} | {size} | {points[0]:.2f}× | {stays} |")
    return lines


def _detection_point(fleets: int, cell: str, size: int, noise: Noise, *, kept: bool) -> float:
    """The least slowdown, to a hundredth, of which 95 % are found: more is found of more."""
    low, high = 100, 200
    while low < high:
        factor = (low + high) // 2
        found = sum(
            0 in called_slow(Fleet(size, noise, rng, slow={0: factor / 100}, kept=kept))[0]
            for rng in drawn(fleets, 0, f"{cell} {factor}")
        )
        low, high = (low, factor) if found >= FOUND * fleets else (factor + 1, high)
    return low / 100


def mixed_fleets(fleets: int, seed: int) -> list[str]:
    lines = [
        "| noise | N | older | some node called slow | told | rule before |",
        "|---|---|---|---|---|---|",
    ]
    for name in ("normal 1 %", "normal 2 %"):
        for size, share in ((20, 0.1), (20, 0.25), (100, 0.1), (100, 0.25)):
            slow = told = before = 0
            for rng in drawn(fleets, seed, f"mixed {name} {size} {share}"):
                older = frozenset(rng.sample(range(size), round(share * size)))
                fleet = Fleet(size, NOISES[name], rng, older=older)
                named, history = called_slow(fleet)
                slow += bool(named)
                told += any(
                    older <= set(map(int, found.nodes))
                    for found in class_findings(history, fleet.nodes(), SETTINGS)
                )
                before += bool(called_slow_before(history.local))
            shares = " | ".join(f"{100 * count / fleets:.3g}" for count in (slow, told, before))
            lines.append(f"| {name} | {size} | {share:.0%} | {shares} |")
    return lines


def slow_networks(fleets: int, seed: int) -> list[str]:
    lines = [
        "| noise | fleet | found | some healthy node called slow | rounds (median / worst) |",
        "|---|---|---|---|---|",
    ]
    for name, noise in NOISES.items():
        for count, factor in ((0, 1.0), (1, 1.5), (1, 2.0), (8, 2.0)):
            found = wrong = 0
            rounds = []
            for rng in drawn(fleets, seed, f"network {name} {count} {factor}"):
                slow = dict.fromkeys(rng.sample(range(33), count), factor)
                verdicts, lasted = checked(Fleet(33, noise, rng, slow_network=slow))
                named = set(map(int, verdicts.named(Verdict.STRAGGLER)))
                found += len(named & slow.keys())
                wrong += bool(named - slow.keys())
                rounds.append(lasted)
            share = f"{100 * found / (count * fleets):.3g}" if count else ""
            fleet = f"{count} of 33 networks {factor:g}× slower" if count else "33 healthy nodes"
            lasted_text = f"{statistics.median(rounds):.0f} / {max(rounds)}"
            lines.append(f"| {name} | {fleet} | {share} | {100 * wrong / fleets:.3g} | {lasted_text} |")
    return lines


def report(fleets: int, seed: int, sizes: Sequence[int]) -> str:
    started = time.process_time()
    parts = {
        "Healthy fleets": healthy_fleets(fleets, seed, sizes),
        "How slow a node has to be": detection(fleets, seed, [n for n in sizes if n <= 100]),
        "Two generations under one label, 20 % apart": mixed_fleets(fleets, seed),
        "Slow networks": slow_networks(fleets, seed),
    }
    body = "\n\n".join("\n".join((f"### {title}", "", *lines)) for title, lines in parts.items())
    seconds = time.process_time() - started
    return (
        f"{body}\n\n{fleets} fleets a line, seed {seed}; percent of fleets, *found* of slow nodes. "
        f"{seconds:.0f} s of CPU time.\n{date.today()}, Python {platform.python_version()}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Slow nodes among healthy ones, in simulated fleets.")
    parser.add_argument("--fleets", type=int, default=200, help="fleets per cell")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sizes", type=int, nargs="+", default=[5, 6, 16, 100, 1000])
    arguments = parser.parse_args()
    text = report(arguments.fleets, arguments.seed, arguments.sizes)
    page = REPORT.read_text()
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    REPORT.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
    print(text)


if __name__ == "__main__":
    main()
