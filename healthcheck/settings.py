"""The numbers that the diagnosis rests on, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from healthcheck.measurements import Metric


@dataclass(frozen=True)
class Rules:
    """How much evidence one symptom (failed, or slow) needs."""

    witnesses: int = 3
    """A node is guilty once it failed with this many distinct, credible partners. For a healthy node to get
    there, as many partners must be at fault, each only with this node."""
    witnesses_if_one_explains_all: int = 2
    """The same, where one node takes part in every failure seen: any other story needs two faults."""
    clearing_passes: int = 9
    """A node with an unexplained failure is cleared by this many passes in a row: a fault that hits 30 % of
    the tests stays hidden that long with 0.7⁹ = 4 %."""
    link_likelihood_ratio: float = 0.01
    """A link is guilty once an intermittent fault of either node explains it all a hundred times worse."""


@dataclass(frozen=True)
class Settings:
    screening_rounds: int = 1
    """Rounds in which everybody is tested. One sees all hard faults; each further one meets other partners,
    and sees a share p of the intermittent faults still unseen that fail a share p of their tests."""
    rotation: int = 0
    """Any number of 0 or more that differs from check to check: which partners round 1 gives."""
    most_rounds: int = 12
    """One to see a failure, nine to clear an innocent (`Rules.clearing_passes`), two to re-run its pair. Hard
    faults in up to N/4 nodes need 2 to 4."""
    most_rounds_without_a_pass: int = 4
    """While fewer than half of the nodes are faulty, some healthy pair meets by then. If nothing passes, it
    is likelier to be the software or its settings, and every further round costs a time-out."""
    most_tests_without_a_pass: int = 200
    """The same in tests: in so many pairs, two healthy nodes have met if fewer than half are faulty."""
    failed: Rules = field(default_factory=Rules)
    slow: Rules = field(default_factory=lambda: Rules(clearing_passes=2))
    """Traffic of others slows a healthy pair now and then: two fast tests are enough."""

    straggler_ratio: float = 1.5
    """Slower than this many times what is typical is suspicious whatever the spread."""
    small_fleet_ratio: float = 1.2
    """The same where there are too few values for a spread: twice what healthy units may differ."""
    false_straggler_chance: float = 0.01
    """That anybody at all is suspected in a check of a healthy fleet, over all nodes and figures."""
    remeasurements: int = 2
    """A suspect measures again so often, in a round each, and is slow only if it is each time: noise with
    heavy tails exceeds any limit once among thousands of values, and not three times in a row."""
    confirming_share: float = 2 / 3
    """Of the loss of speed that raises a suspicion, so much confirms it."""
    most_rounds_about_slowness: int = 8
    """After so many rounds nobody is asked about speed any more: traffic that comes and goes has no end."""
    least_slowdown: Mapping[Metric, float] = field(default_factory=lambda: {Metric.PAIR_LATENCY_US: 0.5})
    """The absolute floor: up to this share off what is typical is not slow, however small the spread."""
    least_slowdown_default: float = 0.05
    least_of_a_kind: int = 2
    least_share_of_a_kind: float = 0.05
    """So many nodes of a class, and such a share of it, that are slow alike are another kind of hardware."""
    minimums: Mapping[tuple[str, Metric], float] = field(default_factory=dict)
    """By hardware class: the worst acceptable value, whatever the others show. The only way to judge the
    network of two or three nodes."""
    references: Mapping[tuple[str, Metric], float] = field(default_factory=dict)
    """By hardware class: what was typical in earlier checks (`healthcheck.stragglers.references_of`)."""

    significance: float = 0.05
    """Failures cluster in a rack if chance would put so many there with less than this probability."""

    def floor(self, metric: Metric) -> float:
        return self.least_slowdown.get(metric, self.least_slowdown_default)
