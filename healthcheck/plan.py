"""Next step of a check: a round of groups, or the verdicts. A pure function of the recorded results.

A controller that restarts during a round calls it with the same finished rounds, and gets the same groups.
Local tests come first: call this when every node's local result is available.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from healthcheck.diagnosis import CheckFacts, Diagnosis, conclude, investigate, most_are_silent
from healthcheck.fleet import Node
from healthcheck.insides import inside_groups
from healthcheck.measurements import CheckHistory
from healthcheck.pairing import Group, next_groups, screening_groups
from healthcheck.settings import Settings
from healthcheck.trials import Symptom

UNHEARD_ROUNDS = 2
"""Consecutive rounds without an answer from most nodes after which the check ends."""


@dataclass(frozen=True)
class ProbeRound:
    """Groups that test concurrently. Nodes in none of them are idle."""

    number: int
    groups: tuple[Group, ...]


def next_step(history: CheckHistory, nodes: Sequence[Node], settings: Settings) -> ProbeRound | Diagnosis:
    """Return the next step after the finished rounds of `history`; `nodes` are in rank order, each name
    once."""
    facts = investigate(history, nodes, settings)
    groups = _groups(history, facts, settings)
    if not groups:
        return conclude(facts, settings)
    return ProbeRound(len(history.rounds) + 1, groups)


def _groups(history: CheckHistory, facts: CheckFacts, settings: Settings) -> tuple[Group, ...]:
    done = len(history.rounds)
    if done >= settings.most_rounds or _nobody_hears_us(history) or _is_hopeless(history, facts, settings):
        return ()
    evidence = facts.evidence[Symptom.FAILED]
    groups: tuple[Group, ...] = ()
    if done < settings.screening_rounds:
        out = {*facts.condemned, *history.absent, *evidence.attribution.guilty}
        nodes = [node for node in facts.nodes if node.name not in out]
        groups = screening_groups(nodes, settings.rotation + done, evidence.ledger)
    if not groups:
        out = {*facts.condemned, *history.absent, *evidence.attribution.guilty}
        groups = inside_groups(facts.nodes, history.rounds, out)
    if not groups:
        open_symptoms = tuple(
            found
            for symptom, found in facts.evidence.items()
            if symptom is not Symptom.SLOW or done < settings.most_rounds_about_slowness
        )
        groups = next_groups(facts.nodes, open_symptoms, settings.rotation, absent=history.absent)
    return groups + _alone(history, facts, groups)


def _alone(history: CheckHistory, facts: CheckFacts, groups: Sequence[Group]) -> tuple[Group, ...]:
    """Return groups of one, for nodes that must repeat their own measurements and are free in this round."""
    busy = {*history.absent, *facts.condemned, *(name for group in groups for name in group)}
    return tuple((name,) for name in facts.to_measure_again if name not in busy)


def _nobody_hears_us(history: CheckHistory) -> bool:
    last = history.rounds[-UNHEARD_ROUNDS:]
    return len(last) == UNHEARD_ROUNDS and all(most_are_silent(round_, history.withdrawn) for round_ in last)


def _is_hopeless(history: CheckHistory, facts: CheckFacts, settings: Settings) -> bool:
    """Return whether nothing has passed yet, and nothing will."""
    tests = [group.passed for round_ in history.rounds for group in round_.groups if len(group.members) > 1]
    if any(tests) or any(node.vouched for node in facts.nodes):
        return False
    rounds = len(history.rounds)
    return rounds >= settings.most_rounds_without_a_pass or len(tests) >= settings.most_tests_without_a_pass
