"""Report of a probe, as one line of JSON: its ending, figures and faults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from crds.actions import Action
from crds.agent_report import ProbeEnding

BLAMING = frozenset({ProbeEnding.FAILED, ProbeEnding.TIMED_OUT, ProbeEnding.CRASHED})


@dataclass(frozen=True)
class ProbeReport:
    """Result of one probe."""

    ending: ProbeEnding
    reason: str = ""
    """Reason, in one sentence; empty if it passed."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Figures by name with unit; those for comparing nodes are named as in
    `healthcheck.measurements.Metric`."""
    faults: tuple[str, ...] = ()
    """Faults of devices, a sentence each."""
    notes: tuple[str, ...] = ()
    """Facts for a person that do not affect the verdict: what is unknown, what slows a device."""
    action: Action | None = None
    """Remedy for its faults, if it is certain."""
    signal: str = ""
    """Signal that ended it, such as SIGSEGV."""
    wedged: bool = False
    """Whether its process cannot be killed. The runner adds this and the fields below."""
    probe: str = ""
    """Name of the probe."""
    seconds: float = 0.0
    """Wall time from the start of the process to its end."""
    stderr_tail: str = ""

    def to_json(self) -> str:
        """Return the report as one line."""
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
        """Read a report. Raises ValueError if the line is not one."""
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
    """Ends a probe with a message; each subclass with another ending."""

    ending = ProbeEnding.FAILED
    action: Action | None = None


class WrongResult(ProbeError):
    """The device computes or copies wrongly, which no reset fixes."""

    action = Action.REPLACE


class Skipped(ProbeError):
    ending = ProbeEnding.SKIPPED


class ProbeUnavailable(ProbeError):
    ending = ProbeEnding.UNAVAILABLE
