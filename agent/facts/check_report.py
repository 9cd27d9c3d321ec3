"""What a worker found out for a NodeCheck: `status.agent.check`, within the bounds that the CRD sets.

The report says how each probe ended, and not who is to blame: the controller judges that, over all nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from agent.facts.failure import clip
from crds.agent_report import (
    MAX_FIGURE_NAME,
    MAX_FIGURES,
    MAX_PAIR_PROBES,
    MAX_SENTENCE,
    MAX_SENTENCES,
    AgentCheck,
    PairOutcome,
    ProbeOutcome,
)
from healthcheck.probes.report import Report

HEAD_BYTES = 256
"""How much of the beginning of a text is kept if it is too long; the rest is its end."""


def last_round(check: AgentCheck) -> int:
    """Return the highest round whose test has been reported; 0 before the first."""
    return max((pair.round for pair in check.pairs), default=0)


def with_local(check: AgentCheck, results: Sequence[Report]) -> AgentCheck:
    """Return the report with the results of the local tests."""
    return replace(check, local=tuple(ProbeOutcome(**_outcome(result)) for result in results))


def with_pair(check: AgentCheck, round_: int, result: Report) -> AgentCheck:
    """Return the report with the result of a round's test."""
    pair = PairOutcome(round=round_, **_outcome(result))
    return replace(check, pairs=(*check.pairs, pair)[-MAX_PAIR_PROBES:])


def _outcome(report: Report) -> dict[str, Any]:
    """Return the fields of a ProbeOutcome."""
    return {
        "probe": report.probe,
        "ending": report.ending,
        "reason": _clip(report.reason),
        "figures": {
            name[:MAX_FIGURE_NAME]: value
            for name, value in islice(report.figures.items(), MAX_FIGURES)
            if math.isfinite(value)
        },
        "faults": _sentences(report.faults),
        "notes": _sentences(report.notes),
        "seconds": round(report.seconds, 3),
    }


def _sentences(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(_clip(text) for text in islice(texts, MAX_SENTENCES))


def _clip(text: str) -> str:
    return clip(text, MAX_SENTENCE, head=HEAD_BYTES)
