"""What people are told of a check: the sentences of its conditions and Events. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from controller.wording import counted, some_of
from crds.model import ConditionStatus
from crds.nodecheck import FaultyDomain, FaultyLink, NodeResult, NodeVerdict
from healthcheck.plan import Round
from reconcilers.nodecheck.steps import Ended

MAX_NAMED = 10


@dataclass(frozen=True)
class Summary:
    """The condition Healthy."""

    healthy: ConditionStatus
    reason: str
    message: str


def summary_of(
    verdicts: Mapping[str, NodeVerdict],
    results: Sequence[NodeResult] = (),
    links: Sequence[FaultyLink] = (),
    domains: Sequence[FaultyDomain] = (),
) -> Summary:
    """The worst first.

    Args:
        verdicts: on all nodes, by name.
        results: the evidence that there is.
        links: that are faulty.
        domains: to be looked at first.
    """
    faulty, slow, open_ = (
        [node for node, found in verdicts.items() if found is verdict]
        for verdict in (NodeVerdict.FAULTY, NodeVerdict.STRAGGLER, NodeVerdict.INCONCLUSIVE)
    )
    found = []
    if faulty:
        found.append(f"{len(faulty)} faulty ({first_names(faulty)})")
    if slow:
        found.append(f"{len(slow)} slow ({first_names(slow)})")
    if open_:
        found.append(f"{len(open_)} inconclusive ({first_names(open_)})")
    places = []
    if links:
        places.append(f"faulty links: {first_names([f'{link.a}–{link.b}' for link in links])}")
    if domains:
        places.append(f"look first at {first_names([f'{domain.level}={domain.name}' for domain in domains])}")
    healthy, reason = _verdict(faulty, links, slow, open_)
    return Summary(healthy, reason, _sentence(verdicts, results, found, places))


def round_begun(step: Round) -> str:
    """Says who tests; nodes alone test nobody else."""
    alone = sum(len(group) == 1 for group in step.groups)
    meeting = len(step.groups) - alone
    parts = []
    if meeting:
        parts.append(f"{meeting} group{'' if meeting == 1 else 's'} of nodes that test each other")
    if alone:
        parts.append(f"{alone} node{'' if alone == 1 else 's'} that measure{'s' if alone == 1 else ''} again")
    return f"round {step.number}: {', '.join(parts)}"


def step_ended(ended: Ended, nodes: int) -> str:
    """What one step gave."""
    if ended.round is None:
        out = len(ended.withdrawn) + len(ended.unanswered)
        return f"local tests: {nodes - out} of {counted(nodes, 'node has', 'nodes have')} answered"
    groups = ended.round.groups
    failed = ["+".join(group.members) for group in groups if not group.passed]
    text = f"round {ended.round.number}: {len(groups) - len(failed)} of {len(groups)} groups passed"
    return f"{text}; not: {first_names(failed)}" if failed else text


def _verdict(
    faulty: Collection[str], links: Collection[FaultyLink], slow: Collection[str], open_: Collection[str]
) -> tuple[ConditionStatus, str]:
    for named, reason in ((faulty, "FaultyNodes"), (links, "FaultyLinks"), (slow, "Stragglers")):
        if named:
            return ConditionStatus.FALSE, reason
    return (ConditionStatus.UNKNOWN, "Inconclusive") if open_ else (ConditionStatus.TRUE, "AllHealthy")


def _sentence(
    verdicts: Mapping[str, NodeVerdict],
    results: Sequence[NodeResult],
    found: Sequence[str],
    places: Sequence[str],
) -> str:
    if len(verdicts) == 1:
        ((node, verdict),) = verdicts.items()
        evidence = next((f": {result.message}" for result in results if result.message), "")
        return f"node {node} is {verdict.value.lower()}{evidence}"
    count = len(verdicts)
    text = f"of {count} nodes, {', '.join(found)}" if found else f"all {count} nodes are healthy"
    return "; ".join((text, *places))


def first_names(names: Sequence[str]) -> str:
    """The first ones, and how many more there are."""
    return some_of(names, MAX_NAMED)
