"""Parameters of the diagnosis, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from healthcheck.measurements import Metric


@dataclass(frozen=True)
class Rules:
    """Required evidence for one symptom (failed, or slow)."""

    witnesses: int = 3
    """Distinct, credible partners that a guilty node must have failed with. Two bad links at one node provide
    two."""
    failures: int = 5
    """Failed tests that a guilty node must have: before that, the failure rate of healthy nodes hardly shows.
    If it is one in twenty, one healthy node in three million fails its first five tests."""
    odds_a_node: float = 2_000.0
    """Odds for a fault, times the number of nodes, that a guilty node must reach; at most one check in 2,000
    blames a healthy node."""
    odds_behind_cut: float = 4_000.0
    """Odds, times the nodes there, by which its failures outside the main part exclude that a node that never
    passed is behind a cut: mostly reached after three failures, in fleets of up to a hundred where one test
    in a hundred fails by chance."""
    odds_unseen_part: float = 200.0
    """Odds by which all failures there exclude an unseen part of the network with a third as many nodes as
    are broken."""
    least_nodes: int = 25
    """Minimum fleet size that is assumed for the required odds."""
    cleared_odds: float = 0.5
    """Odds below which a node that failed is cleared: bad luck explains it twice as well as a fault."""
    open_odds: float = 10.0
    """Odds above which a node that was not cleared is inconclusive, and otherwise healthy: with one faulty
    node in a hundred, nine of ten such nodes are healthy."""
    link_likelihood_ratio: float = 0.01
    """Likelihood ratio for a guilty link: an intermittent fault of either node explains everything a hundred
    times worse."""
    vouch_seconds: float = 86_400.0
    """Maximum age of a vouch for a witness; with an older one, the node has to pass again first."""


@dataclass(frozen=True)
class Settings:
    screening_rounds: int = 2
    """Rounds that test every node, each with a different partner. One detects all hard faults; each further
    one detects a share p of the remaining intermittent faults that fail a share p of their tests, and one in
    N - 1 of the links. Two connect all nodes in one chain, so that a part that is cut off shows."""
    rotation: int = 0
    """Number of the first of the N - 1 rounds of a round-robin, so that another check covers other links."""
    most_rounds: int = 36
    """Maximum rounds. Hard faults in up to half of the nodes need 5 to 19; intermittent ones need the others,
    to be proven or cleared."""
    most_rounds_without_a_pass: int = 4
    """Maximum rounds without a pass. If fewer than half of the nodes are faulty, a healthy pair has met by
    then; otherwise the software or its settings are the likelier cause."""
    most_tests_without_a_pass: int = 200
    """The same in tests: among so many pairs, two healthy nodes have met if fewer than half are faulty."""
    failed: Rules = field(default_factory=Rules)
    slow: Rules = field(default_factory=lambda: Rules(failures=4, odds_a_node=400.0, odds_unseen_part=1.0))
    """Rules for slowness: it cordons no node, and gets few rounds."""
    own_report: Rules = field(default_factory=lambda: Rules(odds_a_node=200.0))
    """Rules for silence and for crashes of probes: both are rare on healthy nodes, and costly."""

    straggler_ratio: float = 1.5
    """Slowdown relative to the typical value that is suspicious whatever the spread."""
    small_fleet_ratio: float = 1.2
    """The same with too few values for a spread: twice the usual difference of healthy units."""
    false_straggler_chance: float = 0.01
    """Probability that any node is suspected in a check of a healthy fleet, over all nodes and figures."""
    remeasurements: int = 2
    """Repeated measurements of a suspect, one per round. It is slow only if all of them are slow: noise with
    heavy tails exceeds any limit once among thousands of values."""
    confirming_share: float = 2 / 3
    """Share of the suspected loss of speed that confirms the suspicion."""
    most_rounds_about_slowness: int = 8
    """Rounds after which no node is tested for its speed: varying traffic never settles."""
    least_slowdown: Mapping[Metric, float] = field(default_factory=lambda: {Metric.PAIR_LATENCY_US: 0.5})
    """Minimum slowdown: up to this share below the typical value is not slow, however small the spread."""
    least_slowdown_default: float = 0.05
    least_of_a_kind: int = 2
    least_share_of_a_kind: float = 0.05
    """Minimum number and share of equally slow nodes of a class that count as another kind of hardware."""
    references: Mapping[tuple[str, Metric], float] = field(default_factory=dict)
    """Typical values of earlier checks (`healthcheck.stragglers.references_of`), by hardware class."""

    by_class: Mapping[str, Settings] = field(default_factory=dict)
    """Settings of hardware classes with other limits of slowness."""

    significance: float = 0.05
    """Probability of chance below which failures in a rack count as a cluster."""

    def of_class(self, hardware_class: str) -> Settings:
        """Return the settings for the speed of nodes of one hardware class."""
        return self.by_class.get(hardware_class, self)

    def floor(self, metric: Metric) -> float:
        return self.least_slowdown.get(metric, self.least_slowdown_default)
