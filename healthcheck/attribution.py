"""Attribution of failed trials to nodes, links or a part of the network, or to nothing certain.

This is system-level diagnosis by mutual tests (Preparata, Metze and Chien, 1967), where tests also fail by
chance. A failed test between two nodes accuses both; their other tests can acquit them.

* A *witness* against a node is a partner that passes elsewhere, and whose other failures have other causes.
* A *node* is guilty when it failed with three distinct witnesses, and its odds (`healthcheck.odds`) are high
  enough for one healthy node in a thousand checks to get there. A partner counts once: repeated
  failures of a pair are evidence about their link, not about either node.
* A *cut* is suspected where nodes pass only among themselves, and proven when neither bad luck nor a bad
  connection out of their rack is a likely cause for any group of that size. Failures across it accuse no
  node; so a node that never passed is guilty only if it also failed with others outside the main part,
  which is unlikely behind a cut (`healthcheck.parts`).
* A *link* is guilty when its pair fails again and again while both of its nodes pass elsewhere, so that an
  intermittent fault of either node explains it far worse (a generalised likelihood ratio).

All evidence against a node is weighed against the results of the other nodes without it. So a pass of a
node never raises its odds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import combinations
from math import log

from healthcheck.borders import Borders
from healthcheck.fleet import Link, Node, NodeName
from healthcheck.odds import Tests, log_odds
from healthcheck.parts import Components, Cuts, Outside, cuts_of, log_parts
from healthcheck.settings import Rules
from healthcheck.trials import Ledger, Trial

MOST_BAD_LINKS = 2
"""Maximum number of bad links of a node: one that failed with more partners has a fault itself."""


class NodeStanding(StrEnum):
    UNTESTED = "untested"
    """No trial of the node counts."""
    TRUSTED = "trusted"
    """It passed, and there is no open evidence against it."""
    SUSPECT = "suspect"
    """It failed and never passed."""
    CONTESTED = "contested"
    """It failed with a partner that passes elsewhere, as it does itself."""
    DOUBTED = "doubted"
    """Contested, but it passed so often elsewhere that it is probably healthy."""
    CLEARED = "cleared"
    """It was contested, and has passed often enough since."""
    CUT_OFF = "cut-off"
    """It passes with some nodes, but all their tests with the others failed."""
    GUILTY = "guilty"


OPEN = frozenset({NodeStanding.UNTESTED, NodeStanding.SUSPECT, NodeStanding.CONTESTED, NodeStanding.DOUBTED})
"""Standings for which another test may help."""


@dataclass
class Attribution:
    """Attribution of one symptom's trials. Filled by `attribute`, read-only afterwards."""

    components: Components
    guilty: dict[NodeName, tuple[Trial, ...]] = field(default_factory=dict)
    """Guilty nodes, with the failed trials with their witnesses."""
    odds: dict[NodeName, float] = field(default_factory=dict)
    """Natural logarithm of the odds of each node that failed with a witness."""
    links: dict[Link, tuple[Trial, ...]] = field(default_factory=dict)
    """Guilty links, with all trials of the pair."""
    cuts: Cuts = field(default_factory=Cuts)
    outside: frozenset[NodeName] = frozenset()
    """Nodes that do not reach the main part of the fleet. If they are behind a cut, they reach each other."""
    stranded: frozenset[NodeName] = frozenset()
    """Nodes that never passed and may be healthy behind a cut: they next meet others from outside."""
    accused: frozenset[NodeName] = frozenset()
    """Nodes that need no further failure with the main part to be guilty."""
    standings: dict[NodeName, NodeStanding] = field(default_factory=dict)
    reruns: tuple[Link, ...] = ()
    """Failed pairs that should meet again, to distinguish a link from a node."""


def attribute(
    ledger: Ledger,
    nodes: Sequence[Node],
    condemned: Collection[NodeName],
    rules: Rules,
    absent: Collection[NodeName] = (),
) -> Attribution:
    """Blame the fewest nodes and links that explain the failures, and only if nothing else does.

    Args:
        condemned: nodes found faulty by other evidence; failures with them accuse no other node.
        absent: nodes that cannot be tested further.
    """
    by_name = {node.name: node for node in nodes}
    return _Inquiry(ledger, by_name, frozenset(condemned), rules, frozenset(absent)).run()


@dataclass
class _Inquiry:
    _ledger: Ledger
    _nodes: Mapping[NodeName, Node]
    _condemned: frozenset[NodeName]
    _rules: Rules
    _absent: frozenset[NodeName]

    def __post_init__(self) -> None:
        self._out = self._condemned | self._absent
        self._needed = log(self._rules.odds_a_node * max(len(self._nodes), self._rules.least_nodes))
        self._components = Components(tuple(self._nodes), self._ledger.trials, self._vouched())
        self._borders = Borders(self._ledger, self._nodes.values(), self._components, self._condemned)
        self._found = Attribution(self._components)
        self._passes: dict[tuple[NodeName, ...], int] = {}
        self._testimonies: dict[NodeName, tuple[Trial, ...]] = {}

    def run(self) -> Attribution:
        found = self._found
        found.cuts = cuts_of(
            tuple(self._nodes), self._crossing, self._components, self._is_proven, self._are_no_bad_luck
        )
        cut_off = {name for cut in found.cuts.proven for name in cut.nodes}
        alone = (n for n in self._nodes if self._components.size(n) == 1 and n not in self._condemned)
        found.outside = frozenset((*alone, *cut_off, *found.cuts.open))
        for name in self._nodes:
            testimony = self._testimony(name)
            if testimony:
                self._testimonies[name] = testimony
                found.odds[name] = self._odds(name, testimony)
        found.guilty = self._guilty()
        found.links = {pair: tuple(self._ledger.of_pair(pair)) for pair in self._pairs if self._is_link(pair)}
        found.standings = {name: self._standing(name, cut_off) for name in self._nodes}
        found.stranded = frozenset(
            name
            for name in found.outside
            if found.standings[name] is NodeStanding.SUSPECT and not self._fails_outside(name)
        )
        found.reruns = tuple(pair for pair in self._pairs if self._wants_rerun(pair))
        return found

    # --- nodes ----------------------------------------------------------------------------------------

    def _guilty(self) -> dict[NodeName, tuple[Trial, ...]]:
        """Return the guilty nodes, all judged by the same state, so that their order does not matter."""
        accused: dict[NodeName, tuple[Trial, ...]] = {}
        for name, testimony in self._testimonies.items():
            inside = self._inside(name, testimony)
            if len(inside) < self._rules.witnesses or self._odds(name, inside) < self._needed:
                continue
            witnesses = {other for trial in inside for other in trial.others(name)}
            failed = [t for t in self._failures_of(name) if witnesses.issuperset(t.others(name))]
            if len(failed) >= self._rules.failures:
                accused[name] = inside
        in_main = {name for name in accused if self._fails_in_main(name)}
        sure = {name for name in accused if self._ledger.passes(name)}
        sure |= {name for name in in_main if self._fails_outside(name)}
        self._found.accused = frozenset(in_main)
        unsettled = self._found.outside - self._out - sure
        return {
            name: inside
            for name, inside in accused.items()
            if name in sure or (name in in_main and unsettled <= {name})
        }

    def _fails_in_main(self, name: NodeName) -> bool:
        """Return whether its failures with the main part exceed the bad luck of a node that belongs there."""
        outside = self._found.outside
        failures = sum(outside.isdisjoint(trial.others(name)) for trial in self._failures_of(name))
        return self._are_no_bad_luck(failures, len(self._nodes) - len(outside))

    def _fails_outside(self, name: NodeName) -> bool:
        """Return whether its failures outside the main part exceed the bad luck of a node behind a cut."""
        return self._are_no_bad_luck(self._outside.failures_against(name), len(self._found.outside))

    def _are_no_bad_luck(self, failures: int, nodes: int = 1) -> bool:
        """Return whether it is unlikely that any of `nodes` nodes fails so often on its own side of a cut."""
        needed = log(self._rules.odds_behind_cut * max(1, nodes))
        return (
            failures > 1 and log_odds(failures, 0, *self._background) >= needed
        )  # one failure may be its partner's fault

    @cached_property
    def _outside(self) -> Outside:
        odds = self._rules.odds_unseen_part
        return Outside(self._found.outside, self._failed_trials, self._components, self._out, odds)

    def _testimony(self, name: NodeName) -> tuple[Trial, ...]:
        """Return failures of the node with witnesses, each witness counted once."""
        chosen: list[Trial] = []
        counted: set[NodeName] = set()
        for trial in sorted(self._failures_of(name), key=lambda t: (len(t.members), t.round)):
            others = trial.others(name)
            if counted.isdisjoint(others) and all(self._is_witness(other, name) for other in others):
                chosen.append(trial)
                counted.update(others)
        return tuple(chosen)

    def _is_witness(self, witness: NodeName, against: NodeName) -> bool:
        others = [t for t in self._failures_of(witness) if against not in t.members]
        passes = self._passes_without(witness, against)
        if not others and self._nodes[witness].vouches(self._rules.vouch_seconds):
            passes += 1
        return passes > 0 and all(self._is_anothers(trial, witness, against) for trial in others)

    def _is_anothers(self, trial: Trial, witness: NodeName, against: NodeName) -> bool:
        """Return whether another node in this failure of the witness never passes, or fails with more
        partners."""
        for other in trial.others(witness):
            if not self._passes_without(other, against, witness):
                return True
            if self._contestants(other, (against, witness)) > self._contestants(witness, (against, other)):
                return True
        return False

    def _contestants(self, name: NodeName, without: tuple[NodeName, ...]) -> int:
        """Return the number of partners that have passed elsewhere and that the node failed with."""
        partners = self._partners_failed.get(name, frozenset())
        return len(partners) - sum(other in partners for other in without)

    def _odds(self, name: NodeName, testimony: Sequence[Trial]) -> float:
        """Return the log odds against bad luck, and against a rack or switch with an unreliable uplink."""
        failed, passed = self._background
        passes = self._ledger.passes(name)
        others = Tests(failed - len(self._accidents.get(name, ())), passed - passes)
        odds = log_odds(len(testimony), passes, *others, self._ledger.failed_again(testimony))
        at_border = self._borders.least_log_odds(name, testimony, others)
        return odds if at_border is None else min(odds, at_border)

    def _inside(self, name: NodeName, testimony: Sequence[Trial]) -> tuple[Trial, ...]:
        return tuple(trial for trial in testimony if not self._is_across(trial))

    # --- links ----------------------------------------------------------------------------------------

    @cached_property
    def _pairs(self) -> tuple[Link, ...]:
        """Pairs whose last test failed, although both nodes pass elsewhere and have no fault."""
        pairs: dict[Link, None] = {}
        for trial in self._ledger.trials:
            if trial.passed or self._is_across(trial):
                continue
            for pair in map(frozenset, combinations(trial.members, 2)):
                if all(self._may_have_bad_link(name, pair) for name in pair):
                    pairs[pair] = None
        return tuple(pair for pair in pairs if not self._last_passed(pair))

    def _may_have_bad_link(self, name: NodeName, pair: Link) -> bool:
        return (
            name not in self._condemned
            and name not in self._found.guilty
            and self._passes_without(name, *(pair - {name})) > 0
            and self._contestants(name, ()) <= MOST_BAD_LINKS
        )

    def _last_passed(self, pair: Link) -> bool:
        trials = self._ledger.of_pair(pair)
        return bool(trials) and trials[-1].passed

    def _is_link(self, pair: Link) -> bool:
        trials = self._ledger.of_pair(pair)
        failed = sum(not trial.passed for trial in trials)
        background_failed, background_passed = self._background
        odds = log_odds(failed, len(trials) - failed, max(0, background_failed - 1), background_passed)
        return odds >= self._needed and all(
            _log_likelihood(failed, len(trials)) + log(self._rules.link_likelihood_ratio)
            >= _log_likelihood(failed, len(trials) + self._passes_without(name, *(pair - {name})))
            for name in pair
        )

    def _wants_rerun(self, pair: Link) -> bool:
        """Return whether both nodes have passed so often elsewhere that the link is the likelier cause."""
        if pair in self._found.links:
            return False
        meetings = len(self._ledger.of_pair(pair))
        return all(self._passes_without(name, *(pair - {name})) > meetings + 1 for name in pair)

    # --- standings ------------------------------------------------------------------------------------

    def _standing(self, name: NodeName, cut_off: Collection[NodeName]) -> NodeStanding:
        if name in self._found.guilty or name in self._condemned:
            return NodeStanding.GUILTY
        if name in cut_off:
            return NodeStanding.CUT_OFF
        if not self._ledger.passes(name):
            if self._failures_of(name):
                return NodeStanding.SUSPECT
            return NodeStanding.TRUSTED if self._nodes[name].vouched else NodeStanding.UNTESTED
        if name in self._found.cuts.open:
            return NodeStanding.CONTESTED
        inside = self._inside(name, self._testimonies.get(name, ()))
        if not inside or any(frozenset(trial.members) in self._found.links for trial in inside):
            return NodeStanding.TRUSTED
        odds = self._odds(name, inside)
        if odds <= log(self._rules.cleared_odds):
            return NodeStanding.CLEARED
        return NodeStanding.CONTESTED if odds > log(self._rules.open_odds) else NodeStanding.DOUBTED

    def _vouched(self) -> list[NodeName]:
        """Return nodes that recently passed with each other, and have since failed with at most one
        partner."""
        return [
            node.name
            for node in self._nodes.values()
            if node.vouches(self._rules.vouch_seconds)
            and len({other for trial in self._failures_of(node.name) for other in trial.others(node.name)})
            < 2
        ]

    # --- trials ---------------------------------------------------------------------------------------

    def _failures_of(self, name: NodeName) -> Sequence[Trial]:
        """Return the node's failures that no condemned node explains."""
        return self._failures.get(name, ())

    @cached_property
    def _failures(self) -> Mapping[NodeName, list[Trial]]:
        failures: dict[NodeName, list[Trial]] = {}
        for trial in self._ledger.trials:
            if not trial.passed and self._condemned.isdisjoint(trial.members):
                for name in trial.members:
                    failures.setdefault(name, []).append(trial)
        return failures

    @cached_property
    def _partners_failed(self) -> Mapping[NodeName, frozenset[NodeName]]:
        """Partners that have passed elsewhere and that a node failed with, by node."""
        return {
            name: frozenset(o for t in failures for o in t.others(name) if self._ledger.passes(o))
            for name, failures in self._failures.items()
        }

    def _passes_without(self, name: NodeName, *others: NodeName) -> int:
        key = (name, *others)
        if key not in self._passes:
            self._passes[key] = self._ledger.passes(name, others)
        return self._passes[key]

    def _is_across(self, trial: Trial) -> bool:
        return any(self._components.are_cut(a, b) for a, b in combinations(trial.members, 2))

    @cached_property
    def _crossing(self) -> tuple[Trial, ...]:
        """Failures between parts that no chain of passes connects."""
        return tuple(filter(self._is_across, self._failed_trials))

    @cached_property
    def _failed_trials(self) -> tuple[Trial, ...]:
        """Failures that no condemned node explains, each once."""
        return tuple({trial: None for trials in self._failures.values() for trial in trials})

    def _is_proven(self, part: Collection[NodeName], crossing: Collection[Trial]) -> bool:
        """Return whether these failures without a pass exceed bad luck around any part of that size.

        The part was selected by its failures, so all parts that might have been selected are counted
        (Bonferroni).
        """
        failures = len(crossing)
        needed = self._needed + log_parts(len(part), failures)
        odds = log_odds(failures, 0, *self._background)
        at_border = self._borders.least_log_odds_around(part, crossing, Tests(*self._background))
        return failures >= self._rules.failures and min(odds, at_border) >= needed

    @cached_property
    def _accidents(self) -> Mapping[NodeName, list[Link]]:
        """Groups that failed although all members pass elsewhere, by member."""
        accidents: dict[NodeName, list[Link]] = {}
        for members in {frozenset(t.members): None for t in self._open_failures()}:
            for name in members:
                accidents.setdefault(name, []).append(members)
        return accidents

    def _open_failures(self) -> Iterator[Trial]:
        for trial in self._ledger.trials:
            if trial.passed or not self._condemned.isdisjoint(trial.members) or self._is_across(trial):
                continue
            if all(self._ledger.passes(name) for name in trial.members):
                yield trial

    @cached_property
    def _background(self) -> tuple[int, int]:
        """Number of failures that may be accidents, and of passes."""
        failed = len({frozenset(trial.members) for trial in self._open_failures()})
        return failed, sum(trial.passed for trial in self._ledger.trials)


def _log_likelihood(failed: int, trials: int) -> float:
    """Return the log likelihood of the failures at the best-fitting failure probability."""
    passed = trials - failed
    return sum(count * log(count / trials) for count in (failed, passed) if count)
