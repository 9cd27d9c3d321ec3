"""The numbers that the diagnosis rests on, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from healthcheck.measurements import Metric


@dataclass(frozen=True)
class Rules:
    """How much evidence one symptom (failed, or slow) needs."""

    witnesses: int = 3
    """A node is guilty once it failed with this many distinct, credible partners. Two bad links at one node
    give two."""
    failures: int = 5
    """And in so many tests: after the first few, it hardly shows how often tests of healthy nodes fail. If
    that is one in twenty, one healthy node in three million fails its first five."""
    odds_a_node: float = 2_000.0
    """And once a fault explains what was seen so many times better than bad luck, times the number of nodes:
    a healthy node gets there in one check of 2,000 at most."""
    odds_behind_cut: float = 4_000.0
    """A node that never passed is none behind a cut once its failures outside of the main part are so many
    times likelier, times the nodes there, than by bad luck: mostly after three, in fleets of up to a hundred
    where one test in a hundred fails by chance."""
    odds_unseen_part: float = 200.0
    """And once all failures there are so many times likelier without an unseen part of the network than with
    one of a third as many nodes as are broken."""
    least_nodes: int = 25
    """Fleets of fewer nodes ask for the odds of so many."""
    cleared_odds: float = 0.5
    """A node that failed is cleared once bad luck explains it twice as well as a fault does."""
    open_odds: float = 10.0
    """A node whose tests ended before it was cleared is inconclusive above these odds, and else healthy: with
    one faulty node in a hundred, nine of ten such are well."""
    link_likelihood_ratio: float = 0.01
    """A link is guilty once an intermittent fault of either node explains it all a hundred times worse."""
    vouch_seconds: float = 86_400.0
    """A vouch that is older makes no witness: its node has to pass again first."""


@dataclass(frozen=True)
class Settings:
    screening_rounds: int = 2
    """Rounds in which everybody is tested, each with another partner. One sees all hard faults; each further
    one sees a share p of the intermittent faults still unseen that fail a share p of their tests, and one
    pair in N - 1 of the links. Two join all nodes in one chain, so that a part that is cut off shows."""
    rotation: int = 0
    """Which of the N - 1 rounds of a round-robin comes first, so that another check meets other links."""
    most_rounds: int = 36
    """Hard faults in up to half of the nodes need 5 to 19; a node that fails now and then needs the others,
    to be proven faulty or to be cleared."""
    most_rounds_without_a_pass: int = 4
    """While fewer than half of the nodes are faulty, some healthy pair meets by then. If nothing passes, the
    software or its settings are likelier to blame."""
    most_tests_without_a_pass: int = 200
    """The same in tests: in so many pairs, two healthy nodes have met if fewer than half are faulty."""
    failed: Rules = field(default_factory=Rules)
    slow: Rules = field(default_factory=lambda: Rules(failures=4, odds_a_node=400.0, odds_unseen_part=1.0))
    """Slow networks cordon nobody, and few rounds are about them."""
    own_report: Rules = field(default_factory=lambda: Rules(odds_a_node=200.0))
    """Rules for silence and for crashes of probes: both are rare among healthy nodes, and costly."""

    straggler_ratio: float = 1.5
    """Slower than this many times what is typical is suspicious whatever the spread."""
    small_fleet_ratio: float = 1.2
    """The same where there are too few values for a spread: twice what healthy units may differ."""
    false_straggler_chance: float = 0.01
    """That anybody at all is suspected in a check of a healthy fleet, over all nodes and figures."""
    remeasurements: int = 2
    """A suspect measures again so often, in a round each, and is slow only if it is each time: noise with
    heavy tails exceeds any limit once among thousands of values."""
    confirming_share: float = 2 / 3
    """Share of the suspected loss of speed that confirms the suspicion."""
    most_rounds_about_slowness: int = 8
    """After so many rounds no node is tested for its speed: traffic that comes and goes has no end."""
    least_slowdown: Mapping[Metric, float] = field(default_factory=lambda: {Metric.PAIR_LATENCY_US: 0.5})
    """The absolute floor: up to this share off what is typical is not slow, however small the spread."""
    least_slowdown_default: float = 0.05
    least_of_a_kind: int = 2
    least_share_of_a_kind: float = 0.05
    """So many nodes of a class, and such a share of it, that are slow alike are another kind of hardware."""
    references: Mapping[tuple[str, Metric], float] = field(default_factory=dict)
    """Typical values of earlier checks (`healthcheck.stragglers.references_of`), by hardware class."""

    by_class: Mapping[str, Settings] = field(default_factory=dict)
    """Settings of hardware classes of which something else makes a node slow."""

    significance: float = 0.05
    """Failures cluster in a rack if chance would put so many there with less than this probability."""

    def of_class(self, hardware_class: str) -> Settings:
        """The settings by which the speed of nodes of one hardware class is judged."""
        return self.by_class.get(hardware_class, self)

    def floor(self, metric: Metric) -> float:
        return self.least_slowdown.get(metric, self.least_slowdown_default)
