"""The verdicts: on each node, on links, and on racks; each with the evidence that led to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from healthcheck.attribution import OPEN, Standing, attribute
from healthcheck.domains import FaultyDomain, clustered, cut_off
from healthcheck.evidence import accusation, acquittal, doubt, in_rounds, link_evidence
from healthcheck.fleet import Link, Node, NodeName
from healthcheck.measurements import GroupResult, History, RoundResult
from healthcheck.own_word import befell, is_of_most, proven
from healthcheck.pairing import Evidence
from healthcheck.settings import Settings
from healthcheck.stragglers import ClassFinding, Slowness, own_figures
from healthcheck.trials import Symptom, failing_trials, slow_trials

UNSETTLED = (OPEN | {Standing.CUT_OFF}) - {Standing.DOUBTED}


class Verdict(StrEnum):
    HEALTHY = "Healthy"
    FAULTY = "Faulty"
    STRAGGLER = "Straggler"
    INCONCLUSIVE = "Inconclusive"
    """It may be at fault, and nothing proves or disproves it. Nobody acts on this but a person."""


class Cause(StrEnum):
    """What a verdict other than Healthy rests on."""

    NONE = ""
    LOCAL_TEST = "LocalTest"
    NO_ANSWER = "NoAnswer"
    PAIR_TEST = "PairTest"
    CRASHED = "Crashed"
    """Its own agent says that its probe was ended by a signal, again and again."""
    SLOW_COMPUTE = "SlowCompute"
    """A figure of the node's own: GEMM, copies, the collective inside the node."""
    SLOW_NETWORK = "SlowNetwork"
    WITHDRAWN = "Withdrawn"
    """It could not be tested to the end."""


@dataclass(frozen=True)
class NodeVerdict:
    node: NodeName
    verdict: Verdict
    evidence: str
    """One sentence for a person."""
    causes: tuple[Cause, ...] = ()


@dataclass(frozen=True)
class LinkVerdict:
    """A link that fails, or is slow, between two nodes that are well with others."""

    link: Link
    symptom: Symptom
    evidence: str


@dataclass(frozen=True)
class Verdicts:
    """The end of a check."""

    nodes: tuple[NodeVerdict, ...]
    links: tuple[LinkVerdict, ...] = ()
    domains: tuple[FaultyDomain, ...] = ()
    classes: tuple[ClassFinding, ...] = ()
    """Classes of hardware that are slow as a whole, or of two kinds: nobody is blamed for that."""

    def named(self, verdict: Verdict) -> tuple[NodeName, ...]:
        return tuple(found.node for found in self.nodes if found.verdict is verdict)


@dataclass(frozen=True)
class Findings:
    """All that a history says, before anything is decided about going on."""

    nodes: tuple[Node, ...]
    vouched: frozenset[NodeName]
    locally_tested: frozenset[NodeName]
    local_failures: Mapping[NodeName, str]
    silent: Mapping[NodeName, str]
    """Silent nodes, each with a text that names the answers it did not give."""
    unheard: Mapping[NodeName, str]
    """The same, where most gave no answer, or where it may be bad luck."""
    crashed: Mapping[NodeName, str]
    """Nodes whose own probe was ended by a signal, each with a text that names the rounds."""
    withdrawn: Mapping[NodeName, str]
    """Why the node could not be tested to the end."""
    slow_compute: Mapping[NodeName, tuple[Slowness, ...]]
    to_measure_again: tuple[NodeName, ...]
    """Nodes whose own figures are suspicious, in rank order."""
    classes: tuple[ClassFinding, ...]
    evidence: Mapping[Symptom, Evidence]

    @property
    def condemned(self) -> frozenset[NodeName]:
        """Nodes at fault by other evidence than tests with partners."""
        return frozenset((*self.local_failures, *self.silent, *self.crashed))


def investigate(history: History, nodes: Sequence[Node], settings: Settings) -> Findings:
    """Everything that the recorded results say. Pure, and so the same after any restart."""
    local = {n.name: history.local[n.name] for n in nodes if n.name in history.local}
    local_failures = {name: result.reason for name, result in local.items() if not result.passed}
    silent, unheard = _silences(history, len(nodes), settings)
    crashed = _crashes(history, len(nodes), settings)
    condemned = {*local_failures, *silent, *crashed}
    failing = failing_trials(history.rounds)
    failed = attribute(failing, nodes, condemned, settings.failed, history.absent)
    slow_ledger = slow_trials(history.rounds, nodes, settings)
    slow = attribute(slow_ledger, nodes, {*condemned, *failed.guilty}, settings.slow, history.absent)
    own = own_figures(history, nodes, settings)
    return Findings(
        nodes=tuple(nodes),
        vouched=frozenset(node.name for node in nodes if node.vouched),
        locally_tested=frozenset(local),
        local_failures=local_failures,
        silent=silent,
        unheard=unheard,
        crashed=crashed,
        withdrawn=history.withdrawn,
        slow_compute=own.slow,
        to_measure_again=own.to_measure_again,
        classes=own.classes,
        evidence={Symptom.FAILED: Evidence(failing, failed), Symptom.SLOW: Evidence(slow_ledger, slow)},
    )


def conclude(findings: Findings, settings: Settings) -> Verdicts:
    """The verdicts that the findings carry, as if no further test could be made."""
    failed = findings.evidence[Symptom.FAILED]
    nodes = tuple(_verdict(node.name, findings) for node in findings.nodes)
    faulty = {found.node for found in nodes if found.verdict is Verdict.FAULTY}
    links = tuple(
        LinkVerdict(pair, symptom, link_evidence(symptom, pair, evidence))
        for symptom, evidence in findings.evidence.items()
        for pair in sorted(evidence.attribution.links, key=sorted)
    )
    domains = (
        *clustered(findings.nodes, faulty, settings.significance),
        *cut_off(findings.nodes, failed.attribution),
    )
    return Verdicts(nodes, links, domains, findings.classes)


def most_are_silent(round_: RoundResult, withdrawn: Collection[NodeName] = ()) -> bool:
    """Most of those asked gave no answer: likelier that nobody reaches us than that all of them died."""
    return is_of_most(round_, _silent_members, withdrawn)


def _silent_members(group: GroupResult) -> Collection[NodeName]:
    return group.silent


def _crashed_members(group: GroupResult) -> Collection[NodeName]:
    return group.crashed


def _silences(
    history: History, asked: int, settings: Settings
) -> tuple[dict[NodeName, str], dict[NodeName, str]]:
    """Return the nodes without an answer, and those without one when most had none, or too seldom to say
    more."""
    silent: dict[NodeName, str] = {}
    unheard: dict[NodeName, str] = {}
    withdrawn = history.withdrawn
    most = 2 * len(history.unanswered) > asked - len(withdrawn)
    for name, known in history.unanswered.items():
        (unheard if most else silent)[name] = f"to the local tests{_because(known)}"
    quiet = befell(history.rounds, _silent_members, withdrawn)
    gone = proven(quiet, history.rounds, asked, settings.own_word)
    for name, rounds in quiet.items():
        (silent if name in gone else unheard).setdefault(name, in_rounds(rounds))
    for round_ in history.rounds:
        if most_are_silent(round_, withdrawn):
            for name in (n for group in round_.groups for n in group.silent if n not in withdrawn):
                unheard.setdefault(name, in_rounds([round_.number]))
    return silent, unheard


def _crashes(history: History, asked: int, settings: Settings) -> dict[NodeName, str]:
    crashes = befell(history.rounds, _crashed_members, history.withdrawn)
    faulty = proven(crashes, history.rounds, asked, settings.own_word)
    return {name: in_rounds(rounds) for name, rounds in crashes.items() if name in faulty}


def _because(known: str) -> str:
    return f" ({known})" if known else ""


def _verdict(name: NodeName, findings: Findings) -> NodeVerdict:
    if name in findings.local_failures:
        text = f"its local tests failed: {findings.local_failures[name]}"
        return NodeVerdict(name, Verdict.FAULTY, text, (Cause.LOCAL_TEST,))
    if name in findings.silent:
        text = f"it gave no answer {findings.silent[name]}"
        return NodeVerdict(name, Verdict.FAULTY, text, (Cause.NO_ANSWER,))
    if name in findings.crashed:
        text = f"its own probe was ended by a signal {findings.crashed[name]}"
        return NodeVerdict(name, Verdict.FAULTY, text, (Cause.CRASHED,))
    failed = findings.evidence[Symptom.FAILED]
    if failed.standing(name) is Standing.GUILTY:
        text = accusation(Symptom.FAILED, name, failed)
        return NodeVerdict(name, Verdict.FAULTY, text, (Cause.PAIR_TEST,))
    if name in findings.withdrawn:
        text = f"it could not be tested to the end: {findings.withdrawn[name]}"
        return NodeVerdict(name, Verdict.INCONCLUSIVE, text, (Cause.WITHDRAWN,))
    return _slow_verdict(name, findings) or _open_verdict(name, findings)


def _slow_verdict(name: NodeName, findings: Findings) -> NodeVerdict | None:
    slow = findings.evidence[Symptom.SLOW]
    causes, texts = [], []
    if name in findings.slow_compute:
        causes.append(Cause.SLOW_COMPUTE)
        texts.append("; ".join(map(str, findings.slow_compute[name])))
    if slow.standing(name) is Standing.GUILTY:
        causes.append(Cause.SLOW_NETWORK)
        texts.append(accusation(Symptom.SLOW, name, slow))
    return NodeVerdict(name, Verdict.STRAGGLER, "; ".join(texts), tuple(causes)) if causes else None


def _open_verdict(name: NodeName, findings: Findings) -> NodeVerdict:
    """Healthy, or why that cannot be said."""
    failed, slow = findings.evidence[Symptom.FAILED], findings.evidence[Symptom.SLOW]
    if not failed.ledger.of(name):
        return _untested_verdict(name, findings)
    if failed.standing(name) in UNSETTLED:
        text = doubt(Symptom.FAILED, name, failed)
        return NodeVerdict(name, Verdict.INCONCLUSIVE, text, (Cause.PAIR_TEST,))
    if slow.standing(name) in UNSETTLED and not slow.ledger.passes(name):
        text = doubt(Symptom.SLOW, name, slow)
        return NodeVerdict(name, Verdict.INCONCLUSIVE, text, (Cause.SLOW_NETWORK,))
    text = acquittal(name, failed)
    if slow.standing(name) in UNSETTLED:  # with somebody it was fast
        text = f"{text}; {doubt(Symptom.SLOW, name, slow)}"
    return NodeVerdict(name, Verdict.HEALTHY, text)


def _untested_verdict(name: NodeName, findings: Findings) -> NodeVerdict:
    """Judge a node that no finished pair test included, by its local tests, if it made any."""
    if name in findings.unheard:
        text = f"it gave no answer {findings.unheard[name]}: too seldom, or as most did, to speak against it"
        return NodeVerdict(name, Verdict.INCONCLUSIVE, text, (Cause.NO_ANSWER,))
    if name in findings.locally_tested:
        text = "it passed its local tests; there was no partner to test its network with"
        return NodeVerdict(name, Verdict.HEALTHY, text)
    if name in findings.vouched:
        return NodeVerdict(
            name, Verdict.HEALTHY, "it passed an earlier check, and nobody needed it in this one"
        )
    text = "it made no local test, and there was no partner to test it with"
    return NodeVerdict(name, Verdict.INCONCLUSIVE, text, (Cause.PAIR_TEST,))
