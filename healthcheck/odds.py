"""Odds of a fault against bad luck, from a node's results.

A fault fails each test with one of a few probabilities, equally likely; bad luck fails it with the
background probability, at which tests of healthy nodes fail. The background has a Beta prior, updated from
the tests without the node, so that a fleet with occasional failures needs more evidence against each node
(Beta-binomial marginals).

The odds are a test martingale: for a node with only bad luck, they reach x with a probability of at most
1/x, whatever its partners and whenever testing stops (Ville, 1939; the basis of Wald's sequential test).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, lgamma, log
from typing import NamedTuple

FAULT_RATES = (1.0, 0.9, 0.7, 0.5, 0.3)
"""Shares of its tests that a faulty part may fail, equally likely."""
BACKGROUND_FAILED, BACKGROUND_PASSED = 1.0, 40.0
"""Prior of the background: 2 or 3 % fail, with the weight of this many tests."""
BORDER_FAILED, BORDER_PASSED = 1.0, 9.0
"""Prior of tests across the border of one rack or switch, which has its own rate."""
BAD_LINK = 0.001
"""Prior share of bad links."""
WELL_ABOVE = 2.0
"""Minimum ratio of a fault's failure rate to the background's; a rarer fault cannot be distinguished."""


class Tests(NamedTuple):
    """Numbers of failed and passed tests."""

    failed: int
    passed: int

    def without(self, other: Tests) -> Tests:
        return Tests(self.failed - other.failed, self.passed - other.passed)


def log_odds(
    failed: int, passed: int, others_failed: int, others_passed: int, again: Sequence[int] = ()
) -> float:
    """Return the logarithm of P(seen | fault) / P(seen | bad luck).

    Args:
        failed: independent failures of the node, each with a different partner.
        others_failed: failed tests without the node that no fault explains.
        others_passed: passed tests without the node.
        again: number of further failures with each partner that it never passed with: hardly by accident,
            but maybe due to a bad link.
    """
    believed = _Belief(BACKGROUND_FAILED + others_failed, BACKGROUND_PASSED + others_passed)
    fault = _log_fault(Tests(failed + sum(again), passed), believed.mean)
    return fault - believed.log_luck(Tests(failed, passed)) - believed.log_luck_again(again)


def log_odds_at_border(
    across: Tests, within: Tests, others_across: Tests, others: Tests, again: Sequence[int] = ()
) -> float:
    """Return the same if tests across a border have the border's own rate of bad luck.

    If most of them fail, as for a rack that is cut off, tests across do not count for the node.

    Args:
        across: the node's tests across the border, repeated partners included.
        within: its other tests, as `log_odds` takes them.
        others_across: the tests across the border without the node.
        others: all tests without the node.
        again: as in `log_odds`, for the tests within.
    """
    border = _Belief(BORDER_FAILED + others_across.failed, BORDER_PASSED + others_across.passed)
    fleet = _Belief(BACKGROUND_FAILED + others.failed, BACKGROUND_PASSED + others.passed)
    if WELL_ABOVE * border.mean > max(FAULT_RATES):
        return log_odds(*within, *others, again)
    seen = Tests(across.failed + within.failed + sum(again), across.passed + within.passed)
    fault = _log_fault(seen, max(border.mean, fleet.mean))
    return fault - border.log_luck(across) - fleet.log_luck(within) - fleet.log_luck_again(again)


def _log_fault(seen: Tests, background: float) -> float:
    """Return the log likelihood of the tests under a fault whose rate exceeds the background enough."""
    likelihood = sum(
        exp(seen.failed * log(rate) + (seen.passed * log(1 - rate) if seen.passed else 0.0))
        for rate in FAULT_RATES
        if rate >= WELL_ABOVE * background and (rate < 1 or not seen.passed)
    )
    return log(likelihood / len(FAULT_RATES)) if likelihood else -inf


class _Belief(NamedTuple):
    """Estimate of a failure rate: a Beta distribution."""

    alpha: float
    beta: float

    @property
    def mean(self) -> float:
        return self.alpha / (self.alpha + self.beta)

    def log_luck(self, seen: Tests) -> float:
        """Return the log likelihood of these failures and passes, in this order."""
        alpha, beta = self
        return (
            lgamma(alpha + seen.failed) - lgamma(alpha) + lgamma(beta + seen.passed) - lgamma(beta)
            + lgamma(alpha + beta) - lgamma(alpha + beta + sum(seen))
        )  # fmt: skip

    def log_luck_again(self, again: Sequence[int]) -> float:
        """Return the same for pairs with further failures: by accident again, or due to bad links."""
        return sum(min(0.0, log(BAD_LINK / self.mean + self.mean**times)) for times in again)
