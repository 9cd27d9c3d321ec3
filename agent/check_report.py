"""What a worker found out for a NodeCheck: `status.agent.check`, within the bounds that the CRD sets.

It says how each probe ended, and nothing about who is to blame: the controller judges, over all nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from agent.failure import clip
from healthcheck.probes.runner import ProbeResult

TEXT_BYTES, HEAD_BYTES = 1024, 512
SENTENCES = 32
FIGURES = 64
PAIRS = 32

Outcome = Mapping[str, Any]
"""Of one probe, as it is written."""


@dataclass(frozen=True)
class CheckReport:
    """For one NodeCheck."""

    uid: str
    """The NodeCheck's."""
    local: tuple[Outcome, ...] = ()
    """Empty until all local tests have ended."""
    pairs: tuple[Outcome, ...] = ()
    """By round, ascending."""

    @property
    def last_round(self) -> int:
        """The highest whose test is told; 0 before the first."""
        return max((int(pair["round"]) for pair in self.pairs), default=0)

    def with_local(self, results: Sequence[ProbeResult]) -> CheckReport:
        return replace(self, local=tuple(map(outcome, results)))

    def with_pair(self, round_: int, result: ProbeResult) -> CheckReport:
        return replace(self, pairs=(*self.pairs, {"round": round_, **outcome(result)})[-PAIRS:])

    def to_status(self) -> dict[str, Any]:
        return {"uid": self.uid, "local": list(self.local), "pairs": list(self.pairs)}

    @classmethod
    def from_status(cls, status: Mapping[str, Any] | None) -> CheckReport | None:
        """What an earlier agent of this Pod wrote goes on to count: its node is the same."""
        if not status:
            return None
        return cls(str(status["uid"]), tuple(status.get("local") or ()), tuple(status.get("pairs") or ()))


def outcome(result: ProbeResult) -> Outcome:
    """One probe's, as the CRD takes it."""
    report = result.report
    return {
        "probe": result.probe,
        "ending": report.ending.value,
        "reason": _clip(report.reason),
        "figures": {
            name: value for name, value in islice(report.figures.items(), FIGURES) if math.isfinite(value)
        },
        "faults": _sentences(report.faults),
        "notes": _sentences(report.notes),
        "seconds": round(result.seconds, 3),
    }


def _sentences(texts: Iterable[str]) -> list[str]:
    return [_clip(text) for text in islice(texts, SENTENCES)]


def _clip(text: str) -> str:
    return clip(text, TEXT_BYTES, head=HEAD_BYTES)
