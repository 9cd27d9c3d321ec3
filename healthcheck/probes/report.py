"""A probe's report, as one line of JSON: how it ended, what it measured, what it found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from crds.actions import Action
from crds.agent_report import ProbeEnding

BLAMING = frozenset({ProbeEnding.FAILED, ProbeEnding.TIMED_OUT, ProbeEnding.CRASHED})


@dataclass(frozen=True)
class ProbeReport:
    """How one probe ended."""

    ending: ProbeEnding
    reason: str = ""
    """One sentence; empty if it passed."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Named with their units; those that nodes are compared by, as in `healthcheck.measurements.Metric`."""
    faults: tuple[str, ...] = ()
    """Faults of devices, a sentence each."""
    notes: tuple[str, ...] = ()
    """Facts for a person, by which no node is judged: what is unknown here, what slows a device."""
    action: Action | None = None
    """What helps against its faults, where it is certain."""
    signal: str = ""
    """The signal that ended it, such as SIGSEGV."""
    wedged: bool = False
    """Its process cannot be killed. The runner adds this, and what follows."""
    probe: str = ""
    """Name of the probe."""
    seconds: float = 0.0
    """Wall time from the start of the process to its end."""
    stderr_tail: str = ""

    def to_json(self) -> str:
        """One line."""
        fields = {
            "ending": self.ending.value,
            "reason": self.reason,
            "figures": dict(self.figures),
            "faults": self.faults,
            "notes": self.notes,
            "action": self.action,
            "signal": self.signal,
        }
        return json.dumps(fields)

    @classmethod
    def from_json(cls, line: str) -> ProbeReport:
        """Raises ValueError if the line is not a report."""
        try:
            fields = json.loads(line)
            return cls(
                ProbeEnding(fields["ending"]),
                fields["reason"],
                fields["figures"],
                tuple(fields["faults"]),
                tuple(fields["notes"]),
                None if fields["action"] is None else Action(fields["action"]),
                fields["signal"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a report: {line[:200]!r}") from error


class ProbeError(Exception):
    """Ends a probe with a sentence; each kind with another ending."""

    ending = ProbeEnding.FAILED
    action: Action | None = None


class WrongResult(ProbeError):
    """The device computes or copies wrongly, which no reset mends."""

    action = Action.REPLACE


class Skipped(ProbeError):
    ending = ProbeEnding.SKIPPED


class ProbeUnavailable(ProbeError):
    ending = ProbeEnding.UNAVAILABLE
