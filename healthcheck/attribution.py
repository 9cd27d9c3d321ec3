"""Who is to blame for the trials that failed: nodes, links, or nobody that can be named yet.

The theory is system-level diagnosis by mutual tests (Preparata, Metze and Chien, 1967), in its adaptive form,
with the difference that faults may be intermittent and may sit in a link. Of a test between two, a pass
acquits both of a hard fault; a failure accuses both. So:

* A *node* is guilty when it failed with several distinct witnesses: partners who passed with others, and
  whose open failures are with this node or with worse ones only. How often the node passed besides does not
  matter. Hard faults never make it blame a healthy node: a witness passed, so it is not the faulty one.
* A *link* is guilty when its pair fails again and again while both of its nodes pass elsewhere, so that an
  intermittent fault of either node explains it far worse (a generalised likelihood ratio).
* A failure is *explained*, and accuses nobody any more, when a guilty node or link took part in it.
* A node with an open failure is *cleared* by many passes in a row, never by one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations
from math import log

from healthcheck.fleet import Link, Node, NodeName
from healthcheck.settings import Rules
from healthcheck.trials import Ledger, Trial

VOUCHED_PASSES = 2
"""A vouched node passed elsewhere, more than once."""
WITNESS_PASSES = 2
"""Passes that make a witness against a node that has passed itself; one is enough against others."""


class Standing(StrEnum):
    UNTESTED = "untested"
    """No trial that says anything about it."""
    TRUSTED = "trusted"
    """It passed, and nothing open speaks against it."""
    SUSPECT = "suspect"
    """It failed and never passed."""
    CONTESTED = "contested"
    """It failed with a partner who passes elsewhere, as it does itself."""
    PRESUMED = "presumed"
    """Contested only by nodes that fail with more partners than it does: good enough as a partner."""
    CLEARED = "cleared"
    """Contested once, and passed often enough since."""
    CUT_OFF = "cut-off"
    """It passes inside its domain only, and fails outside of it only, as if its rack had lost its uplink."""
    GUILTY = "guilty"


ACCUSED = frozenset({Standing.UNTESTED, Standing.SUSPECT, Standing.CONTESTED})
OPEN = ACCUSED | {Standing.PRESUMED}


@dataclass
class Attribution:
    """What one symptom's trials say. Filled by `attribute`, read-only afterwards."""

    guilty: dict[NodeName, tuple[Trial, ...]] = field(default_factory=dict)
    """With the trials that its witnesses failed with it."""
    links: dict[Link, tuple[Trial, ...]] = field(default_factory=dict)
    """With all trials of the pair."""
    cut_off: dict[NodeName, tuple[Trial, ...]] = field(default_factory=dict)
    """Nodes that pass inside their domain only and fail outside of it only, with these failures."""
    standings: dict[NodeName, Standing] = field(default_factory=dict)
    reruns: tuple[Link, ...] = ()
    """Failed pairs that should meet again now, to tell a link from a node."""


def attribute(
    ledger: Ledger, nodes: Sequence[Node], condemned: Collection[NodeName], rules: Rules
) -> Attribution:
    """Blame as few as explain what was seen, and only those that no other story acquits.

    Args:
        ledger: the symptom's trials.
        nodes: all nodes of the check.
        condemned: nodes at fault by other evidence; what they took part in is explained.
        rules: how much evidence is enough.
    """
    return _Inquiry(ledger, nodes, condemned, rules).run()


class _Inquiry:
    def __init__(
        self, ledger: Ledger, nodes: Sequence[Node], condemned: Collection[NodeName], rules: Rules
    ) -> None:
        self._ledger = ledger
        self._nodes = nodes
        self._domain_of = {node.name: node.smallest_domain for node in nodes}
        self._vouched = {node.name for node in nodes if node.vouched}
        self._condemned = frozenset(condemned)
        self._rules = rules
        self._found = Attribution()
        self._one_explains_all = _share_a_node(self._open_failures())

    def run(self) -> Attribution:
        while self._blame_nodes() or self._blame_links():
            pass
        found = self._found
        found.standings = {node.name: self._standing(node.name) for node in self._nodes}
        found.reruns = self._reruns()
        return found

    def _blame_nodes(self) -> bool:
        """One pass over all nodes, judged by the same state, so that their order is of no account."""
        guilty: dict[NodeName, tuple[Trial, ...]] = {}
        cut_off: dict[NodeName, tuple[Trial, ...]] = {}
        for node in self._nodes:
            if self._is_guilty(node.name) or node.name in self._found.cut_off:
                continue
            testimony = self._testimony(node.name)
            if len(testimony) < self._needed(node.name):
                continue
            blamed = cut_off if self._is_cut_off(node.name) else guilty
            blamed[node.name] = testimony
        self._found.guilty.update(guilty)
        self._found.cut_off.update(cut_off)
        return bool(guilty or cut_off)

    def _testimony(self, name: NodeName) -> tuple[Trial, ...]:
        """Failures of the node with credible witnesses, each witness counted once."""
        chosen: list[Trial] = []
        heard: set[NodeName] = set()
        for trial in sorted(self._open_failures_of(name), key=lambda t: (len(t.members), t.round)):
            others = trial.others(name)
            if heard.isdisjoint(others) and all(self._is_witness(other, name) for other in others):
                chosen.append(trial)
                heard.update(others)
        return tuple(chosen)

    def _is_witness(self, witness: NodeName, against: NodeName) -> bool:
        needed = WITNESS_PASSES if self._has_passed(against) else 1
        return self._passes(witness, without=(against,)) >= needed and all(
            against in trial.members or self._is_rather_anothers(trial, witness)
            for trial in self._contested_failures_of(witness)
        )

    def _is_rather_anothers(self, trial: Trial, name: NodeName) -> bool:
        """Whether somebody else in this contested failure fails with more partners than `name` does."""
        return max(map(self._contestants, trial.others(name))) > self._contestants(name)

    def _contestants(self, name: NodeName) -> int:
        """With how many different partners the node's contested failures are."""
        return len({other for trial in self._contested_failures_of(name) for other in trial.others(name)})

    def _needed(self, name: NodeName) -> int:
        few = self._rules.witnesses_if_one_explains_all
        return few if self._one_explains_all or self._met_all(name) else self._rules.witnesses

    def _met_all(self, name: NodeName) -> bool:
        """Nobody is left to ask."""
        return all(
            self._ledger.met(name, node.name) or self._is_guilty(node.name)
            for node in self._nodes
            if node.name != name
        )

    def _is_cut_off(self, name: NodeName) -> bool:
        """Whether the node passes inside its domain only, and fails outside of it only."""
        domain = self._domain_of[name]
        if domain is None or not self._has_passed(name):
            return False
        return all(
            trial.passed == all(self._domain_of.get(other) == domain for other in trial.others(name))
            for trial in self._ledger.of(name)
            if trial.passed or not self._is_explained(trial.members)
        )

    def _blame_links(self) -> bool:
        pairs = {frozenset(t.members) for t in self._open_failures() if len(t.members) == 2}
        guilty = {pair: tuple(self._ledger.of_pair(pair)) for pair in pairs if self._is_link(pair)}
        self._found.links.update(guilty)
        return bool(guilty)

    def _is_link(self, pair: Link) -> bool:
        if not self._fails_only_together(pair):
            return False
        trials = self._ledger.of_pair(pair)
        failed = sum(not trial.passed for trial in trials)
        return all(
            _log_likelihood(failed, len(trials) + self._passes(name, without=pair - {name}))
            - _log_likelihood(failed, len(trials))
            <= log(self._rules.link_likelihood_ratio)
            for name in pair
        )

    def _fails_only_together(self, pair: Link) -> bool:
        """Both passed without the other, and have no open failure without the other."""
        return all(
            self._passes(name, without=pair - {name}) > 0
            and all(pair.issubset(trial.members) for trial in self._open_failures_of(name))
            for name in pair
        )

    def _standing(self, name: NodeName) -> Standing:
        if self._is_guilty(name):
            return Standing.GUILTY
        if name in self._found.cut_off:
            return Standing.CUT_OFF
        if not self._has_passed(name):
            return Standing.SUSPECT if self._open_failures_of(name) else Standing.UNTESTED
        contested = self._contested_failures_of(name)
        if not contested:
            return Standing.TRUSTED
        since = self._ledger.passes(name, after=contested[-1].round)
        if since >= self._rules.clearing_passes:
            return Standing.CLEARED
        presumed = all(self._is_rather_anothers(trial, name) for trial in contested)
        return Standing.PRESUMED if presumed else Standing.CONTESTED

    def _reruns(self) -> tuple[Link, ...]:
        """Pairs to try again: their last trial failed, and each has passed without the other since."""
        wanted: dict[Link, None] = {}
        for failure in filter(self._is_contested, self._open_failures()):
            for pair in map(frozenset, combinations(failure.members, 2)):
                last = (self._ledger.of_pair(pair) or [failure])[-1]
                if last.passed or not self._fails_only_together(pair):
                    continue
                if all(self._ledger.passes(name, pair - {name}, after=last.round) for name in pair):
                    wanted[pair] = None
        return tuple(wanted)

    def _passes(self, name: NodeName, without: Collection[NodeName] = ()) -> int:
        return self._ledger.passes(name, without) + (VOUCHED_PASSES if name in self._vouched else 0)

    def _has_passed(self, name: NodeName) -> bool:
        return self._passes(name) > 0

    def _open_failures(self) -> list[Trial]:
        return [t for t in self._ledger.trials if not t.passed and not self._is_explained(t.members)]

    def _open_failures_of(self, name: NodeName) -> list[Trial]:
        return [t for t in self._ledger.of(name) if not t.passed and not self._is_explained(t.members)]

    def _contested_failures_of(self, name: NodeName) -> list[Trial]:
        return [trial for trial in self._open_failures_of(name) if self._is_contested(trial)]

    def _is_contested(self, trial: Trial) -> bool:
        """Everybody in it passes elsewhere. A failure with one who never passed is presumably that one's."""
        return all(self._has_passed(member) for member in trial.members)

    def _is_guilty(self, name: NodeName) -> bool:
        return name in self._found.guilty or name in self._condemned

    def _is_explained(self, members: Sequence[NodeName]) -> bool:
        return (
            any(self._is_guilty(name) for name in members)
            or any(frozenset(pair) in self._found.links for pair in combinations(members, 2))
            or (
                any(name in self._found.cut_off for name in members)
                and len({self._domain_of.get(name) for name in members}) > 1
            )
        )


def _share_a_node(failures: Sequence[Trial]) -> bool:
    """Whether one node takes part in every failure."""
    return bool(failures) and bool(set(failures[0].members).intersection(*(t.members for t in failures)))


def _log_likelihood(failed: int, trials: int) -> float:
    """Of `failed` failures in `trials`, at the failure probability that fits best."""
    passed = trials - failed
    return sum(count * log(count / trials) for count in (failed, passed) if count)
