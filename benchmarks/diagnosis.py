"""Finding the guilty: simulated fleets through our pairing and diagnosis, and through DLRover's rule.

Every cell draws many fleets with faults at random places and lets both judge the same fleets.
"""

import argparse
import platform
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from benchmarks.diagnosis_faults import (
    Draw,
    Fleet,
    cut_off,
    dead_racks,
    failing,
    liar,
    links,
    noisy,
    slow_network,
    vouched_bad,
)
from benchmarks.diagnosis_fleets import NOISE, Answer, ask_dlrover, ask_ours
from healthcheck.settings import Settings

REPORT = Path(__file__).parent.parent / "docs" / "diagnosis.md"
LARGE = 33
LEAST_FLEETS = 10

LIMITS = """## What nothing can tell, and what we do not

* Three witnesses: with fewer than three healthy partners, a broken node is Inconclusive unless its own tests
  or its own agent speak against it. So N = 2 and 3, and two broken of four: two bad links at one of three
  nodes look the same, and a healthy node would be blamed for them.
* Where tests fail by chance, a healthy node is blamed when that befalls its first four tests with three
  witnesses. Five failing tests in a hundred do that in fewer than one check in 1,000 of six nodes; in larger
  fleets the background is learned, and more is asked for.
* An intermittent fault that passes every screening round is not seen: of those that fail a share p of their
  tests, (1 - p)^s stay unseen in s screening rounds. Partners rotate from check to check.
* A bad link is seen only when its two nodes meet: s screening rounds meet s of N - 1 pairs of each node.
  N - 1 rounds meet all; `spec.screeningRounds` buys more. A bad link that works now and then is mostly taken
  for an accident: its pair is not tried again once it passed.
* Behind a cut, a node that is broken besides is told when the network is repaired. Of two equal halves, the
  second is named.
* Where the way out of a labelled rack or switch fails now and then, its nodes are not blamed for failures
  that all cross it, once two of them have crossed it badly. If one alone has, or labels do not tell the rack,
  that one may be blamed: where half of what crosses it is lost, in one check of thirty
  ([records.md](records.md)).
* Where nothing passes at all (all nodes but one faulty, or the software), everybody is inconclusive after
  four rounds, of hundreds of nodes after one.
* Where a quarter of all nodes fail now and then, most of them stay inconclusive: nobody is left whose word
  can be trusted.
"""


@dataclass(frozen=True)
class Cell:
    """One line of a table: fleets drawn alike."""

    name: str
    size: int
    draw: Draw
    screening_rounds: int = Settings.screening_rounds


@dataclass(frozen=True)
class Score:
    """How one judge did in one cell, in percent: of the faulty parts, or of the fleets."""

    found: float
    blamed: float
    """Fleets with some healthy node called faulty or slow."""
    misnamed: float
    """Fleets with a link, a rack or a part of the network named that is not at fault."""
    undecided: float
    """Fleets with some node called inconclusive."""
    rounds: str


def play(cell: Cell, fleets: int, seed: int) -> tuple[Score, Score]:
    """Ours, DLRover's."""
    settings = Settings(screening_rounds=cell.screening_rounds)
    drawn = [cell.draw(random.Random(f"{seed} {cell.name} {i}")) for i in range(fleets)]
    ours = [ask_ours(fleet, random.Random(f"{seed} {i}"), settings) for i, fleet in enumerate(drawn)]
    theirs = [ask_dlrover(fleet, random.Random(f"{seed} {i}")) for i, fleet in enumerate(drawn)]
    return score(drawn, ours), score(drawn, theirs)


def score(fleets: Sequence[Fleet], answers: Sequence[Answer]) -> Score:
    parts = found = blamed = misnamed = 0
    for fleet, answer in zip(fleets, answers, strict=True):
        named = answer.faulty | answer.slow
        right = {rack for rack in fleet.faulty_racks if any(is_part(fleet, rack, g) for g in answer.domains)}
        parts += len(fleet.faulty_nodes) + len(fleet.faulty_links) + len(fleet.faulty_racks)
        found += len(fleet.faulty_nodes & named) + len(fleet.faulty_links & answer.links) + len(right)
        blamed += bool(named - fleet.faulty_nodes)
        misnamed += bool(answer.links - fleet.bad_links.keys()) or not all(
            any(is_part(fleet, rack, named_part) for rack in fleet.faulty_racks)
            for named_part in answer.domains
        )
    rounds = [answer.rounds for answer in answers]
    return Score(
        found=100 * found / max(parts, 1),
        blamed=100 * blamed / len(fleets),
        misnamed=100 * misnamed / len(fleets),
        undecided=100 * sum(bool(answer.undecided) for answer in answers) / len(fleets),
        rounds=f"{statistics.median(rounds):.0f} / {max(rounds)}",
    )


def is_part(fleet: Fleet, rack: int, named: frozenset[int]) -> bool:
    """Whether the named nodes are of the rack, or all of the others, most of them."""
    inside = fleet.in_rack(rack)
    outside = frozenset(range(fleet.size)) - inside
    return any(named <= side and 2 * len(named) >= len(side) for side in (inside, outside))


def tables() -> dict[str, list[Cell]]:
    """The cells, by the title of their table."""
    sizes = (2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 33, 64, 100, 256, 1000)
    small = (4, 6, 13, 33, 100)
    hard = [(n, k) for n in sizes for k in sorted({1, max(1, n // 4), n // 2})]
    return {
        "Healthy fleets": [Cell(f"N={n}", n, failing(n, 0)) for n in (2, 3, 16, 256, 1000)],
        "Hard faults, up to half of the nodes": [Cell(f"N={n}, k={k}", n, failing(n, k)) for n, k in hard],
        "Intermittent faults: p is the probability that a test fails": [
            Cell(f"N={n}, k={k}, p={p}", n, failing(n, k, p))
            for n, k in ((6, 1), (33, 1), (13, 3), (32, 8))
            for p in (0.9, 0.7, 0.5, 0.3)
        ],
        "A rack or a half cut off": [
            Cell(f"N={n}, {size} nodes, {_told(labelled, shuffled)}", n, draw)
            for n, size in ((6, 3), (12, 4), (50, 25), (64, 2), (100, 10), (200, 100), (256, 16), (1000, 8))
            for labelled in (True, False)
            for shuffled in (False, True)
            for draw in [cut_off(n, size, labelled=labelled, shuffled=shuffled)]
        ],
        "Dead racks": [
            Cell("N=15, 1 of 5 racks", 15, dead_racks(15, 3, 1)),
            Cell("N=64, 2 of 8 racks", 64, dead_racks(64, 8, 2)),
        ],
        "Bad links": [
            *(Cell(f"N={n}, one anywhere", n, links(n, 1)) for n in small),
            *(Cell(f"N={n}, two anywhere", n, links(n, 2)) for n in small),
            *(Cell(f"N={n}, two at one node", n, links(n, 2, at_one_node=True)) for n in small),
            *(Cell(f"N=16, one anywhere, {s} screening rounds", 16, links(16, 1), s) for s in (4, 15)),
        ],
        "Tests that fail, and answers that are late or lost, by chance": [
            Cell(f"N={n}, {what} {share:.1%}", n, draw)
            for n in (4, 6, 9, 33, 100, 1000)
            for what, share, draw in (
                *(("tests", share, noisy(n, transient=share)) for share in (0.01, 0.05)),
                *(("answers", share, noisy(n, lost=share)) for share in (0.001, 0.01)),
            )
        ],
        "Who is believed": [
            Cell("N=13, all 6 vouched nodes broken", 13, vouched_bad(13, 6)),
            Cell("N=33, all 8 vouched nodes broken", 33, vouched_bad(33, 8)),
            Cell("N=33, one fails with 16 of 32", 33, liar(33, 16)),
        ],
        "Slow networks": [
            Cell("N=33, one 1.5× slower", 33, slow_network(33, 1.5)),
            Cell("N=33, 8 twice as slow", 33, slow_network(33, 2.0, 8)),
        ],
    }


def _told(labelled: bool, shuffled: bool) -> str:
    labels = "labels" if labelled else "no labels"
    return f"{labels}, shuffled" if shuffled else f"{labels}, by rank"


def table(cells: Sequence[Cell], fleets: int, seed: int) -> str:
    lines = [
        "| fleet | found | healthy blamed | wrong place | undecided | rounds |",
        "|---|---|---|---|---|---|",
    ]
    for cell in cells:
        ours, theirs = play(cell, max(LEAST_FLEETS, min(fleets, LARGE * fleets // cell.size)), seed)
        percents = [
            f"{getattr(ours, column):.3g} · {getattr(theirs, column):.3g}"
            for column in ("found", "blamed", "misnamed", "undecided")
        ]
        lines.append(f"| {cell.name} | {' | '.join(percents)} | {ours.rounds} · {theirs.rounds} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def report(fleets: int, seed: int) -> str:
    started = time.process_time()
    parts = [f"## {title}\n\n{table(cells, fleets, seed)}\n" for title, cells in tables().items()]
    seconds = time.process_time() - started
    body = "\n".join(parts)
    return f"""# Who is to blame: our diagnosis and DLRover's rule, on the same simulated fleets

Every line is many fleets with faults at random places. In each column the first figure is ours
(`healthcheck/`, as the NodeCheck reconciler runs it), the second is that of DLRover's rule. Percent, but
for rounds (median / worst). *Found* is the share of the faulty nodes, links, racks and parts of the network.
The others are shares of the fleets: those in which some healthy node was called faulty or slow, in which a
sound link or rack was named, and in which some node was called inconclusive, which cordons nobody. A node in
a dead rack counts as faulty, one behind a cut does not: it is inconclusive, and its rack is named. Measured
figures have {NOISE:.0%} of noise; stragglers have [a page of their own](stragglers.md). DLRover's rule is
spared late answers, which it has no word for.

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


if __name__ == "__main__":
    main()
