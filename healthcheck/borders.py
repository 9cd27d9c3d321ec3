"""Results of tests across the border of a rack or switch, whose uplink may be bad for all of its nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from math import inf

from healthcheck.fleet import Domain, Node, NodeName
from healthcheck.odds import Tests, log_odds_at_border
from healthcheck.parts import Components
from healthcheck.trials import Ledger, Trial


class Borders:
    """Trials of one symptom across the borders of labelled domains."""

    def __init__(
        self,
        ledger: Ledger,
        nodes: Iterable[Node],
        components: Components,
        condemned: frozenset[NodeName],
    ) -> None:
        """`condemned` are nodes found faulty by other evidence, whose failures do not count for a border."""
        self._ledger = ledger
        self._nodes = tuple(nodes)
        self._components = components
        self._condemned = condemned
        self._crossed: dict[tuple[NodeName, ...], frozenset[Domain]] = {}

    def least_log_odds(self, name: NodeName, testimony: Sequence[Trial], others: Tests) -> float | None:
        """Return the log odds against a node relative to a domain's bad uplink; None if no domain applies.

        Args:
            others: all tests without the node, as `log_odds` takes them.
        """
        domains = {domain for trial in testimony for domain in self.crossed_by(trial)}
        own: defaultdict[Domain, list[Trial]] = defaultdict(list)
        for trial in self._ledger.of(name):
            for domain in self.crossed_by(trial):
                own[domain].append(trial)
        again = [(trial, self._ledger.failed_again([trial])) for trial in testimony]
        found = (self._log_odds(name, own[d], again, others, d) for d in domains if self._have_passed[d])
        return min(found, default=None)

    def least_log_odds_around(
        self, part: Iterable[NodeName], crossing: Collection[Trial], others: Tests
    ) -> float:
        """Return the same for a part that these tests did not get out of, which may lie in such a domain.

        A domain without any pass across its border is cut off itself, and explains nothing else.
        """
        odds = inf
        for domain in frozenset.intersection(*(self._domains[name] for name in part)):
            own = [trial for trial in crossing if domain in self.crossed_by(trial)]
            others_across = self._others_across(domain, own)
            if others_across.passed:
                across, within = Tests(len(own), 0), Tests(len(crossing) - len(own), 0)
                odds = min(odds, log_odds_at_border(across, within, others_across, others))
        return odds

    def _log_odds(
        self,
        name: NodeName,
        own: Sequence[Trial],
        testimony: Sequence[tuple[Trial, list[int]]],
        others: Tests,
        domain: Domain,
    ) -> float:
        """Return the log odds if the uplink of this domain is the best other explanation.

        Args:
            own: the node's trials across the domain's border.
            testimony: its failures that count, each with the number of further failures of that pair.
            others: all tests without the node.
        """
        crossing = [again for trial, again in testimony if domain in self.crossed_by(trial)]
        inside = [again for trial, again in testimony if domain not in self.crossed_by(trial)]
        passed = sum(trial.passed for trial in own)
        across = Tests(len(crossing) + sum(map(sum, crossing)), passed)
        within = Tests(len(inside), self._ledger.passes(name) - passed)
        others_across = self._others_across(domain, own)
        return log_odds_at_border(across, within, others_across, others, [*chain.from_iterable(inside)])

    def crossed_by(self, trial: Trial) -> frozenset[Domain]:
        """Return the domains that some members are in, and others not."""
        crossed = self._crossed.get(trial.members)
        if crossed is None:
            domains = [self._domains[name] for name in trial.members]
            crossed = frozenset.union(*domains) - frozenset.intersection(*domains)
            self._crossed[trial.members] = crossed
        return crossed

    @cached_property
    def _domains(self) -> Mapping[NodeName, frozenset[Domain]]:
        """Domains in which a node has neighbours: without any, nothing shows the state of its uplink."""
        sizes = Counter(domain for node in self._nodes for domain in node.domains)
        return {node.name: frozenset(d for d in node.domains if sizes[d] > 1) for node in self._nodes}

    @cached_property
    def _have_passed(self) -> Counter[Domain]:
        """Number of nodes with a pass, by domain. Without any, all its nodes may be broken."""
        passed = (node.name for node in self._nodes if self._ledger.passes(node.name))
        return Counter(domain for name in passed for domain in self._domains[name])

    def _others_across(self, domain: Domain, own: Iterable[Trial]) -> Tests:
        """Return the results of the tests across the border that count, without `own`."""
        passed = Counter(trial.passed for trial in own if self._counts(trial, domain))
        return self._across.get(domain, Tests(0, 0)).without(Tests(passed[False], passed[True]))

    @cached_property
    def _across(self) -> Mapping[Domain, Tests]:
        """Results of the tests across each domain's border that count, by domain."""
        ended: dict[Domain, Tests] = {}
        for trial in self._ledger.trials:
            for domain in self.crossed_by(trial):
                if self._counts(trial, domain):
                    failed, passed = ended.get(domain, (0, 0))
                    ended[domain] = Tests(failed + (not trial.passed), passed + trial.passed)
        return ended

    def _counts(self, trial: Trial, domain: Domain) -> bool:
        """Return whether a trial counts: it passed, or no member explains its failure by never passing, a
        fault or another cut."""
        if trial.passed:
            return True
        if not self._condemned.isdisjoint(trial.members) or not all(map(self._ledger.passes, trial.members)):
            return False
        cut_off = [name for name in trial.members if not self._components.is_in_main(name)]
        return not cut_off or any(domain in self._domains[name] for name in cut_off)
