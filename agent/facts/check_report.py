"""What a worker found out for a NodeCheck: `status.agent.check`, within the bounds that the CRD sets.

The report says how each probe ended, and not who is to blame: the controller judges that, over all nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from agent.facts.failure import clip
from agent.facts.limits import within_limits
from crds.protocol import (
    MAX_FIGURE_NAME,
    MAX_FIGURES,
    MAX_PAIR_PROBES,
    MAX_SENTENCE,
    MAX_SENTENCES,
    CheckStatus,
    PairProbeStatus,
    ProbeStatus,
)
from healthcheck.probes.report import Report

HEAD_BYTES = 256
"""How much of the beginning of a text is kept if it is too long; the rest is its end."""


@dataclass(frozen=True)
class CheckReport:
    """What a worker found out for one NodeCheck."""

    uid: str
    """Uid of the NodeCheck."""
    local: tuple[ProbeStatus, ...] = ()
    """Empty until all local tests have ended."""
    pairs: tuple[PairProbeStatus, ...] = ()
    """Pair tests by round, ascending."""

    @property
    def last_round(self) -> int:
        """The highest round whose test has been reported; 0 before the first."""
        return max((int(pair["round"]) for pair in self.pairs), default=0)

    def with_local(self, results: Sequence[Report]) -> CheckReport:
        """Return the report with the results of the local tests."""
        return replace(self, local=tuple(map(outcome, results)))

    def with_pair(self, round_: int, result: Report) -> CheckReport:
        """Return the report with the result of a round's test."""
        pair: PairProbeStatus = {"round": round_, **outcome(result)}
        return replace(self, pairs=(*self.pairs, pair)[-MAX_PAIR_PROBES:])

    def to_status(self) -> CheckStatus:
        return {"uid": self.uid, "local": list(self.local), "pairs": list(self.pairs)}

    @classmethod
    def from_status(cls, status: Mapping[str, Any] | None) -> CheckReport | None:
        """Return what an earlier agent of this Pod wrote: it goes on to count, since the node is the same."""
        if not status:
            return None
        return cls(str(status["uid"]), tuple(status.get("local") or ()), tuple(status.get("pairs") or ()))


def outcome(report: Report) -> ProbeStatus:
    """Return a probe's report as the CRD takes it."""
    return {
        "probe": report.probe,
        "ending": report.ending,
        "reason": _clip(report.reason),
        "figures": {
            name[:MAX_FIGURE_NAME]: within_limits(value)
            for name, value in islice(report.figures.items(), MAX_FIGURES)
            if math.isfinite(value)
        },
        "faults": _sentences(report.faults),
        "notes": _sentences(report.notes),
        "seconds": round(report.seconds, 3),
    }


def _sentences(texts: Iterable[str]) -> list[str]:
    return [_clip(text) for text in islice(texts, MAX_SENTENCES)]


def _clip(text: str) -> str:
    return clip(text, MAX_SENTENCE, head=HEAD_BYTES)
