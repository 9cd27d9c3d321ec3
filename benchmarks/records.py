"""A fault that comes and goes, over a week of checks: what single checks find, and what the records add.

Simulated fleets through the pure code that the controllers run: pairing, diagnosis, what a check leaves for
the record of each node, and what the records say together. A week is seven checks of the same nodes, each
with another rotation of partners.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.cells import Cell, Results, Tally, main
from benchmarks.diagnosis_faults import Draw, Fleet, failing, flaky_border, links, noisy
from benchmarks.played import played
from crds.findings import Finding, Verdict
from healthcheck.diagnosis import Diagnosis
from healthcheck.fleet import Domain, Node, NodeName
from healthcheck.intermittent import NodeTests, intermittent, tests_by_node
from healthcheck.measurements import GroupResult, LocalResult, RoundResult
from healthcheck.settings import Settings

REPORT = Path(__file__).parent.parent / "docs" / "records.md"
CHECKS = 7


@dataclass(frozen=True)
class Found:
    """The nodes, by number, that were called faulty within a week."""

    by_tests: frozenset[int]
    """Nodes called faulty by a check's own tests."""
    by_record: frozenset[int]


def play(fleet: Fleet, rng: random.Random) -> Found:
    """Seven checks, one after the other."""
    index = {f"node-{i}": i for i in range(fleet.size)}
    nodes = [Node(name, domains=_rack(fleet, i)) for name, i in index.items()]
    records: dict[NodeName, list[Finding]] = {name: [] for name in index}
    by_tests, by_record = set[NodeName](), set[NodeName]()
    for _ in range(CHECKS):
        verdicts, rounds = _checked(fleet, nodes, index, rng)
        by_tests.update(verdicts.named(Verdict.FAULTY))
        left = _left_by(verdicts, rounds)
        found = intermittent({name: [*records[name], left[name]] for name in records}, nodes)
        by_record.update(found)
        for name, known in records.items():
            known.append(
                left[name].model_copy(update={"verdict": Verdict.FAULTY}) if name in found else left[name]
            )
    return Found(frozenset(index[name] for name in by_tests), frozenset(index[name] for name in by_record))


def _checked(
    fleet: Fleet, nodes: Sequence[Node], index: dict[NodeName, int], rng: random.Random
) -> tuple[Diagnosis, Sequence[RoundResult]]:
    def test(group: tuple[NodeName, ...]) -> GroupResult:
        passed = fleet.test_passes([index[name] for name in group], rng)
        return GroupResult(group, passed, "" if passed else "simulated")

    settings = replace(Settings(), rotation=rng.getrandbits(32))
    return played(nodes, dict.fromkeys(index, LocalResult()), settings, test)


def _left_by(verdicts: Diagnosis, rounds: Sequence[RoundResult]) -> dict[NodeName, Finding]:
    """What the check leaves for the record of each node."""
    faulty = verdicts.named(Verdict.FAULTY)
    domains = (name for domain in verdicts.domains for name in domain.nodes)
    links = {found.link for found in verdicts.links}
    groups = ((group.members, group.passed) for done in rounds for group in done.groups)
    tests = tests_by_node(groups, {*faulty, *domains}, links)
    return {found.node: tests.get(found.node, NodeTests()).added_to(found) for found in verdicts.nodes}


def _rack(fleet: Fleet, node: int) -> tuple[Domain, ...]:
    return (Domain("rack", str(fleet.racks[node])),) if fleet.racks and fleet.labelled else ()


def one_in(size: int, share: float) -> Draw:
    """One node that fails so many of its tests, where one test in a hundred fails by accident."""
    draw = failing(size, 1, share)
    return lambda rng: replace(draw(rng), transient=0.01)


def bad_link(size: int) -> Draw:
    draw = links(size, 1)
    return lambda rng: replace(draw(rng), transient=0.01)


LINES: dict[str, tuple[int, Draw]] = {
    **{f"one of 33 fails {p:.0%} of its tests": (33, one_in(33, p)) for p in (0.9, 0.7, 0.5, 0.3)},
    **{f"healthy, N={n}, {b:.0%}": (n, noisy(n, transient=b)) for n in (9, 33, 100) for b in (0.01, 0.05)},
    "one bad link, N=12": (12, bad_link(12)),
    "a rack of 8 in 32 whose way out fails half of the time, labels": (32, flaky_border(32, 8)),
    "a rack of 4 in 12, the same": (12, flaky_border(12, 4)),
}


def week(name: str, number: int) -> Tally:
    rng = random.Random(f"{name} {number}")
    fleet = LINES[name][1](rng)
    guilty, told = fleet.faulty_nodes, play(fleet, rng)
    return {
        "fleets": 1,
        "faulty": len(guilty),
        "found by tests": len(guilty & told.by_tests),
        "found": len(guilty & (told.by_tests | told.by_record)),
        "blamed by tests": bool(told.by_tests - guilty),
        "blamed by records": bool(told.by_record - guilty),
    }


def row(name: str, sums: Tally) -> str:
    def share(column: str) -> str:
        return f"{100 * sums[column] / sums['faulty']:.1f}" if sums.get("faulty") else "–"

    blamed = f"{sums.get('blamed by tests', 0)} | {sums.get('blamed by records', 0)}"
    return f"| {name} | {share('found by tests')} | {share('found')} | {blamed} |"


def report(results: Results) -> str:
    lines = "\n".join(row(name, results.cells[name]) for name in LINES)
    return f"""# Faults that come and go: a week of checks, and the nodes' records

Each fleet is checked seven times, with other partners each time. *Found* is the share of faulty nodes, in
percent, that were called faulty within the week: by the tests of one check alone, and with the records
([cordon.md](cordon.md#a-nodes-record)). *Blamed* is the number of fleets, of {results.fleets}, in which some
healthy node was called faulty: by the tests, and by records.
Of the tests of faulty nodes and bad links, another 1 % fail by accident.

A way out that fails half of the time may work by chance while its rack is screened (14 of 15 tests passed
in the one fleet that was traced). Then a node of the rack that is tested on, alone, is blamed for what the
way out does: by the rules of 2026-11-23 in one of 3,500 checks of a rack of 8 in 32, and in none of as many
of a rack of 4 in 12.

| fleet | found by tests | found with records | blamed by tests | blamed by records |
|---|---|---|---|---|
{lines}

{results.footer("records")}"""


def cells() -> list[Cell]:
    def cell(name: str, size: int) -> Cell:
        return Cell(name, lambda number: week(name, number), size)

    return [cell(name, size) for name, (size, _) in LINES.items()]


if __name__ == "__main__":
    main("Faults that come and go, over a week of checks.", cells(), REPORT, report)
