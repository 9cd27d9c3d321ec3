"""How much more likely a fault makes what was seen of a node than bad luck does.

A fault fails each test with some probability, of which nothing is known but that it is one of a few, and bad
luck with the probability of the background: what makes tests of healthy nodes fail. The background is not
known either. It has a Beta prior, and learns from the tests that the node took no part in, so that a fleet
whose tests fail now and then needs more evidence against each of its nodes (Beta-binomial marginals).

The odds are a test martingale: for a node that only bad luck hits, they reach x with a probability of at
most 1/x, whoever its partners were and whenever one stops (Ville, 1939; Wald's sequential test rests on it).
"""

from __future__ import annotations

from math import exp, lgamma, log

FAULT_RATES = (1.0, 0.9, 0.7, 0.5, 0.3)
"""The shares of its tests that a faulty part may fail, equally likely."""
BACKGROUND_FAILED, BACKGROUND_PASSED = 1.0, 50.0
"""What is believed of the background before any test: about 2 % fail, as if so many had been seen."""
WELL_ABOVE = 2.0
"""A fault fails so many times as often as the background does, or it cannot be told from it."""


def log_odds(failed: int, passed: int, others_failed: int, others_passed: int) -> float:
    """The logarithm of P(seen | fault) / P(seen | bad luck).

    Args:
        failed: independent failures of the node.
        passed: its passes.
        others_failed: failures of the tests that it took no part in, as far as no fault explains them.
        others_passed: the passes among those.
    """
    alpha, beta = BACKGROUND_FAILED + others_failed, BACKGROUND_PASSED + others_passed
    background = alpha / (alpha + beta)
    fault = sum(
        exp(failed * log(rate) + (passed * log(1 - rate) if passed else 0.0)) / len(FAULT_RATES)
        for rate in FAULT_RATES
        if rate >= WELL_ABOVE * background and (rate < 1 or not passed)
    )
    return log(fault) - _log_luck(failed, passed, alpha, beta) if fault else -float("inf")


def _log_luck(failed: int, passed: int, alpha: float, beta: float) -> float:
    """Of so many failures and passes in this order, at a failure rate drawn from Beta(alpha, beta)."""
    return (
        lgamma(alpha + failed) - lgamma(alpha) + lgamma(beta + passed) - lgamma(beta)
        + lgamma(alpha + beta) - lgamma(alpha + beta + failed + passed)
    )  # fmt: skip
