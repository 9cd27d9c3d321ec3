"""A NodeCheck as one worker sees it: plain data and one decision.

As with the job, the agent is level-triggered: `next_duty` decides from the newest state of the check and the
worker's own report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from agent.facts.failure import clip
from agent.facts.world import Member
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
from crds.phases import CHECK_TIMEOUT_SECONDS, NodeCheckPhase
from crds.ranges import from_text
from healthcheck.probes.report import ProbeReport
from healthcheck.probes.suite import AGAIN

HEAD_BYTES = 256
"""Length of the beginning of a long text that is kept; the rest is its end."""


@dataclass(frozen=True)
class LocalTests:
    """Tests of a node by itself."""

    check_uid: str


@dataclass(frozen=True)
class PairTest:
    """Test of a group of nodes in one round."""

    check_uid: str
    round: int
    members: tuple[str, ...]
    """Names of nodes, in rank order."""
    rank: int
    master_address: str
    master_port: int
    """Port of the first member's agent, in whose store the group meets."""

    @property
    def others(self) -> bool:
        """Whether the group has other members; if not, the node measures itself once more."""
        return len(self.members) > 1


Duty = LocalTests | PairTest


@dataclass(frozen=True)
class WorkerCheck:
    """One worker's part of a NodeCheck. The default stands for a missing check."""

    uid: str = ""
    phase: str = ""
    duty: Duty | None = None
    """Duty of the worker in the check's current round."""
    timeout_seconds: float = CHECK_TIMEOUT_SECONDS
    """Time limit for the node's answer."""
    accelerator: str = ""
    """An `Accelerator`: the kind that the node must have, or NONE to test none."""

    @property
    def over(self) -> bool:
        """Whether the check has ended or is missing."""
        return not self.uid or self.phase in (NodeCheckPhase.SUCCEEDED, NodeCheckPhase.FAILED)

    @classmethod
    def parse(cls, check: Mapping[str, Any], me: Member) -> WorkerCheck:
        """Return the part of `me`; raise KeyError, TypeError or ValueError if it is not a NodeCheck."""
        uid = str(check["metadata"]["uid"])
        spec, status = check.get("spec") or {}, check.get("status") or {}
        phase = str(status.get("phase") or "")
        return cls(
            uid=uid,
            phase=phase,
            duty=_duty(uid, status, me) if phase == NodeCheckPhase.RUNNING else None,
            timeout_seconds=float(spec.get("timeoutSeconds") or CHECK_TIMEOUT_SECONDS),
            accelerator=str(spec.get("accelerator") or ""),
        )


def next_duty(view: WorkerCheck, report: AgentCheck | None) -> Duty | None:
    """Return the duty that the worker has to carry out now; None if there is none.

    Args:
        report: the worker's report, on this check or another.
    """
    duty = view.duty
    if duty is None:
        return None
    done = report if report is not None and report.uid == view.uid else AgentCheck(view.uid)
    if isinstance(duty, LocalTests):
        return None if done.local or done.pairs else duty
    return duty if duty.round > last_round(done) else None


def _duty(uid: str, status: Mapping[str, Any], me: Member) -> Duty | None:
    place = _place_of(status, me)
    if place is None or status.get("round") is None:
        return None
    if place in from_text((status.get("nodeSets") or {}).get("Withdrawn") or ""):
        return None  # another check may test it by now
    node, round_ = str(status["nodes"][place]), int(status["round"])
    if round_ == 0:
        return None if node in (status.get("reused") or ()) else LocalTests(uid)
    for group in status.get("groups") or ():
        members = tuple(map(str, group["members"]))
        if node in members:
            address, port = str(group["masterAddress"]), int(group["masterPort"])
            return PairTest(uid, round_, members, members.index(node), address, port)
    return None


def _place_of(status: Mapping[str, Any], me: Member) -> int | None:
    """Return the index in `nodes` of the node of `me`.

    None if the worker does not take part, or only another incarnation of it does.
    """
    workers = zip(status.get("workers") or (), status.get("incarnations") or (), strict=True)
    for place, (index, incarnation) in enumerate(workers):
        if me == Member(int(index), int(incarnation)):
            return place
    return None


def last_round(check: AgentCheck) -> int:
    """Return the highest round whose test has been reported; 0 before the first."""
    return max((pair.round for pair in check.pairs), default=0)


def with_local(check: AgentCheck, results: Sequence[ProbeReport]) -> AgentCheck:
    """Return the report with the results of the local tests."""
    return replace(check, local=tuple(ProbeOutcome(**_outcome(result)) for result in results))


def with_pair(check: AgentCheck, round_: int, result: ProbeReport) -> AgentCheck:
    """Return the report with the result of a round's test, in place of the oldest if there are many.

    A repeated measurement of the node itself stays, since the controller has no other copy of it.
    """
    pairs = [*check.pairs, PairOutcome(round=round_, **_outcome(result))]
    if len(pairs) > MAX_PAIR_PROBES:
        pairs.remove(next((pair for pair in pairs if pair.probe != AGAIN), pairs[0]))
    return replace(check, pairs=tuple(pairs))


def _outcome(report: ProbeReport) -> dict[str, Any]:
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
        "action": report.action,
        "signal": report.signal,
        "notes": _sentences(report.notes),
        "seconds": round(report.seconds, 3),
    }


def _sentences(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(_clip(text) for text in islice(texts, MAX_SENTENCES))


def _clip(text: str) -> str:
    return clip(text, MAX_SENTENCE, head=HEAD_BYTES)
