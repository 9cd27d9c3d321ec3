"""Exponential back-off with jitter, as a value: each wait says what the next one may be."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass
class Backoff:
    """Waits that double from `base_seconds` to `cap_seconds`, each drawn from its upper half.

    The jitter keeps many clients that failed together from asking again together.
    """

    base_seconds: float
    cap_seconds: float
    draw: random.Random = field(default_factory=random.Random, repr=False)
    failures: int = 0

    def next_seconds(self) -> float:
        ceiling = min(self.cap_seconds, self.base_seconds * 2.0 ** min(self.failures, 60))
        self.failures += 1
        return ceiling * self.draw.uniform(0.5, 1.0)

    def reset(self) -> None:
        self.failures = 0
