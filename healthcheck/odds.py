"""How much more likely a fault makes a node's results than bad luck does.

A fault fails each test with one of a few probabilities, equally likely, and bad luck with that of the
background, by which tests of healthy nodes fail. The background has a Beta prior, and learns from the tests
that the node took no part in, so that a fleet whose tests fail now and then needs more evidence against each
of its nodes (Beta-binomial marginals).

The odds are a test martingale: for a node that only bad luck hits, they reach x with a probability of at
most 1/x, whatever its partners and whenever one stops (Ville, 1939; Wald's sequential test rests on it).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, lgamma, log
from typing import NamedTuple

FAULT_RATES = (1.0, 0.9, 0.7, 0.5, 0.3)
"""The shares of its tests that a faulty part may fail, equally likely."""
BACKGROUND_FAILED, BACKGROUND_PASSED = 1.0, 40.0
"""The prior of the background: 2 or 3 % fail, as if so many tests had been seen."""
BORDER_FAILED, BORDER_PASSED = 1.0, 9.0
"""The prior of tests across the border of one rack or switch, which has a rate of its own."""
BAD_LINK = 0.001
"""The prior share of links that are bad."""
WELL_ABOVE = 2.0
"""A fault fails so many times as often as the background does; a rarer one does not stand out."""


class Tests(NamedTuple):
    """How some tests ended."""

    failed: int
    passed: int

    def without(self, other: Tests) -> Tests:
        return Tests(self.failed - other.failed, self.passed - other.passed)


def log_odds(
    failed: int, passed: int, others_failed: int, others_passed: int, again: Sequence[int] = ()
) -> float:
    """The logarithm of P(seen | fault) / P(seen | bad luck).

    Args:
        failed: independent failures of the node, each with another partner.
        others_failed: failures of the tests that it took no part in and that no fault explains.
        others_passed: passes of the tests that it took no part in.
        again: how often it failed again with each partner that it never passed with: hardly by accident, but
            maybe by a bad link.
    """
    believed = _Belief(BACKGROUND_FAILED + others_failed, BACKGROUND_PASSED + others_passed)
    fault = _log_fault(Tests(failed + sum(again), passed), believed.mean)
    return fault - believed.log_luck(Tests(failed, passed)) - believed.log_luck_again(again)


def log_odds_at_border(
    across: Tests, within: Tests, others_across: Tests, others: Tests, again: Sequence[int] = ()
) -> float:
    """The same, where the bad luck of tests across a border is that of the border.

    Where most of them fail, as of a rack that is cut off, tests across do not count for the node.

    Args:
        across: the node's tests across it, also with the same partner.
        within: its other tests, as `log_odds` takes them.
        others_across: the tests across the border that the node took no part in.
        others: all of these.
        again: of the tests within.
    """
    border = _Belief(BORDER_FAILED + others_across.failed, BORDER_PASSED + others_across.passed)
    fleet = _Belief(BACKGROUND_FAILED + others.failed, BACKGROUND_PASSED + others.passed)
    if WELL_ABOVE * border.mean > max(FAULT_RATES):
        return log_odds(*within, *others, again)
    seen = Tests(across.failed + within.failed + sum(again), across.passed + within.passed)
    fault = _log_fault(seen, max(border.mean, fleet.mean))
    return fault - border.log_luck(across) - fleet.log_luck(within) - fleet.log_luck_again(again)


def _log_fault(seen: Tests, background: float) -> float:
    """The log likelihood of the tests under a fault whose rate stands out from the background."""
    likelihood = sum(
        exp(seen.failed * log(rate) + (seen.passed * log(1 - rate) if seen.passed else 0.0))
        for rate in FAULT_RATES
        if rate >= WELL_ABOVE * background and (rate < 1 or not seen.passed)
    )
    return log(likelihood / len(FAULT_RATES)) if likelihood else -inf


class _Belief(NamedTuple):
    """A belief about a failure rate: a Beta distribution."""

    alpha: float
    beta: float

    @property
    def mean(self) -> float:
        return self.alpha / (self.alpha + self.beta)

    def log_luck(self, seen: Tests) -> float:
        """The log likelihood of these failures and passes, in this order."""
        alpha, beta = self
        return (
            lgamma(alpha + seen.failed) - lgamma(alpha) + lgamma(beta + seen.passed) - lgamma(beta)
            + lgamma(alpha + beta) - lgamma(alpha + beta + sum(seen))
        )  # fmt: skip

    def log_luck_again(self, again: Sequence[int]) -> float:
        """The same of pairs that failed so many times more: by accident again, or by bad links."""
        return sum(min(0.0, log(BAD_LINK / self.mean + self.mean**times)) for times in again)
