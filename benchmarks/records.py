"""A fault that comes and goes, over a week of checks: what single checks find, and what the records add.

Simulated fleets through the code that the controllers run: pairing and diagnosis, then the verdicts by all
that is known (`further_evidence`), and the record that each check leaves on its Nodes. A week is seven checks
of the same nodes; each check has a uid of its own, and so another rotation of partners.
"""

import argparse
import platform
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.diagnosis_faults import Fleet
from crds import names
from crds.nodecheck import INTERMITTENT, NodeCheck, NodeCheckStatus, NodeVerdict
from healthcheck.diagnosis import Verdicts
from healthcheck.fleet import Domain, Node
from healthcheck.measurements import GroupResult, History, LocalResult, RoundResult
from healthcheck.plan import next_step
from healthcheck.settings import Settings
from reconcilers.nodecheck.further_evidence import with_all_evidence
from reconcilers.nodecheck.reconciler import rotation_of
from reconcilers.nodecheck.record import read_record, results_of, with_results, write_record
from reconcilers.nodecheck.status import node_results, with_places
from reconcilers.nodecheck.steps import round_to_record

REPORT = Path(__file__).parent.parent / "docs" / "records.md"
CHECKS = 7
MONDAY = datetime(2026, 1, 5, tzinfo=UTC)


@dataclass(frozen=True)
class Week:
    """One fleet, and how often its tests fail by accident."""

    fleet: Fleet
    background: float = 0.0
    flaky_rack: int | None = None
    """Tests across its border fail half of the time."""

    def passes(self, members: Sequence[int], rng: random.Random) -> bool:
        racks = {self.fleet.racks[member] for member in members} if self.fleet.racks else set()
        if self.flaky_rack in racks and len(racks) > 1 and rng.random() < 0.5:
            return False
        return rng.random() >= self.background and self.fleet.test_passes(members, rng)


@dataclass(frozen=True)
class Found:
    """Who was called faulty within a week, by their numbers."""

    by_tests: frozenset[int]
    """By a check's own tests."""
    by_record: frozenset[int]


def play(week: Week, rng: random.Random) -> Found:
    """Seven checks, one after the other."""
    size = week.fleet.size
    index = {f"node-{i}": i for i in range(size)}
    raw: dict[str, dict[str, Any]] = {name: {"metadata": {"name": name}} for name in index}
    by_tests, by_record = set[int](), set[int]()
    for day in range(CHECKS):
        now = MONDAY + timedelta(days=day)
        check = _new_check(list(index), f"{rng.getrandbits(64):016x}", now)
        check = _carried_out(check, week, index, raw, rng, now)
        for result in check.status.node_results:
            if result.verdict is NodeVerdict.FAULTY:
                (by_record if INTERMITTENT in result.causes else by_tests).add(index[result.node])
        for name, left in results_of(check).items():
            record = with_results(read_record(raw[name]), [left])
            raw[name]["metadata"]["annotations"] = {names.ANNOTATION_RECORD: write_record(record)}
    return Found(frozenset(by_tests), frozenset(by_record))


def _new_check(nodes: list[str], uid: str, now: datetime) -> NodeCheck:
    metadata = {"name": "nightly", "namespace": "ops", "uid": uid, "resourceVersion": "1"}
    return NodeCheck.model_validate(
        {"metadata": metadata, "spec": {"nodes": nodes}, "status": {"nodes": nodes}}
    )


def _carried_out(
    check: NodeCheck,
    week: Week,
    index: dict[str, int],
    raw: dict[str, dict[str, Any]],
    rng: random.Random,
    now: datetime,
) -> NodeCheck:
    settings = replace(Settings(), rotation=rotation_of(check.metadata.uid))
    fleet = [Node(name, domains=_rack(week.fleet, i)) for name, i in index.items()]
    local = dict.fromkeys(index, LocalResult())
    rounds: list[RoundResult] = []
    while not isinstance(step := next_step(History(local, tuple(rounds)), fleet, settings), Verdicts):
        groups = [(group, week.passes([index[name] for name in group], rng)) for group in step.groups]
        told = (GroupResult(tuple(group), passed, "" if passed else "simulated") for group, passed in groups)
        rounds.append(RoundResult(step.number, tuple(told)))
    recorded = [round_to_record(done, check.status.nodes) for done in rounds]
    status = with_places(check.status.model_copy(update={"rounds": recorded}), step)
    results = node_results(step, History(local, tuple(rounds)))
    results = with_all_evidence(check, status, results, fleet, raw, now)
    return check.model_copy(update={"status": _ended(status, results, now)})


def _ended(status: NodeCheckStatus, results: Sequence[Any], now: datetime) -> NodeCheckStatus:
    faulty = [result.node for result in results if result.verdict is NodeVerdict.FAULTY]
    update = {"node_results": list(results), "faulty_nodes": faulty, "completion_time": now}
    return status.model_copy(update=update)


def _rack(fleet: Fleet, node: int) -> tuple[Domain, ...]:
    return (Domain("rack", str(fleet.racks[node])),) if fleet.racks else ()


Draw = Callable[[random.Random], Week]


def one_in(size: int, probability: float, background: float) -> Draw:
    return lambda rng: Week(Fleet(size, failing={rng.randrange(size): probability}), background)


def healthy(size: int, background: float) -> Draw:
    return lambda rng: Week(Fleet(size), background)


def bad_link(size: int) -> Draw:
    return lambda rng: Week(Fleet(size, bad_links={frozenset(rng.sample(range(size), 2)): 1.0}), 0.01)


def flaky_rack(size: int, rack_size: int) -> Draw:
    racks = tuple(node // rack_size for node in range(size))
    return lambda rng: Week(Fleet(size, racks=racks), 0.0, rng.randrange(size // rack_size))


CELLS: dict[str, Draw] = {
    **{f"one of 33 fails {p:.0%} of its tests": one_in(33, p, 0.01) for p in (0.9, 0.7, 0.5, 0.3)},
    **{f"healthy, N={n}, {b:.0%}": healthy(n, b) for n in (9, 33, 100) for b in (0.01, 0.05)},
    "one bad link, N=12": bad_link(12),
    "a rack of 8 in 32 that fails now and then, labels": flaky_rack(32, 8),
}


def line(name: str, draw: Draw, fleets: int, seed: int) -> str:
    found_by_tests = found = blamed_by_tests = blamed_by_record = faulty = 0
    for i in range(fleets):
        rng = random.Random(f"{seed} {name} {i}")
        week = draw(rng)
        guilty, told = week.fleet.faulty_nodes, play(week, rng)
        faulty += len(guilty)
        found_by_tests += len(guilty & told.by_tests)
        found += len(guilty & (told.by_tests | told.by_record))
        blamed_by_tests += bool(told.by_tests - guilty)
        blamed_by_record += bool(told.by_record - guilty)

    def share(count: int) -> str:
        return f"{100 * count / faulty:.1f}" if faulty else "–"

    return f"| {name} | {share(found_by_tests)} | {share(found)} | {blamed_by_tests} | {blamed_by_record} |"


def report(fleets: int, seed: int) -> str:
    began = time.process_time()
    lines = "\n".join(line(name, draw, fleets, seed) for name, draw in CELLS.items())
    seconds = time.process_time() - began
    where = f"{date.today()}, {platform.system()}, Python {platform.python_version()}"
    return f"""# Faults that come and go: a week of checks, and the nodes' records

{fleets} fleets a line, each checked seven times, with other partners each time. *Found* is the share of
faulty nodes, in percent, that were called faulty within the week: by the tests of one check alone, and
with the records ([cordon.md](cordon.md#a-nodes-record)). *Blamed* is the number of fleets, of {fleets}, in
which some healthy node was called faulty: by the tests, and by records.
1 % of all tests fail by accident, where nothing else is said.

| fleet | found by tests | found with records | blamed by tests | blamed by records |
|---|---|---|---|---|
{lines}

Seed {seed}. {seconds:.0f} s of CPU time. {where}.
To run it again, with other fleets:

    python -m benchmarks.records --fleets {fleets} --seed {seed + 1}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Faults that come and go, over a week of checks.")
    parser.add_argument("--fleets", type=int, default=200, help="fleets per line")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    text = report(arguments.fleets, arguments.seed)
    REPORT.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
