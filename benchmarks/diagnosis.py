"""Finding the guilty: simulated fleets through our pairing and diagnosis, and through DLRover's rule.

Every cell draws many fleets with faults at random places and lets both judge the same fleets.
"""

import argparse
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from benchmarks.diagnosis_fleets import NOISE, Answer, Fleet, ask_dlrover, ask_ours
from healthcheck.settings import Settings

REPORT = Path(__file__).parent.parent / "docs" / "diagnosis.md"
LARGE = 16
LEAST_FLEETS = 20

LIMITS = """## What nothing can tell, and what we do not

* Two nodes, and no third: the pair tests accuse both alike. Only local tests, a vouched node or a minimum
  set for the network decide.
* An intermittent fault that passes every screening round is not seen: of those that fail a share p of their
  tests, 1 − p stay unseen in one screening round, (1 − p)ˢ in s. After a first failure, nearly all are
  found.
* A bad link is seen only when its two nodes meet: in one screening round that is one pair in N − 1. One
  that works now and then is mostly taken for an accident: its pair is not tried again once it passed.
* Two bad links at one node look like the node, and are called so.
* Where nothing passes at all (all nodes but one faulty, or the software), everybody is inconclusive after
  four rounds.
* Ten percent cannot be told from the spread of healthy nodes among fewer than five, unless a minimum is
  set; the network of two nodes has nothing to be compared with.
* Where a quarter of all nodes fail now and then, some fleets stay undecided in twelve rounds, and a healthy
  node is blamed when enough such partners fail with it and with nobody else.
"""

Draw = Callable[[random.Random], Fleet]


@dataclass(frozen=True)
class Cell:
    """One line of a table: fleets drawn alike."""

    name: str
    size: int
    draw: Draw
    screening_rounds: int = 1


@dataclass(frozen=True)
class Score:
    """How one judge did in one cell, in percent: of the faulty parts, or of the fleets."""

    found: float
    missed: float
    """Faulty nodes called healthy, links and racks not named."""
    blamed: float
    """Fleets with some healthy node called faulty or slow."""
    misnamed: float
    """Fleets with a link or rack named that is not at fault."""
    undecided: float
    """Fleets with some node called inconclusive."""
    rounds: str
    tests: float


def play(cell: Cell, fleets: int, seed: int) -> tuple[Score, Score]:
    """Ours, DLRover's."""
    settings = Settings(screening_rounds=cell.screening_rounds)
    drawn = [cell.draw(random.Random(f"{seed} {cell.name} {i}")) for i in range(fleets)]
    ours = [ask_ours(fleet, random.Random(f"{seed} {i}"), settings) for i, fleet in enumerate(drawn)]
    theirs = [ask_dlrover(fleet, random.Random(f"{seed} {i}")) for i, fleet in enumerate(drawn)]
    return score(drawn, ours), score(drawn, theirs)


def score(fleets: Sequence[Fleet], answers: Sequence[Answer]) -> Score:
    parts = found = missed = blamed = misnamed = 0
    for fleet, answer in zip(fleets, answers, strict=True):
        named = answer.faulty | answer.slow
        links, racks = set(fleet.bad_links), _bad_racks(fleet)
        parts += len(fleet.faulty_nodes) + len(links) + len(racks)
        hits = len(links & answer.links) + len(racks & answer.domains)
        found += len(fleet.faulty_nodes & named) + hits
        missed += len(fleet.faulty_nodes - named - answer.undecided) + len(links) + len(racks) - hits
        blamed += bool(named - fleet.faulty_nodes)
        misnamed += bool(answer.links - links or answer.domains - racks)
    rounds = [answer.rounds for answer in answers]
    return Score(
        found=100 * found / max(parts, 1),
        missed=100 * missed / max(parts, 1),
        blamed=100 * blamed / len(fleets),
        misnamed=100 * misnamed / len(fleets),
        undecided=100 * sum(bool(answer.undecided) for answer in answers) / len(fleets),
        rounds=f"{statistics.median(rounds):.0f} / {max(rounds)}",
        tests=statistics.mean(answer.tests for answer in answers),
    )


def _bad_racks(fleet: Fleet) -> set[int]:
    """Racks that are cut off, or whose nodes all fail."""
    if not fleet.rack_size:
        return set()
    racks = {fleet.rack(node) for node in range(fleet.size)}
    dead = {r for r in racks if all(n in fleet.failing for n in range(fleet.size) if fleet.rack(n) == r)}
    return dead | ({fleet.cut_off_rack} if fleet.cut_off_rack is not None else set())


def failing(size: int, count: int, probability: float = 1.0) -> Draw:
    return lambda rng: Fleet(size, failing=dict.fromkeys(rng.sample(range(size), count), probability))


def dead_racks(size: int, rack_size: int, count: int) -> Draw:
    def draw(rng: random.Random) -> Fleet:
        racks = rng.sample(range(size // rack_size), count)
        nodes = [node for rack in racks for node in range(rack * rack_size, (rack + 1) * rack_size)]
        return Fleet(size, failing=dict.fromkeys(nodes, 1.0), rack_size=rack_size)

    return draw


def cut_off_rack(size: int, rack_size: int) -> Draw:
    return lambda rng: Fleet(size, rack_size=rack_size, cut_off_rack=rng.randrange(size // rack_size))


def neighbour_link(size: int, probability: float = 1.0) -> Draw:
    """A link that round 1 exercises."""

    def draw(rng: random.Random) -> Fleet:
        first = 2 * rng.randrange(size // 2)
        return Fleet(size, bad_links={frozenset((first, first + 1)): probability})

    return draw


def any_link(size: int) -> Draw:
    return lambda rng: Fleet(size, bad_links={frozenset(rng.sample(range(size), 2)): 1.0})


def slow_compute(size: int, factor: float) -> Draw:
    return lambda rng: Fleet(size, slow_compute={rng.randrange(size): factor})


def slow_network(size: int, factor: float) -> Draw:
    return lambda rng: Fleet(size, slow_network={rng.randrange(size): factor})


def tables() -> dict[str, list[Cell]]:
    """The cells, by the title of their table."""
    quarter = (2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 32, 64, 128, 256)
    replay = ((4, 2), (6, 2), (6, 3), (8, 3), (12, 4), (12, 6), (12, 8), (16, 8), (32, 16))
    return {
        "Healthy fleets": [Cell(f"N={n}", n, failing(n, 0)) for n in (2, 3, 16, 256)],
        "Hard faults, up to a quarter of the nodes": [
            Cell(f"N={n}, k={k}", n, failing(n, k)) for n in quarter for k in sorted({1, max(1, n // 4)})
        ],
        "Hard faults, more than a quarter": [Cell(f"N={n}, k={k}", n, failing(n, k)) for n, k in replay],
        "Intermittent faults: p is the probability that a test fails": [
            Cell(f"N={n}, k={k}, p={p}{_screened(s)}", n, failing(n, k, p), s)
            for n, k, s in ((6, 1, 1), (16, 1, 1), (64, 1, 1), (16, 1, 3), (32, 4, 1), (32, 8, 1))
            for p in (0.9, 0.7, 0.3)
        ],
        "Racks": [
            Cell("N=16, 1 of 4 racks dead", 16, dead_racks(16, 4, 1)),
            Cell("N=15, 1 of 5 racks dead", 15, dead_racks(15, 3, 1)),
            Cell("N=64, 2 of 8 racks dead", 64, dead_racks(64, 8, 2)),
            Cell("N=15, 1 of 5 racks cut off", 15, cut_off_rack(15, 3)),
            Cell(f"N=16, 1 of 4 racks cut off{_screened(2)}", 16, cut_off_rack(16, 4), 2),
        ],
        "One bad link": [
            *(Cell(f"N={n}, between neighbours", n, neighbour_link(n)) for n in (3, 4, 6, 16, 64)),
            Cell("N=16, between neighbours, p=0.7", 16, neighbour_link(16, 0.7)),
            *(Cell(f"N=16, anywhere{_screened(s)}", 16, any_link(16), s) for s in (1, 3)),
        ],
        "One straggler": [
            Cell(f"N={n}, {what} {factor:g}× slower", n, draw(n, factor))
            for what, draw in (("compute", slow_compute), ("network", slow_network))
            for n in (2, 4, 6, 16, 64)
            for factor in (1.1, 1.5, 3.0)
        ],
    }


def _screened(rounds: int) -> str:
    return f", {rounds} screening rounds" if rounds > 1 else ""


def table(cells: Sequence[Cell], fleets: int, seed: int) -> str:
    lines = [
        "| fleet | found | missed | healthy blamed | wrong link or rack | undecided | rounds | tests |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        count = max(LEAST_FLEETS, min(fleets, LARGE * fleets // cell.size))
        ours, theirs = play(cell, count, seed)
        percents = [
            f"{getattr(ours, column):.3g} · {getattr(theirs, column):.3g}"
            for column in ("found", "missed", "blamed", "misnamed", "undecided")
        ]
        columns = [*percents, f"{ours.rounds} · {theirs.rounds}", f"{ours.tests:.0f} · {theirs.tests:.0f}"]
        lines.append(f"| {cell.name} | {' | '.join(columns)} |")
    return "\n".join(lines)


def report(fleets: int, seed: int) -> str:
    started = time.process_time()
    parts = [f"## {title}\n\n{table(cells, fleets, seed)}\n" for title, cells in tables().items()]
    seconds = time.process_time() - started
    body = "\n".join(parts)
    return f"""# Who is to blame: our diagnosis and DLRover's rule, on the same simulated fleets

Every line is many fleets with faults at random places. In each column the first figure is ours
(`healthcheck/`, as the NodeCheck reconciler runs it), the second is that of DLRover's rule. Percent, but
for rounds (median / worst) and tests (mean). *Found* and *missed* are shares of the faulty nodes, links and
racks; those missed are called healthy, or not named. The others are shares of the fleets: those in which
some healthy node was called faulty or slow, in which a sound link or rack was named, and in which some node
was called inconclusive, which cordons nobody. Measured figures have {NOISE:.0%} of noise. No fault but slow
compute shows in a local test. A node in a dead rack counts as faulty, one in a rack that is cut off does
not.

{body}
{LIMITS}
{fleets} fleets a line, fewer above N={LARGE} (never fewer than {LEAST_FLEETS}); seed {seed}.
{seconds:.0f} s of CPU time. {date.today()}, {platform.system()}, Python {platform.python_version()}.
To run it again, with other fleets:

    python -m benchmarks.diagnosis --fleets {fleets} --seed {seed + 1}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Our diagnosis and DLRover's rule on simulated fleets.")
    parser.add_argument("--fleets", type=int, default=200, help="fleets per cell")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    text = report(arguments.fleets, arguments.seed)
    REPORT.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
