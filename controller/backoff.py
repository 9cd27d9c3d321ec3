"""Exponential back-off with jitter."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass
class Backoff:
    """Waits that double from `base_seconds` to `cap_seconds`, each drawn from its upper half.

    The jitter spreads the retries of clients that failed together.
    """

    base_seconds: float
    cap_seconds: float

    failures: int = 0

    def next_seconds(self) -> float:
        ceiling = min(self.cap_seconds, self.base_seconds * 2.0 ** min(self.failures, 60))
        self.failures += 1
        return ceiling * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self.failures = 0
