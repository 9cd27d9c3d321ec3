"""Intermittent faults: judged by a node's last checks together, where no single check could prove a fault.

A node that fails a share p of its tests passes most checks. Over a week its failures accumulate, unlike
those of a healthy node. Two explanations of a record are compared as in one check (`healthcheck.odds`):
accidents, at a rate learnt from the others' records, and a fault of the node. Such odds reach x for a
healthy node with a probability of at most 1/x, however many its checks (a test martingale); so the
required odds grow with the number of nodes, but not of checks.

Healthy nodes are protected as follows:

* Repeated failures with one partner may be a bad link, so `LEAST_WITNESSES` partners must agree.
* They must have failed with it in `LEAST_CHECKS` checks, so that a disturbance of an hour does not count.
* The background is the failure rate of the others in the same time, or of its neighbours in a rack or
  behind a switch if that explains its failures better: their uplink may be bad.
* If more than `MOST_BLAMED` of the nodes stand out at once, there is a common cause, and none is blamed.
* Only a node that failed in the last check is judged.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, log

from crds.findings import Finding, Verdict
from healthcheck.fleet import Domain, Link, Node, NodeName
from healthcheck.odds import Tests, log_odds, log_odds_at_border

MOST_PARTNERS = 12
"""Maximum partners of a node that are stored per check."""
LEAST_WITNESSES = 3
LEAST_CHECKS = 2
ODDS_A_NODE = 2_000.0
"""Required odds, times the number of nodes: a healthy node is blamed in at most one fleet of 2,000, however
long the records."""
LEAST_NODES = 25
"""Minimum fleet size that is assumed for the required odds."""
MOST_BLAMED = 0.1
"""Maximum share of the nodes with a record that may be blamed; one always may be."""


@dataclass
class NodeTests:
    """Tests of a node with partners in one check."""

    passed: int = 0
    failed: int = 0
    """Failed tests, whatever the cause."""
    failed_with: list[NodeName] = field(default_factory=list)
    """Partners in failed tests without another explanation, each once, in the order of tests."""

    def added_to(self, finding: Finding) -> Finding:
        partners = tuple(self.failed_with[:MOST_PARTNERS])
        return finding.model_copy(
            update={"passed": self.passed, "failed": self.failed, "failed_with": partners}
        )


def tests_by_node(
    tests: Iterable[tuple[Sequence[NodeName], bool]],
    nodes: Collection[NodeName] | None,
    links: Collection[Link],
) -> dict[NodeName, NodeTests]:
    """Count the tests of each node. Linear in the number of tests.

    Args:
        tests: members of each test, and whether it passed; without tests in which a member dropped out.
        nodes: nodes that explain a failure; None if not all are listed, so that any node may.
        links: faulty links, which explain a failure too.
    """
    found: defaultdict[NodeName, NodeTests] = defaultdict(NodeTests)
    for members, passed in tests:
        for name in members:
            found[name].passed += passed
            found[name].failed += not passed
        if passed or len(members) != 2 or nodes is None or frozenset(members) in links:
            continue
        if not any(name in nodes for name in members):
            for name, other in (members, members[::-1]):
                if other not in found[name].failed_with:
                    found[name].failed_with.append(other)
    return dict(found)


def intermittent(
    records: Mapping[NodeName, Sequence[Finding]], nodes: Collection[Node]
) -> dict[NodeName, str]:
    """Find the nodes with intermittent faults, each with the evidence. Linear in the number of findings.

    Args:
        records: records of all nodes with one, oldest result first; the last one is from the newest check.
    """
    current = {name: _since_fault(results) for name, results in records.items()}
    domains = {node.name: node.smallest_domain for node in nodes}
    most = max(1, MOST_BLAMED * len(current))
    open_ones = [node.name for node in nodes if current.get(node.name) and current[node.name][-1].failed_with]
    found: dict[NodeName, str] = {}
    while len(found) <= most:
        seen = _Seen(current, domains, frozenset(found))
        ratios = {name: seen.judge(name, found)[0] for name in open_ones if name not in found}
        before = len(found)
        for name in sorted(ratios, key=lambda name: (-ratios[name], name)):
            _, evidence = seen.judge(name, found)  # without its failures with worse nodes
            if evidence:
                found[name] = evidence
        if len(found) == before:
            return found
    return {}


def _since_fault(results: Sequence[Finding]) -> Sequence[Finding]:
    after = max((at + 1 for at, result in enumerate(results) if result.verdict is Verdict.FAULTY), default=0)
    return results[after:]


@dataclass
class _Counts:
    """Failures and tests of a group of nodes."""

    failed: int = 0
    tests: int = 0
    with_: Counter[NodeName] = field(default_factory=Counter)
    """Failures by partner."""


class _Seen:
    """All records, without the nodes already found, and without the tests of others with these."""

    def __init__(
        self,
        records: Mapping[NodeName, Sequence[Finding]],
        domains: Mapping[NodeName, Domain | None],
        found: frozenset[NodeName],
    ) -> None:
        self._records, self._domains, self._found = records, domains, found
        self._needed = log(ODDS_A_NODE * max(len(records), LEAST_NODES))
        self._sizes = Counter(domains.get(name) for name in records)
        self._fleet = _Counts()
        self._in: dict[Domain, _Counts] = {}
        for name in records.keys() - found:
            domain = domains.get(name)
            failures, tests = self._own(name)
            for counts in (self._fleet, *([self._in.setdefault(domain, _Counts())] if domain else [])):
                counts.failed += len(failures)
                counts.tests += tests
                counts.with_.update(failures)

    def judge(self, name: NodeName, found: Collection[NodeName]) -> tuple[float, str]:
        """Return the log odds for a fault of the node, and the evidence if they are high enough."""
        results = self._records[name]
        failures = [{other for other in result.failed_with if other not in found} for result in results]
        times = Counter(other for with_ in failures for other in with_)
        passed = sum(result.passed for result in results)
        odds = self._log_odds(name, times, passed)
        checks = sum(map(bool, failures))
        proven = (
            bool(failures[-1])
            and len(times) >= LEAST_WITNESSES
            and checks >= LEAST_CHECKS
            and odds >= self._needed
        )
        if not proven:
            return odds, ""
        others = self._others(self._fleet, name)
        rate = others.failed / max(sum(others), 1)
        failed = times.total()
        return odds, (
            f"it failed {failed} of {failed + passed} tests, with {len(times)} different nodes, "
            f"in {checks} of its last {len(results)} checks, while others fail {rate:.0%}"
        )

    def _own(self, name: NodeName) -> tuple[list[NodeName], int]:
        """Return the partners of its failures, and the number of its tests."""
        results = self._records[name]
        failures = [other for result in results for other in result.failed_with if other not in self._found]
        return failures, len(failures) + sum(result.passed for result in results)

    def _log_odds(self, name: NodeName, times: Counter[NodeName], passed: int) -> float:
        """Return the log odds of these failures, counted by partner, and passes."""
        again = [count - 1 for count in times.values() if count > 1]
        twice = self._others(self._fleet, name)  # each test is in the records of two nodes
        fleet = Tests(ceil(twice.failed / 2), twice.passed // 2)
        odds = log_odds(len(times), passed, *fleet, again)
        domain = self._domains.get(name)
        if domain is None or self._sizes[domain] == 1:
            return odds
        beside = self._others(self._in[domain], name)
        return min(odds, log_odds_at_border(Tests(times.total(), passed), Tests(0, 0), beside, fleet))

    def _others(self, counts: _Counts, name: NodeName) -> Tests:
        """Return these counts without the tests of this node."""
        failures, tests = self._own(name)
        of_it = counts.with_[name]
        failed = counts.failed - len(failures) - of_it
        return Tests(failed, counts.tests - tests - of_it - failed)
