"""A node's record: the findings of its last checks, kept in an annotation of the Node. Pure.

The NodeRecord reconciler writes it. The NodeCheck reconciler reads it to find intermittent faults
(`healthcheck/intermittent.py`), and `dlr node-check history` shows it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import orjson

from crds import names
from crds.cordon import MOST_KEPT, kept_on
from crds.findings import Cause, Finding, Verdict
from crds.nodecheck import CheckRound, NodeCheckStatus
from healthcheck.intermittent import NodeTests, tests_by_node

MOST_RESULTS = 20
WINDOW = timedelta(days=14)
"""Age up to which a finding counts for an intermittent fault."""
KEPT = {"time", "source", "uid", "verdict", "passed", "failed", "failed_with"}
"""Fields of a finding that the record keeps."""
MAX_NAMED_IN_DOMAIN = 20
"""Most nodes of a rack or switch that a NodeCheck's status names."""


def read_record(node: Mapping[str, Any]) -> list[Finding]:
    """Return the record of a raw Node, the oldest first; an unreadable one counts as empty."""
    written = kept_on(node, names.ANNOTATION_RECORD)
    if written is None:
        return []
    name = {"node": node["metadata"].get("name", "")}
    try:
        record = [Finding.model_validate(entry | name) for entry in orjson.loads(written)]
    except (TypeError, ValueError):
        return []
    return record if all(finding.is_dated for finding in record) else []


def write_record(record: Iterable[Finding]) -> str:
    entries = [finding.model_dump(mode="json", by_alias=True, include=KEPT) for finding in record]
    return orjson.dumps(entries).decode()


def with_findings(record: Sequence[Finding], new: Iterable[Finding]) -> list[Finding]:
    """Add findings that are not in the record yet; the newest are kept, within the limits. Every watcher of
    Nodes has them in memory."""
    by_uid = {finding.uid: finding for finding in (*new, *record)}
    newest = sorted(by_uid.values(), key=lambda finding: (finding.time, finding.uid))[-MOST_RESULTS:]
    while len(write_record(newest)) > MOST_KEPT:
        newest.pop(0)
    return newest


def recent(record: Iterable[Finding], now: datetime) -> list[Finding]:
    """Return the findings that `healthcheck.intermittent` takes into account."""
    return [finding for finding in record if finding.time > now - WINDOW]


def passes_since(record: Iterable[Finding], since: datetime) -> int:
    """Count the tests with others that the node passed after that time, and after the last one it failed."""
    passes = 0
    for finding in record:
        if finding.time > since:
            bad = finding.failed_with or finding.verdict is Verdict.FAULTY
            passes = 0 if bad else passes + finding.passed
    return passes


def unhealthy_taint(node: Mapping[str, Any]) -> str | None:
    """Return the value of the taint by which dlr has cordoned a raw Node; None without it."""
    taints = (node.get("spec") or {}).get("taints") or ()
    return next((taint.get("value", "") for taint in taints if taint["key"] == names.TAINT_UNHEALTHY), None)


def tests_in(status: NodeCheckStatus, faulty: Iterable[str]) -> dict[str, NodeTests]:
    """Return the tests with others of each node in a check, by name. Linear in the number of tests."""
    shared = nodes_in_domains(status)
    explaining = None if shared is None else {*faulty, *shared}
    links = {link.link for link in status.faulty_links}
    tests = (test for round_ in status.rounds for test in _tests(round_, status.nodes))
    return tests_by_node(tests, explaining, links)


def untested_nodes(status: NodeCheckStatus, tests: Collection[str]) -> set[str]:
    """Return the nodes that a check did not test to the end; `tests` are those tested with others."""
    return {*status.nodes_in(Cause.WITHDRAWN)} | {*status.reused}.difference(tests)


def _tests(round_: CheckRound, nodes: Sequence[str]) -> Iterator[tuple[list[str], bool]]:
    """Yield members of each test with others, and whether it passed; none in which a node dropped out."""
    failed, away = {*round_.failed}, {*round_.silent, *round_.crashed}
    for at, places in enumerate(round_.tests):
        if len(places) > 1 and away.isdisjoint(places):
            yield [nodes[place] for place in places], at not in failed


def nodes_in_domains(status: NodeCheckStatus) -> frozenset[str] | None:
    """Return the nodes of the faulty racks and parts; None if not all of these nodes are named."""
    if any(len(domain.nodes) >= MAX_NAMED_IN_DOMAIN for domain in status.faulty_domains):
        return None
    return frozenset[str]().union(*(domain.nodes for domain in status.faulty_domains))
