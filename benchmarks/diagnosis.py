"""Finding the guilty: simulated fleets through our pairing and diagnosis, and through DLRover's rule.

Every cell draws many fleets with faults at random places and lets both judge the same fleets.
"""

import random
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.cells import Cell, Results, Tally, main, median_and_worst, percent
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

REPORT = Path(__file__).parent.parent / "docs" / "diagnosis.md"

LIMITS = """## What nothing can tell, and what we do not

* Three witnesses: with fewer than three healthy partners, a broken node is Inconclusive unless its own
  tests or its own agent speak against it. So N = 2 and 3, and two broken of four: two bad links at one of
  three nodes look the same, and a healthy node would be blamed for them.
* Where tests fail by chance, a healthy node is blamed when that befalls its first five or six tests, or
  most of fifteen: in one check of 2,000 at most, by the odds that are asked for, if it is known how many
  tests fail. Few rounds do not tell that, so five failures are asked for in any case. Where five of a
  hundred fail, it befalls one check in 10,500 of 33 nodes and one in 6,900 of 1,000: 9.5e-5 ± 0.4e-5 of
  3,000 fleets, and 1.5e-4 ± 0.2e-4 of 300, the latter by the rules of 2026-11-23, counted by importance
  sampling (`python -m benchmarks.diagnosis_chance`). So it befell none of the 200 fleets of a thousand nodes
  above, none of 20,000 of four (three, with four failures asked for), and none of 1,400 of 33.
* An intermittent fault that passes every screening round is not seen: of those that fail a share p of their
  tests, (1 - p)^s stay unseen in s screening rounds. Partners rotate from check to check.
* A bad link is seen only when its two nodes meet: s screening rounds meet s of N - 1 pairs of each node. N
  - 1 rounds meet all; `spec.screeningRounds` buys more. A bad link that works now and then is mostly taken
  for an accident: its pair is not tried again once it passed.
* Beside a cut, a node that never passed may be healthy on the one side or on the other, and have failed
  there by chance. So it meets others on both sides until bad luck is 4,000 times less likely than a fault.
  Many a node that is broken behind a cut is told only when the network is repaired. Of two equal halves,
  the second is named. A part without a label may be told as two where tests between its nodes fail by
  chance.
* Nodes that are cut off look broken until they have met. So where several never pass, they meet each other
  until a part of a third as many nodes as are broken would have shown: up to thirteen all do, which is why
  16 broken nodes of 33 take 19 rounds. A smaller part may stay unseen, and be blamed: without labels, two
  that are cut off beside twelve that are broken were blamed in 30 of 400 fleets of 100 nodes, four beside 24
  in 10 of 100, eight beside 24 in none of 100. Where tests fail by chance, so may the only one that two nodes
  make with each other: where one in a hundred does, two that are cut off beside one that is broken were
  blamed in 4 of 400 fleets of 100 nodes with labels, and in 7 without; where one in twenty does, three beside
  three in none of 400 fleets of 33 with labels, and in 1 without. Two without a broken node beside them were
  blamed in none of 800 fleets of 64. A node that is broken beside a labelled rack that is cut off may
  stay undecided: it failed with nodes of that rack too, and that is the rack's.
* Where the way out of a labelled rack or switch fails now and then, its nodes are blamed only for what that
  does not explain: what its other nodes meet on the way out is what they are measured by. The rack is seldom
  named. If labels do not tell the rack, its nodes look like so many faulty ones, most of which stay
  undecided.
* Where nothing passes at all (all nodes but one faulty, or the software), everybody is inconclusive after
  four rounds, of hundreds of nodes after one.
* Where a quarter of all nodes fail now and then, few are found. A node that never passes explains all the
  failures that it takes part in, so permanent faults are found in up to half of the nodes. One that passes
  one test in ten has shown with it that it works, and its failures count among those that befall healthy
  nodes: with 8 such of 32, a third of all tests seem to fail by chance, and nobody stands out. More rounds
  about those in doubt buy nothing (of 120 such nodes, 8 were found in 36 rounds and 8 in 72). More screening
  rounds do, as the passes of the others tell how often tests fail: `screeningRounds: 12` found 80 of them. To
  leave out of that rate whoever fails most of its tests found 96 %, and is not done: where half of all tests
  fail, by the software say, it blamed healthy nodes in 9 of 36 fleets of 33. The rule as it is blamed none in
  100 such fleets.
"""


@dataclass(frozen=True)
class Line:
    """One line of a table: fleets drawn alike."""

    name: str
    size: int
    draw: Draw
    screening_rounds: int = Settings.screening_rounds

    def play(self, number: int) -> Tally:
        """Both judge the same fleet."""
        fleet = self.draw(random.Random(f"{self.name} {number}"))
        rotation = random.Random(number).getrandbits(32)
        settings = replace(Settings(), screening_rounds=self.screening_rounds, rotation=rotation)
        ours = ask_ours(fleet, random.Random(f"ours {number}"), settings)
        theirs = ask_dlrover(fleet, random.Random(f"theirs {number}"))
        parts = len(fleet.faulty_nodes) + len(fleet.faulty_links) + len(fleet.faulty_racks)
        return {"fleets": 1, "parts": parts} | score("ours", fleet, ours) | score("theirs", fleet, theirs)


def score(judge: str, fleet: Fleet, answer: Answer) -> dict[str, int]:
    """What one judge's answer adds to the sums of the line.

    `found` counts faulty parts; the others count fleets: those with some healthy node called faulty or slow,
    with a link, a rack or a part of the network named that is not at fault, and with some node undecided.
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
    """Whether the named nodes are of the rack, or all of the others, most of them."""
    inside = fleet.in_rack(rack)
    outside = frozenset(range(fleet.size)) - inside
    return any(named <= side and 2 * len(named) >= len(side) for side in (inside, outside))


def tables() -> dict[str, list[Line]]:
    """The lines, by the title of their table."""
    sizes = (2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 33, 64, 100, 256, 1000)
    small = (4, 6, 13, 33, 100)
    hard = [(n, k) for n in sizes for k in sorted({1, max(1, n // 4), n // 2})]
    return {
        "Healthy fleets": [Line(f"N={n}", n, failing(n, 0)) for n in (2, 3, 16, 256, 1000)],
        "Hard faults, up to half of the nodes": [Line(f"N={n}, k={k}", n, failing(n, k)) for n, k in hard],
        "Hard faults in labelled racks": [
            Line(f"N={n}, k={k}, racks of {rack}", n, in_racks(failing(n, k), rack))
            for n, rack in ((8, 2), (12, 4), (32, 8), (100, 10))
            for k in (1, n // 4)
        ],
        "A rack whose way out fails half of the time": [
            Line(f"N={n}, racks of {rack}", n, flaky_border(n, rack))
            for n, rack in ((8, 2), (12, 4), (32, 8), (100, 10))
        ],
        "Intermittent faults: p is the probability that a test fails": [
            Line(f"N={n}, k={k}, p={p}", n, failing(n, k, p))
            for n, k in ((6, 1), (33, 1), (13, 3), (32, 8))
            for p in (0.9, 0.7, 0.5, 0.3)
        ],
        "A rack or a half cut off": [
            Line(f"N={n}, {size} nodes, {_told(labelled, shuffled)}", n, draw)
            for n, size in ((6, 3), (12, 4), (50, 25), (64, 2), (100, 10), (200, 100), (256, 16), (1000, 8))
            for labelled in (True, False)
            for shuffled in (False, True)
            for draw in [cut_off(n, size, labelled=labelled, shuffled=shuffled)]
        ],
        "A part cut off, where tests fail by chance besides": [
            Line(f"N={n}, {size} nodes, {_told(labelled, True)}, {share:.0%}", n, with_accidents(draw, share))
            for n, size in ((12, 4), (64, 2), (100, 10), (200, 100), (256, 16))
            for labelled in (True, False)
            for draw in [cut_off(n, size, labelled=labelled, shuffled=True)]
            for share in (0.01, 0.05)
        ],
        "A part cut off beside broken nodes": [
            Line(f"N={n}, {size} nodes, {_told(labelled, True)}, {count} broken", n, with_broken(draw, count))
            for n, size, count in (
                (12, 4, 1),
                (33, 3, 3),
                (100, 2, 1),
                (100, 10, 5),
                (100, 2, 6),
                (300, 3, 2),
            )
            for labelled in (True, False)
            for draw in [cut_off(n, size, labelled=labelled, shuffled=True)]
        ],
        "Dead racks": [
            Line("N=15, 1 of 5 racks", 15, dead_racks(15, 3, 1)),
            Line("N=64, 2 of 8 racks", 64, dead_racks(64, 8, 2)),
        ],
        "Bad links": [
            *(Line(f"N={n}, one anywhere", n, links(n, 1)) for n in small),
            *(Line(f"N={n}, two anywhere", n, links(n, 2)) for n in small),
            *(Line(f"N={n}, two at one node", n, links(n, 2, at_one_node=True)) for n in small),
            *(Line(f"N=16, one anywhere, {s} screening rounds", 16, links(16, 1), s) for s in (4, 15)),
        ],
        "Tests that fail, and answers that are late or lost, by chance": [
            Line(f"N={n}, {what} {share:.1%}", n, draw)
            for n in (4, 6, 9, 33, 100, 1000)
            for what, share, draw in (
                *(("tests", share, noisy(n, transient=share)) for share in (0.01, 0.05)),
                *(("answers", share, noisy(n, lost=share)) for share in (0.001, 0.01)),
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


def _told(labelled: bool, shuffled: bool) -> str:
    labels = "labels" if labelled else "no labels"
    return f"{labels}, shuffled" if shuffled else f"{labels}, by rank"


def row(name: str, sums: Tally) -> str:
    def both(column: str, of: int) -> str:
        return " · ".join(percent(sums.get(f"{judge} {column}", 0), of) for judge in ("ours", "theirs"))

    fleets = sums["fleets"]
    found = both("found", sums["parts"]) if sums["parts"] else "–"
    shares = (found, *(both(column, fleets) for column in ("blamed", "misnamed", "undecided")))
    rounds = " · ".join(median_and_worst(sums, f"{judge} rounds ") for judge in ("ours", "theirs"))
    return f"| {name} | {' | '.join(shares)} | {rounds} |"


def table(lines: list[Line], results: Results) -> str:
    rows = (row(line.name, results.cells[line.name]) for line in lines)
    return "\n".join(
        (
            "| fleet | found | healthy blamed | wrong place | undecided | rounds |",
            "|---|---|---|---|---|---|",
            *rows,
        )
    )


def report(results: Results) -> str:
    body = "\n".join(f"## {title}\n\n{table(lines, results)}\n" for title, lines in tables().items())
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
{results.footer("diagnosis")}"""


if __name__ == "__main__":
    cells = [Cell(line.name, line.play, line.size) for lines in tables().values() for line in lines]
    main("Our diagnosis and DLRover's rule on simulated fleets.", cells, REPORT, report)
