"""Slow nodes among healthy ones that differ by noise: who is found, and who is called slow though nothing is.

Every cell draws many fleets and plays the check as the NodeCheck reconciler does: all measure once, suspects
measure again, pairs meet. Beside our rule stands the one that it replaced: four robust standard deviations
below the median, by one measurement.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cells import Cell, Results, Tally, main, median_and_worst, percent
from benchmarks.played import played
from crds.findings import Verdict
from healthcheck.diagnosis import Diagnosis
from healthcheck.fleet import Node, NodeName
from healthcheck.measurements import GroupResult, History, LocalResult, Metric, RoundResult
from healthcheck.settings import Settings
from healthcheck.stragglers import own_figures

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
SIZES = (5, 6, 16, 100, 1000)
MOST_WITH_ONE_SLOW = 100

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
    """Find slow nodes by their own figures alone, as far as they need to be measured."""
    nodes, history = fleet.nodes(), History(measured_once(fleet))
    while again := own_figures(history, nodes, settings).to_measure_again:
        groups = tuple(GroupResult((n,), True, measured=fleet.measure(int(n)).measured) for n in again)
        rounds = (*history.rounds, RoundResult(len(history.rounds) + 1, groups))
        history = History(history.local, rounds)
    return {int(name) for name in own_figures(history, nodes, settings).slow}, history


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


def checked(fleet: Fleet) -> tuple[Diagnosis, int]:
    """A whole check: its verdicts, and its rounds."""

    def test(group: tuple[NodeName, ...]) -> GroupResult:
        members = [int(name) for name in group]
        measured = fleet.meet(members) if len(members) > 1 else fleet.measure(members[0]).measured
        return GroupResult(group, True, measured=measured)

    verdicts, rounds = played(fleet.nodes(), measured_once(fleet), SETTINGS, test)
    return verdicts, len(rounds)


def chance(cell: str, number: int) -> random.Random:
    return random.Random(f"{cell} {number}")


def healthy_fleet(noise: str, size: int) -> Callable[[int], Tally]:
    def play(number: int) -> Tally:
        rng = chance(f"healthy {noise} {size}", number)
        named, history = called_slow(Fleet(size, NOISES[noise], rng))
        kept = noise != HEAVY and bool(called_slow(Fleet(size, NOISES[noise], rng, kept=True))[0])
        return {
            "fleets": 1,
            "suspected": bool(history.rounds),
            "slow": bool(named),
            "kept": kept,
            "before": bool(called_slow_before(history.local)),
        }

    return play


def one_slow(noise: str, size: int, *, kept: bool) -> Callable[[int], Tally]:
    """Return the least slowness, in hundredths, at which one node of this fleet is called slow; the chance is
    the same each time."""

    def is_found(number: int, factor: int) -> bool:
        rng = chance(f"slow {noise} {size} {kept}", number)
        return 0 in called_slow(Fleet(size, NOISES[noise], rng, slow={0: factor / 100}, kept=kept))[0]

    def play(number: int) -> Tally:
        low, high = 100, 200
        while low < high:
            factor = (low + high) // 2
            low, high = (low, factor) if is_found(number, factor) else (factor + 1, high)
        return {"fleets": 1, f"from {low}": 1}

    return play


def mixed_fleet(noise: str, size: int, share: float) -> Callable[[int], Tally]:
    def play(number: int) -> Tally:
        rng = chance(f"mixed {noise} {size} {share}", number)
        older = frozenset(rng.sample(range(size), round(share * size)))
        fleet = Fleet(size, NOISES[noise], rng, older=older)
        named, history = called_slow(fleet)
        told = own_figures(history, fleet.nodes(), SETTINGS).classes
        return {
            "fleets": 1,
            "slow": bool(named),
            "told": any(older <= set(map(int, found.nodes)) for found in told),
            "before": bool(called_slow_before(history.local)),
        }

    return play


def networks(noise: str, count: int, factor: float) -> Callable[[int], Tally]:
    def play(number: int) -> Tally:
        rng = chance(f"network {noise} {count} {factor}", number)
        slow = dict.fromkeys(rng.sample(range(33), count), factor)
        verdicts, rounds = checked(Fleet(33, NOISES[noise], rng, slow_network=slow))
        named = set(map(int, verdicts.named(Verdict.STRAGGLER)))
        found, wrong = len(named & slow.keys()), bool(named - slow.keys())
        return {"fleets": 1, "found": found, "wrong": wrong, f"rounds {rounds}": 1}

    return play


HEALTHY = {f"healthy, {noise}, N={n}": (noise, n) for noise in NOISES for n in SIZES}
SLOW = {
    f"one slow, {noise}, N={n}{', noise that stays' if kept else ''}": (noise, n, kept)
    for noise in NOISES
    for n in SIZES
    for kept in (False, True)
    if n <= MOST_WITH_ONE_SLOW and not (kept and noise == HEAVY)
}
MIXED = {
    f"mixed, {noise}, N={n}, {share:.0%}": (noise, n, share)
    for noise in ("normal 1 %", "normal 2 %")
    for n, share in ((20, 0.1), (20, 0.25), (100, 0.1), (100, 0.25))
}
NETWORKS = {
    f"{count} of 33 networks {factor:g}× slower, {noise}": (noise, count, factor)
    for noise in NOISES
    for count, factor in ((0, 1.0), (1, 1.5), (1, 2.0), (8, 2.0))
}


def cells() -> list[Cell]:
    return [
        *(Cell(name, healthy_fleet(*of), of[1]) for name, of in HEALTHY.items()),
        *(Cell(name, one_slow(of[0], of[1], kept=of[2]), 8 * of[1]) for name, of in SLOW.items()),
        *(Cell(name, mixed_fleet(*of), of[1]) for name, of in MIXED.items()),
        *(Cell(name, networks(*of), 33) for name, of in NETWORKS.items()),
    ]


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (columns, *rows)]
    return "\n".join((f"### {title}\n", lines[0], "|---" * len(columns) + "|", *lines[1:]))


def healthy_rows(results: Results) -> list[list[str]]:
    rows = []
    for name, (noise, size) in HEALTHY.items():
        sums = results.cells[name]
        shares = [percent(sums[column], sums["fleets"]) for column in ("suspected", "slow", "kept", "before")]
        rows.append([noise, str(size), *shares[:2], "" if noise == HEAVY else shares[2], shares[3]])
    return rows


def slow_rows(results: Results) -> list[list[str]]:
    def found_from(noise: str, size: int, *, kept: bool) -> str:
        name = next((name for name, of in SLOW.items() if of == (noise, size, kept)), None)
        return "" if name is None else f"{_most_found(results.cells[name]) / 100:.2f}×"

    sizes = [(noise, size) for noise, size, kept in SLOW.values() if not kept]
    return [
        [noise, str(size), found_from(noise, size, kept=False), found_from(noise, size, kept=True)]
        for noise, size in sizes
    ]


def _most_found(sums: Tally) -> int:
    """The least factor from which on FOUND of the fleets' slow nodes are found."""
    seen, prefix = 0, "from "
    for factor in sorted(int(key.removeprefix(prefix)) for key in sums if key.startswith(prefix)):
        seen += sums[f"{prefix}{factor}"]
        if seen >= FOUND * sums["fleets"]:
            return factor
    return 200


def mixed_rows(results: Results) -> list[list[str]]:
    rows = []
    for name, (noise, size, share) in MIXED.items():
        sums = results.cells[name]
        shares = (percent(sums[column], sums["fleets"]) for column in ("slow", "told", "before"))
        rows.append([noise, str(size), f"{share:.0%}", *shares])
    return rows


def network_rows(results: Results) -> list[list[str]]:
    rows = []
    for name, (noise, count, factor) in NETWORKS.items():
        sums = results.cells[name]
        found = percent(sums["found"], count * sums["fleets"]) if count else ""
        fleet = f"{count} of 33 networks {factor:g}× slower" if count else "33 healthy nodes"
        wrong = percent(sums["wrong"], sums["fleets"])
        rows.append([noise, fleet, found, wrong, median_and_worst(sums, "rounds ")])
    return rows


def report(results: Results) -> str:
    """The page, with the figures between its marks replaced."""
    stays = "the same, with noise that stays"
    tables = (
        table(
            "Healthy fleets",
            ("noise", "N", "suspected", "called slow", stays, "rule before"),
            healthy_rows(results),
        ),
        table("How slow a node has to be", ("noise", "N", "found in 95 % from", stays), slow_rows(results)),
        table(
            "Two generations under one label, 20 % apart",
            ("noise", "N", "older", "some node called slow", "told", "rule before"),
            mixed_rows(results),
        ),
        table(
            "Slow networks",
            ("noise", "fleet", "found", "some healthy node called slow", "rounds (median / worst)"),
            network_rows(results),
        ),
    )
    text = "\n\n".join((*tables, f"Percent of fleets; *found* of slow nodes. {results.footer('stragglers')}"))
    page = REPORT.read_text()
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


if __name__ == "__main__":
    main("Slow nodes among healthy ones, in simulated fleets.", cells(), REPORT, report)
