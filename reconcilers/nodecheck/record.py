"""A node's record: what its last checks gave, kept in an annotation of the Node. Pure.

It is the Node's own, so a machine that takes the name of another begins anew, and nothing has to be
collected. The NodeCordon reconciler writes it, the only writer of Nodes; the NodeCheck reconciler reads it,
to see a fault that comes and goes (`healthcheck/records.py`), and `dlr node-check history` shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from crds import names
from crds.model import Model
from crds.nodecheck import CheckRound, NodeCheck, NodeCheckStatus, NodeVerdict
from healthcheck.records import MOST_PARTNERS, NodeRecord
from healthcheck.results import Explained, NodeTests, tests_by_node

MOST_RESULTS = 20
MOST_BYTES = 4096
"""Of all results, the oldest of which go first. Whoever watches Nodes has them all in memory."""
WINDOW = timedelta(days=14)
"""What is older says nothing of a fault that comes and goes."""


class CheckResult(Model):
    """What one check gave on one node."""

    check: str
    """`namespace/name`."""
    uid: str
    """The first characters of the check's."""
    time: datetime
    verdict: NodeVerdict
    passed: int = 0
    """Tests with others that passed."""
    failed: int = 0
    """Tests with others that did not, whoever was to blame."""
    failed_with: Annotated[list[str], Field(max_length=MOST_PARTNERS)] = Field(default_factory=list)
    """Partners of failures that nothing else explains."""


MAX_NAMED_IN_DOMAIN = 20
"""Nodes that a NodeCheck's status names of a rack or switch."""

_RESULTS = TypeAdapter(list[CheckResult])


def read_record(node: Mapping[str, Any]) -> list[CheckResult]:
    """Returns the record of a raw Node, the oldest first; an unreadable one counts as empty."""
    written = (node["metadata"].get("annotations") or {}).get(names.ANNOTATION_RECORD)
    if written is None:
        return []
    try:
        return _RESULTS.validate_json(written)
    except ValidationError:
        return []


def write_record(results: Sequence[CheckResult]) -> str:
    return _RESULTS.dump_json(list(results), by_alias=True, exclude_defaults=True).decode()


def with_results(record: Sequence[CheckResult], new: Iterable[CheckResult]) -> list[CheckResult]:
    """The record with what is not in it yet: the newest results, as many as there is room for."""
    by_uid = {result.uid: result for result in (*new, *record)}
    newest = sorted(by_uid.values(), key=lambda result: (result.time, result.uid))[-MOST_RESULTS:]
    while len(write_record(newest)) > MOST_BYTES:
        newest.pop(0)
    return newest


def as_evidence(record: Iterable[CheckResult], now: datetime) -> list[NodeRecord]:
    """Converts the record to what `healthcheck.records` takes."""
    return [
        NodeRecord(result.passed, tuple(result.failed_with), result.verdict is NodeVerdict.FAULTY)
        for result in record
        if result.time > now - WINDOW
    ]


def passes_since(record: Iterable[CheckResult], since: datetime) -> int:
    """Tests with others that the node passed after that time, and after the last that speaks against it."""
    passes = 0
    for result in record:
        if result.time > since:
            bad = result.failed_with or result.verdict is NodeVerdict.FAULTY
            passes = 0 if bad else passes + result.passed
    return passes


def results_of(check: NodeCheck) -> dict[str, CheckResult]:
    """What a check that succeeded gave on each node that it tested, by name. Linear in its tests."""
    status, metadata = check.status, check.metadata
    ended = status.completion_time
    if ended is None:
        return {}
    verdicts = dict.fromkeys(status.nodes, NodeVerdict.HEALTHY)
    verdicts |= dict.fromkeys(status.inconclusive, NodeVerdict.INCONCLUSIVE)
    verdicts |= dict.fromkeys(status.stragglers, NodeVerdict.STRAGGLER)
    verdicts |= dict.fromkeys(status.faulty_nodes, NodeVerdict.FAULTY)
    tests = (test for round_ in status.rounds for test in _tests(round_, status.nodes))
    counts = tests_by_node(tests, _explained(status))
    untested = {left.node for left in status.withdrawn} | {*status.reused} - counts.keys()
    return {
        node: CheckResult(
            check=f"{metadata.namespace}/{metadata.name}",
            uid=metadata.uid[:8],
            time=ended,
            verdict=verdict,
            passed=made.passed,
            failed=made.failed,
            failed_with=made.failed_with[:MOST_PARTNERS],
        )
        for node, verdict in verdicts.items()
        if node not in untested
        for made in [counts.get(node, NodeTests())]
    }


def _tests(round_: CheckRound, nodes: Sequence[str]) -> Iterable[tuple[list[str], bool]]:
    """Members, and whether they passed. One alone meets nobody; one that dropped out accuses nobody."""
    failed = {test.test: test for test in round_.failed}
    for at, places in enumerate(round_.tests):
        if len(places) > 1 and not (at in failed and (failed[at].silent or failed[at].crashed)):
            yield [nodes[place] for place in places], at not in failed


def nodes_in_domains(status: NodeCheckStatus) -> frozenset[str] | None:
    """Returns the nodes of the faulty racks and parts; None if not all are named: any node may be in one."""
    if any(len(domain.nodes) >= MAX_NAMED_IN_DOMAIN for domain in status.faulty_domains):
        return None
    return frozenset[str]().union(*(domain.nodes for domain in status.faulty_domains))


def _explained(status: NodeCheckStatus) -> Explained:
    shared = nodes_in_domains(status)
    links = {frozenset((link.a, link.b)) for link in status.faulty_links}
    return Explained({*status.faulty_nodes, *(shared or ())}, links, all=shared is None)
