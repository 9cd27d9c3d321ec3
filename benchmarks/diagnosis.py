"""Diagnosis benchmark: simulated fleets judged by our pairing and diagnosis, and by DLRover's rule.

    python -m benchmarks.diagnosis --jobs 2 [--fleets 200:400] [--only WORDS]

Every line of its tables draws many fleets with faults at random places, and lets both judge the same
fleets.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from benchmarks.diagnosis_faults import (
    Draw,
    Fleet,
    cut_off,
    dead_racks,
    failing,
    flaky_border,
    in_racks,
    liar,
    links,
    noisy,
    slow_network,
    vouched_bad,
    with_accidents,
    with_broken,
)
from benchmarks.diagnosis_fleets import NOISE, Answer, ask_dlrover, ask_ours
from healthcheck.settings import Settings

REPORT = Path(__file__).parent / "results" / "diagnosis.md"

CHUNK = 5
"""Fleets that a process simulates before it takes more: one of a thousand nodes takes a second or two."""
LIMITS = """## What nothing can tell, and what we do not

* Three witnesses: with fewer than three healthy partners, a broken node is Inconclusive unless its own
  tests or its own agent speak against it. So N = 3, and two broken of four: two bad links at one of
  three nodes look the same, and a healthy node would be blamed for them.
* Where tests fail by chance, a healthy node is blamed when that hits its first five or six tests, or
  most of fifteen: in one check of 2,000 at most. Where five of a hundred fail, it hits one check in
  10,500 of 33 nodes and one in 6,900 of 1,000, counted by importance sampling
  (`python -m benchmarks.diagnosis_chance`).
* An intermittent fault that passes every screening round is not seen: of those that fail a share p of their
  tests, (1 - p)^s stay unseen in s screening rounds. Partners rotate from check to check.
* A bad link is seen only when its two nodes meet: s screening rounds meet s of N - 1 pairs of each node. N
  - 1 rounds meet all; `spec.screeningRounds` buys more.
* Beside a cut, a node that never passed may be healthy on the one side or on the other. So it meets others on
  both sides until bad luck is 4,000 times less likely than a fault. Many a node that is broken behind a cut
  is found only when the network is repaired. Of two equal halves, the second is named.
* Nodes that are cut off look broken until they have met. So where several never pass, they meet each other
  until a part of a third as many nodes as are broken would have shown. A smaller part may stay unseen, and be
  blamed: without labels, two that are cut off beside twelve that are broken were blamed in 30 of 400 fleets
  of 100 nodes.
* Where the way out of a labelled rack or switch fails now and then, its nodes are blamed only for what that
  does not explain; the rack is seldom named. Without labels its nodes look like so many faulty ones, most of
  which stay undecided.
* Where nothing passes at all (all nodes but one faulty, or the software), everybody is inconclusive after
  four rounds, of hundreds of nodes after one.
* Where a quarter of all nodes fail now and then, few are found: a third of all tests seem to fail by chance,
  and nobody stands out. More screening rounds help: `screeningRounds: 12` found 80 of 120 such nodes.
"""
Tally = Mapping[str, int]
"""Contribution of one fleet to the sums of its line."""


@dataclass(frozen=True)
class Line:
    """Line of a table: fleets drawn alike."""

    name: str
    size: int
    draw: Draw
    screening_rounds: int = Settings.screening_rounds

    def play(self, number: int) -> Tally:
        """Let both judge the same fleet."""
        fleet = self.draw(random.Random(f"{self.name} {number}"))
        rotation = random.Random(number).getrandbits(32)
        settings = replace(Settings(), screening_rounds=self.screening_rounds, rotation=rotation)
        ours = ask_ours(fleet, random.Random(f"ours {number}"), settings)
        theirs = ask_dlrover(fleet, random.Random(f"theirs {number}"))
        parts = len(fleet.faulty_nodes) + len(fleet.faulty_links) + len(fleet.faulty_racks)
        return {"fleets": 1, "parts": parts} | score("ours", fleet, ours) | score("theirs", fleet, theirs)


def score(judge: str, fleet: Fleet, answer: Answer) -> dict[str, int]:
    """Return the contribution of one judge's answer to the sums of the line.

    `found` counts faulty parts; the others count fleets: those with a healthy node called faulty or slow,
    with a sound link, rack or part of the network named, and with an undecided node.
    """
    named = answer.faulty | answer.slow
    right = {rack for rack in fleet.faulty_racks if any(is_part(fleet, rack, g) for g in answer.domains)}
    misnamed = bool(answer.links - fleet.bad_links.keys()) or not all(
        any(is_part(fleet, rack, named_part) for rack in fleet.faulty_racks) for named_part in answer.domains
    )
    found = len(fleet.faulty_nodes & named) + len(fleet.faulty_links & answer.links) + len(right)
    return {
        f"{judge} found": found,
        f"{judge} blamed": bool(named - fleet.faulty_nodes),
        f"{judge} misnamed": misnamed,
        f"{judge} undecided": bool(answer.undecided),
        f"{judge} rounds {answer.rounds}": 1,
    }


def is_part(fleet: Fleet, rack: int, named: frozenset[int]) -> bool:
    """Return whether the named nodes are most of the rack, or most of the others."""
    inside = fleet.in_rack(rack)
    outside = frozenset(range(fleet.size)) - inside
    return any(named <= side and 2 * len(named) >= len(side) for side in (inside, outside))


def tables() -> dict[str, list[Line]]:
    """Return the lines, by the title of their table."""
    hard = [(n, k) for n in (3, 4, 9, 33, 100, 1000) for k in sorted({1, max(1, n // 4), n // 2})]
    racks = ((12, 4), (100, 10))
    cuts = [
        (n, size, f"N={n}, {size} nodes, {labels}", labels == "labels")
        for n, size in ((12, 4), (100, 10), (200, 100))
        for labels in ("labels", "no labels")
    ]
    return {
        "Healthy fleets": [Line(f"N={n}", n, failing(n, 0)) for n in (3, 16, 1000)],
        "Hard faults, up to half of the nodes": [Line(f"N={n}, k={k}", n, failing(n, k)) for n, k in hard],
        "Hard faults in labelled racks": [
            Line(f"N={n}, k={k}, racks of {rack}", n, in_racks(failing(n, k), rack))
            for n, rack in racks
            for k in (1, n // 4)
        ],
        "A rack whose way out fails half of the time": [
            Line(f"N={n}, racks of {rack}", n, flaky_border(n, rack)) for n, rack in racks
        ],
        "Intermittent faults: p is the probability that a test fails": [
            Line(f"N={n}, k={k}, p={p}", n, failing(n, k, p))
            for n, k in ((33, 1), (32, 8))
            for p in (0.9, 0.7, 0.5, 0.3)
        ],
        "A rack or a half cut off": [
            Line(f"{name}, {order}", n, cut_off(n, size, labelled=labelled, shuffled=order == "shuffled"))
            for n, size, name, labelled in cuts
            for order in ("by rank", "shuffled")
        ],
        "A part cut off, where tests fail by chance besides": [
            Line(f"{name}, shuffled, {share:.0%}", n, with_accidents(draw, share))
            for n, size, name, labelled in cuts
            for draw in [cut_off(n, size, labelled=labelled, shuffled=True)]
            for share in (0.01, 0.05)
        ],
        "A part cut off beside broken nodes": [
            Line(f"N={n}, {size} nodes, {labels}, shuffled, {count} broken", n, with_broken(draw, count))
            for n, size, count in ((12, 4, 1), (100, 10, 5), (100, 2, 6))
            for labels in ("labels", "no labels")
            for draw in [cut_off(n, size, labelled=labels == "labels", shuffled=True)]
        ],
        "Dead racks": [
            Line("N=15, 1 of 5 racks", 15, dead_racks(15, 3, 1)),
            Line("N=64, 2 of 8 racks", 64, dead_racks(64, 8, 2)),
        ],
        "Bad links": [
            *(Line(f"N={n}, one anywhere", n, links(n, 1)) for n in (4, 13, 100)),
            *(Line(f"N={n}, two at one node", n, links(n, 2, at_one_node=True)) for n in (4, 13, 100)),
            *(Line(f"N=16, one anywhere, {s} screening rounds", 16, links(16, 1), s) for s in (4, 15)),
        ],
        "Tests that fail, and answers that are late or lost, by chance": [
            Line(f"N={n}, {what} {share:.1%}", n, draw)
            for n in (9, 33, 100, 1000)
            for what, share, draw in (
                *(("tests", share, noisy(n, transient=share)) for share in (0.01, 0.05)),
                ("answers", 0.01, noisy(n, lost=0.01)),
            )
        ],
        "Who is believed": [
            Line("N=13, all 6 vouched nodes broken", 13, vouched_bad(13, 6)),
            Line("N=33, all 8 vouched nodes broken", 33, vouched_bad(33, 8)),
            Line("N=33, one fails with 16 of 32", 33, liar(33, 16)),
        ],
        "Slow networks": [
            Line("N=33, one 1.5× slower", 33, slow_network(33, 1.5)),
            Line("N=33, 8 twice as slow", 33, slow_network(33, 2.0, 8)),
        ],
    }


@dataclass(frozen=True)
class Results:
    """Results, as sums by line."""

    sums: Mapping[str, Counter[str]]
    fleets: range
    """Numbers of each line's fleets."""
    cpu_seconds: float


_lines: Mapping[str, Line] = {}
"""Lines of the parent process, which forked this one; functions cannot be sent to it."""


def play(lines: list[Line], fleets: range, jobs: int) -> Results:
    """Simulate all fleets of these numbers in `jobs` processes, the largest first."""
    global _lines
    _lines = {line.name: line for line in lines}
    by_size = sorted(lines, key=lambda line: -line.size)
    work = [(line.name, fleets[at : at + CHUNK]) for line in by_size for at in range(0, len(fleets), CHUNK)]
    sums: dict[str, Counter[str]] = {name: Counter() for name in _lines}
    seconds = 0.0
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for name, tally, took in pool.imap_unordered(_played, work):
            sums[name].update(tally)
            seconds += took
    return Results(sums, fleets, seconds)


def _played(work: tuple[str, range]) -> tuple[str, Counter[str], float]:
    name, fleets = work
    began = time.process_time()
    tally: Counter[str] = Counter()
    for number in fleets:
        tally.update(_lines[name].play(number))
    return name, tally, time.process_time() - began


def percent(count: int, of: int) -> str:
    return f"{100 * count / of:.3g}" if of else "0"


def median_and_worst(sums: Tally, prefix: str) -> str:
    """Return median and worst of a histogram kept as sums: "prefix 7" counts the sevens."""
    counts = sorted((int(key.removeprefix(prefix)), n) for key, n in sums.items() if key.startswith(prefix))
    total, seen = sum(n for _, n in counts), 0
    for value, n in counts:
        seen += n
        if 2 * seen >= total:
            return f"{value} / {counts[-1][0]}"
    return "–"


def row(name: str, sums: Tally) -> str:
    def both(column: str, of: int) -> str:
        return " · ".join(percent(sums.get(f"{judge} {column}", 0), of) for judge in ("ours", "theirs"))

    fleets = sums["fleets"]
    found = both("found", sums["parts"]) if sums["parts"] else "–"
    shares = (found, *(both(column, fleets) for column in ("blamed", "misnamed", "undecided")))
    rounds = " · ".join(median_and_worst(sums, f"{judge} rounds ") for judge in ("ours", "theirs"))
    return f"| {name} | {' | '.join(shares)} | {rounds} |"


def table(lines: list[Line], results: Results) -> str:
    head = (
        "| fleet | found | healthy blamed | wrong place | undecided | rounds |",
        "|---|---|---|---|---|---|",
    )
    return "\n".join((*head, *(row(line.name, results.sums[line.name]) for line in lines)))


def report(results: Results) -> str:
    fleets = results.fleets
    body = "\n".join(f"## {title}\n\n{table(lines, results)}\n" for title, lines in tables().items())
    return f"""# Who is to blame: our diagnosis and DLRover's rule, on the same simulated fleets

Every line is many fleets with faults at random places. In each column the first figure is ours
(`healthcheck/`, as the NodeCheck reconciler runs it), the second is that of DLRover's rule. Percent, but
for rounds (median / worst). *Found* is the share of the faulty nodes, links, racks and parts of the network.
The others are shares of the fleets: those in which some healthy node was called faulty or slow, in which a
sound link or rack was named, and in which some node was called inconclusive, which cordons nobody. A node in
a dead rack counts as faulty, one behind a cut does not: it is inconclusive, and its rack is named. Measured
figures have {NOISE:.0%} of noise. DLRover's rule is spared late answers, which it has no word for.

{body}
{LIMITS}
{len(fleets)} fleets a line, with the numbers {fleets[0]} to {fleets[-1]}.
{results.cpu_seconds:.0f} s of CPU time. {date.today()}, Python {platform.python_version()}.
To run it again, with other fleets:

    python -m benchmarks.diagnosis --jobs 2 --fleets {fleets.stop}:{fleets.stop + len(fleets)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Our diagnosis and DLRover's rule on simulated fleets.")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--fleets", default="0:200", metavar="FIRST:LAST", help="numbers, LAST excluded")
    parser.add_argument("--only", default="", help="print only the lines whose names contain this")
    arguments = parser.parse_args()
    lines = [line for of_one in tables().values() for line in of_one if arguments.only in line.name]
    results = play(lines, range(*map(int, arguments.fleets.split(":"))), arguments.jobs)
    if arguments.only:
        print(table(lines, results))
    else:
        REPORT.write_text(report(results))


if __name__ == "__main__":
    main()
