"""Evidence behind a verdict, as a sentence for a person."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, log

from healthcheck.attribution import NodeStanding
from healthcheck.fleet import Link, NodeName
from healthcheck.pairing import Evidence
from healthcheck.trials import Symptom, Trial

VERB = {Symptom.FAILED: "failed", Symptom.SLOW: "was slow"}
GOOD = {Symptom.FAILED: "passed", Symptom.SLOW: "was fast"}

MOST_ODDS = 1_000_000
"""Odds above which no number is given."""

WITH_WITNESSES = ": check it together with three or more nodes that are well"
"""Advice if no other check can decide."""

OPEN_QUESTION = {
    NodeStanding.UNTESTED: "no test with a node that is well could be made",
    NodeStanding.SUSPECT: f"too few trusted nodes have tested it{WITH_WITNESSES}",
    NodeStanding.CONTESTED: f"nothing shows yet if it is this node, its partner or the link{WITH_WITNESSES}",
    NodeStanding.CUT_OFF: "it fails only beyond its part of the network, which is cut off",
}


def accusation(symptom: Symptom, name: NodeName, evidence: Evidence) -> str:
    """Return why the node is guilty: its failures with witnesses, and its other results."""
    ledger = evidence.ledger
    testimony = sorted(evidence.attribution.guilty[name], key=lambda trial: trial.round)
    passes = ledger.passes(name)
    besides = (
        f"{GOOD[symptom]} in {passes} of {len(ledger.of(name))} tests" if passes else f"never {GOOD[symptom]}"
    )
    return (
        f"it {VERB[symptom]} {_meetings(name, testimony)}, who do well with others, and {besides}: "
        f"{_odds(name, evidence)} for a fault of its own{_reason(testimony)}"
    )


def link_evidence(symptom: Symptom, pair: Link, evidence: Evidence) -> str:
    """Return why the link is guilty: the results of the pair, and of each node elsewhere."""
    a, b = sorted(pair)
    trials = evidence.attribution.links[pair]
    bad = [trial for trial in trials if not trial.passed]
    passes_a, passes_b = evidence.ledger.passes(a, (b,)), evidence.ledger.passes(b, (a,))
    return (
        f"the pair {VERB[symptom]} in {len(bad)} of {len(trials)} tests, while {a} {GOOD[symptom]} in "
        f"{_tests(passes_a)} with others and {b} in {passes_b}{_reason(bad)}"
    )


def doubt(symptom: Symptom, name: NodeName, evidence: Evidence) -> str:
    """Return the evidence against the node, and why it is not enough."""
    failures = evidence.ledger.failures(name)
    seen = f"it {VERB[symptom]} {_meetings(name, failures)}; " if failures else ""
    passes = _tests(evidence.ledger.passes(name))
    odds = f", {_odds(name, evidence)} for a fault" if name in evidence.attribution.odds else ""
    return f"{seen}it {GOOD[symptom]} in {passes}{odds}; {OPEN_QUESTION[evidence.standing(name)]}"


def acquittal(name: NodeName, evidence: Evidence) -> str:
    """Return why the node is healthy, although tests with it may have failed."""
    ledger = evidence.ledger
    text = f"it passed {_tests(ledger.passes(name))}"
    failures = ledger.failures(name)
    if not failures:
        return text
    met = _meetings(name, failures)
    if evidence.standing(name) is NodeStanding.CLEARED:
        since = ledger.passes(name, after=failures[-1].round)
        return f"{text}, {since} of them since it failed {met}: a fault would have shown again"
    if evidence.standing(name) is NodeStanding.DOUBTED:
        return f"{text} and failed {met}: {_odds(name, evidence)} for a fault, too little to doubt it"
    return f"{text}; that it failed {met} is the other side's"


def _odds(name: NodeName, evidence: Evidence) -> str:
    """Return the odds against bad luck, to one digit."""
    odds = exp(min(evidence.attribution.odds[name], log(MOST_ODDS)))
    if odds >= MOST_ODDS:
        return f"odds over {MOST_ODDS:,}:1"
    return f"odds {float(f'{odds:.1g}'):,.0f}:1" if odds >= 1 else "odds below 1:1"


def in_rounds(numbers: Sequence[int]) -> str:
    """Return the rounds as text, such as "in round 1 and 3"."""
    return f"in round {_list(map(str, numbers))}"


def _meetings(name: NodeName, trials: Sequence[Trial]) -> str:
    return _list(f"in round {trial.round} with {_list(trial.others(name))}" for trial in trials)


def _tests(count: int) -> str:
    return "1 test" if count == 1 else f"{count} tests"


def _reason(trials: Sequence[Trial]) -> str:
    last = next((trial.reason for trial in reversed(trials) if trial.reason), "")
    return f" ({last})" if last else ""


def _list(items: Iterable[str]) -> str:
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last
