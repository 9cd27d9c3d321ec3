"""Verdicts on nodes, links and racks, each with its evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import log
from operator import attrgetter

from crds.actions import Action
from crds.findings import MAX_EVIDENCE, MAX_TEXT, Cause, FaultyDomain, FaultyLink, Finding, Verdict
from healthcheck.attribution import OPEN, NodeStanding, attribute
from healthcheck.domains import clustered, cut_off
from healthcheck.evidence import accusation, acquittal, doubt, in_rounds, link_evidence
from healthcheck.fleet import Link, Node, NodeName
from healthcheck.insides import BrokenSwitch, broken_between, broken_switches, without_inside
from healthcheck.measurements import CheckHistory, GroupResult, LocalResult, RoundResult, rounded
from healthcheck.odds import log_odds
from healthcheck.pairing import Evidence
from healthcheck.settings import Rules, Settings
from healthcheck.stragglers import ClassFinding, Slowness, own_figures
from healthcheck.trials import Symptom, failing_trials, slow_trials

Listed = Callable[[GroupResult], Collection[NodeName]]
SILENT: Listed = attrgetter("silent")
CRASHED: Listed = attrgetter("crashed")
UNSETTLED = (OPEN | {NodeStanding.CUT_OFF}) - {NodeStanding.DOUBTED}


@dataclass(frozen=True)
class Diagnosis:
    """Result of a check."""

    nodes: tuple[Finding, ...]
    links: tuple[FaultyLink, ...] = ()
    domains: tuple[FaultyDomain, ...] = ()
    classes: tuple[ClassFinding, ...] = ()
    """Classes of hardware that are slow as a whole, or of two kinds; no node is blamed."""

    def named(self, verdict: Verdict) -> tuple[NodeName, ...]:
        return tuple(found.node for found in self.nodes if found.verdict is verdict)


@dataclass(frozen=True)
class CheckFacts:
    """All facts from a history, before the next step is decided."""

    nodes: tuple[Node, ...]
    local: Mapping[NodeName, LocalResult]
    """Results of the local tests, by node."""
    vouched: frozenset[NodeName]
    local_failures: Mapping[NodeName, LocalResult]
    """Nodes whose local tests failed, in the first or a later run."""
    silent: Mapping[NodeName, str]
    """Silent nodes, each with a text that names the missing answers."""
    unheard: Mapping[NodeName, str]
    """Other nodes without an answer: most nodes had none, or it may be bad luck."""
    crashed: Mapping[NodeName, str]
    """Nodes whose own probe was ended by a signal, each with a text that names the rounds."""
    withdrawn: Mapping[NodeName, str]
    """Nodes that could not be tested completely, with the reason."""
    slow_compute: Mapping[NodeName, tuple[Slowness, ...]]
    to_measure_again: tuple[NodeName, ...]
    """Nodes with suspicious local figures, in rank order."""
    classes: tuple[ClassFinding, ...]
    switches: tuple[BrokenSwitch, ...]
    """NVLink domains whose nodes fail only with each other."""
    evidence: Mapping[Symptom, Evidence]

    @property
    def condemned(self) -> frozenset[NodeName]:
        """Nodes found faulty by other evidence than tests with partners."""
        return frozenset((*self.local_failures, *self.silent, *self.crashed))


def investigate(history: CheckHistory, nodes: Sequence[Node], settings: Settings) -> CheckFacts:
    """Return the facts of the recorded results. Pure, and so the same after any restart."""
    local = {n.name: history.local[n.name] for n in nodes if n.name in history.local}
    local_failures = _failures_alone(history.rounds)
    local_failures |= {name: result for name, result in local.items() if not result.passed}
    silent, unheard = _silences(history, len(nodes), settings)
    crashed = _crashes(history, len(nodes), settings)
    condemned = {*local_failures, *silent, *crashed}
    failing = failing_trials(history.rounds)
    switches = broken_switches(failing, nodes, condemned)
    failing = without_inside(failing, switches)
    failed = attribute(failing, nodes, condemned, settings.failed, history.absent)
    slow_ledger = slow_trials(history.rounds, nodes, settings)
    slow = attribute(slow_ledger, nodes, {*condemned, *failed.guilty}, settings.slow, history.absent)
    own = own_figures(history, nodes, settings)
    return CheckFacts(
        nodes=tuple(nodes),
        local=local,
        vouched=frozenset(node.name for node in nodes if node.vouched),
        local_failures=local_failures,
        silent=silent,
        unheard=unheard,
        crashed=crashed,
        withdrawn=history.withdrawn,
        slow_compute=own.slow,
        to_measure_again=own.to_measure_again,
        classes=own.classes,
        switches=(*switches, *broken_between(failed.links, nodes)),
        evidence={Symptom.FAILED: Evidence(failing, failed), Symptom.SLOW: Evidence(slow_ledger, slow)},
    )


def conclude(facts: CheckFacts, settings: Settings) -> Diagnosis:
    """Judge the nodes by the facts, as if no further test were possible."""
    failed = facts.evidence[Symptom.FAILED]
    nodes = tuple(_verdict(node.name, facts) for node in facts.nodes)
    faulty = {found.node for found in nodes if found.verdict is Verdict.FAULTY}
    behind = {name for switch in facts.switches for name in switch.nodes}
    links = tuple(
        _link(symptom, pair, evidence)
        for symptom, evidence in facts.evidence.items()
        for pair in sorted(evidence.attribution.links, key=sorted)
        if not any(pair.issubset(switch.nodes) for switch in facts.switches)
    )
    domains = (
        *(switch.finding for switch in facts.switches),
        *clustered(facts.nodes, faulty - behind, settings.significance),
        *cut_off(facts.nodes, failed.attribution),
    )
    return Diagnosis(nodes, links, domains, facts.classes)


def most_are_silent(round_: RoundResult, withdrawn: Collection[NodeName] = ()) -> bool:
    """Return whether most nodes gave no answer, which rather means that none reaches us than that all
    died."""
    return affects_most(round_, SILENT, withdrawn)


def _failures_alone(rounds: Sequence[RoundResult]) -> dict[NodeName, LocalResult]:
    """Return the nodes that failed when they repeated their local tests, each with the first such result."""
    alone = [group for round_ in rounds for group in round_.groups if len(group.members) == 1]
    failed = (group for group in reversed(alone) if not (group.passed or group.silent))
    return {group.members[0]: LocalResult(failure=group.failure, action=group.action) for group in failed}


def _silences(
    history: CheckHistory, nodes: int, settings: Settings
) -> tuple[dict[NodeName, str], dict[NodeName, str]]:
    """Return the silent nodes, and those whose silence proves nothing, since it was rare or most were
    silent."""
    silent: dict[NodeName, str] = {}
    unheard: dict[NodeName, str] = {}
    withdrawn = history.withdrawn
    most = 2 * len(history.unanswered) > nodes - len(withdrawn)
    for name, why in history.unanswered.items():
        (unheard if most else silent)[name] = "to the local tests" + (f" ({why})" if why else "")
    quiet = rounds_by_node(history.rounds, SILENT, withdrawn)
    gone = proven(quiet, history.rounds, nodes, settings.own_report)
    for name, rounds in quiet.items():
        (silent if name in gone else unheard).setdefault(name, in_rounds(rounds))
    for round_ in history.rounds:
        if most_are_silent(round_, withdrawn):
            for name in (n for group in round_.groups for n in group.silent if n not in withdrawn):
                unheard.setdefault(name, in_rounds([round_.number]))
    return silent, unheard


def _crashes(history: CheckHistory, nodes: int, settings: Settings) -> dict[NodeName, str]:
    crashes = rounds_by_node(history.rounds, CRASHED, ())
    faulty = proven(crashes, history.rounds, nodes, settings.own_report)
    return {name: in_rounds(rounds) for name, rounds in crashes.items() if name in faulty}


def _finding(name: NodeName, facts: CheckFacts, verdict: Verdict, text: str, *causes: Cause) -> Finding:
    measured = facts.local[name].measured if name in facts.local else {}
    figures = {metric.value: rounded(value) for metric, value in measured.items()}
    return Finding(node=name, verdict=verdict, causes=causes, message=text[:MAX_TEXT], figures=figures)


def _link(symptom: Symptom, pair: Link, evidence: Evidence) -> FaultyLink:
    a, b = sorted(pair)
    text = link_evidence(symptom, pair, evidence)[:MAX_EVIDENCE]
    return FaultyLink(a=a, b=b, symptom=symptom.value, message=text, action=Action.LOOK_AT_LINK)


def _verdict(name: NodeName, facts: CheckFacts) -> Finding:
    if name in facts.local_failures:
        failed = facts.local_failures[name]
        found = _finding(
            name, facts, Verdict.FAULTY, f"its local tests failed: {failed.reason}", Cause.LOCAL_TEST
        )
        return found.model_copy(update={"action": failed.action})
    if name in facts.silent:
        text = f"it gave no answer {facts.silent[name]}"
        return _finding(name, facts, Verdict.FAULTY, text, Cause.NO_ANSWER)
    if name in facts.crashed:
        text = f"its own probe was ended by a signal {facts.crashed[name]}"
        return _finding(name, facts, Verdict.FAULTY, text, Cause.CRASHED)
    pairs = facts.evidence[Symptom.FAILED]
    if pairs.standing(name) is NodeStanding.GUILTY:
        text = accusation(Symptom.FAILED, name, pairs)
        return _finding(name, facts, Verdict.FAULTY, text, Cause.PAIR_TEST)
    if (switch := next((s for s in facts.switches if name in s.nodes), None)) is not None:
        found = _finding(name, facts, Verdict.FAULTY, str(switch), Cause.PAIR_TEST)
        return found.model_copy(update={"action": Action.LOOK_AT_DOMAIN})
    if name in facts.withdrawn:
        text = f"it could not be tested to the end: {facts.withdrawn[name]}"
        return _finding(name, facts, Verdict.INCONCLUSIVE, text, Cause.WITHDRAWN)
    return _slow_verdict(name, facts) or _open_verdict(name, facts)


def _slow_verdict(name: NodeName, facts: CheckFacts) -> Finding | None:
    slow = facts.evidence[Symptom.SLOW]
    causes, texts = [], []
    if name in facts.slow_compute:
        causes.append(Cause.SLOW_COMPUTE)
        texts.append("; ".join(map(str, facts.slow_compute[name])))
    if slow.standing(name) is NodeStanding.GUILTY:
        causes.append(Cause.SLOW_NETWORK)
        texts.append(accusation(Symptom.SLOW, name, slow))
    return _finding(name, facts, Verdict.STRAGGLER, "; ".join(texts), *causes) if causes else None


def _open_verdict(name: NodeName, facts: CheckFacts) -> Finding:
    """Return a healthy verdict, or an inconclusive one with the reason."""
    failed, slow = facts.evidence[Symptom.FAILED], facts.evidence[Symptom.SLOW]
    if not failed.ledger.of(name):
        return _untested_verdict(name, facts)
    if failed.standing(name) in UNSETTLED:
        text = doubt(Symptom.FAILED, name, failed)
        return _finding(name, facts, Verdict.INCONCLUSIVE, text, Cause.PAIR_TEST)
    if slow.standing(name) in UNSETTLED and not slow.ledger.passes(name):
        text = doubt(Symptom.SLOW, name, slow)
        return _finding(name, facts, Verdict.INCONCLUSIVE, text, Cause.SLOW_NETWORK)
    text = acquittal(name, failed)
    if slow.standing(name) in UNSETTLED:  # with somebody it was fast
        text = f"{text}; {doubt(Symptom.SLOW, name, slow)}"
    return _finding(name, facts, Verdict.HEALTHY, text)


def _untested_verdict(name: NodeName, facts: CheckFacts) -> Finding:
    """Judge a node without a finished pair test, by its local tests, if any."""
    if name in facts.unheard:
        text = f"it gave no answer {facts.unheard[name]}: too seldom, or as most did, to speak against it"
        return _finding(name, facts, Verdict.INCONCLUSIVE, text, Cause.NO_ANSWER)
    if name in facts.local:
        text = "it passed its local tests; there was no partner to test its network with"
        return _finding(name, facts, Verdict.HEALTHY, text)
    if name in facts.vouched:
        text = "it passed an earlier check, and nobody needed it in this one"
        return _finding(name, facts, Verdict.HEALTHY, text)
    text = "it made no local test, and there was no partner to test it with"
    return _finding(name, facts, Verdict.INCONCLUSIVE, text, Cause.PAIR_TEST)


# --- silence and crashes ------------------------------------------------------------------------------------
# These need no partner, only a repetition: answers get lost, and a probe may be killed by accident. So each
# is weighed like failed tests, against how often it happens to healthy nodes.


def affects_most(round_: RoundResult, listed: Listed, withdrawn: Collection[NodeName] = ()) -> bool:
    """Return whether it happened to most nodes of a round, which rather means a common cause than that all
    broke."""
    tested = [name for group in round_.groups for name in group.members if name not in withdrawn]
    hit = [name for group in round_.groups for name in listed(group) if name not in withdrawn]
    return 2 * len(hit) > len(tested)


def rounds_by_node(
    rounds: Sequence[RoundResult], listed: Listed, withdrawn: Collection[NodeName]
) -> dict[NodeName, list[int]]:
    """Return the rounds in which it happened to each node, without those in which it happened to most."""
    found: dict[NodeName, list[int]] = {}
    for round_ in rounds:
        if not affects_most(round_, listed, withdrawn):
            for name in (name for group in round_.groups for name in listed(group)):
                if name not in withdrawn:
                    found.setdefault(name, []).append(round_.number)
    return found


def proven(
    found: dict[NodeName, list[int]], rounds: Sequence[RoundResult], nodes: int, rules: Rules
) -> frozenset[NodeName]:
    """Return the nodes to which it happened more often than bad luck explains."""
    tested = Counter(name for round_ in rounds for group in round_.groups for name in group.members)
    there = {name: len(hits) for name, hits in found.items() if len(hits) < tested[name]}
    failed = sum(there.values())
    passed = tested.total() - sum(len(hits) for hits in found.values())
    needed = log(rules.odds_a_node * max(nodes, rules.least_nodes))
    return frozenset(
        name
        for name, hits in found.items()
        if log_odds(len(hits), fine := tested[name] - len(hits), failed - there.get(name, 0), passed - fine)
        >= needed
    )
