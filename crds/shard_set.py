"""What a shard set is, as every worker that pulls from it has to name it.

Controller, agents and SDK share this module: it imports the standard library alone, on Python 3.10 too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crds.intervals import Intervals, count
from crds.protocol import ShardSetDefinition


@dataclass(frozen=True)
class Definition:
    """What a process names when it begins to pull."""

    name: str
    epoch: int
    size: int
    digest: str
    retries: int
    max_failed: int

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Definition:
        """Read the definition from JSON.

        Raises:
            KeyError, TypeError, ValueError: a field is missing or wrong.
        """
        return cls(
            str(fields["name"]),
            int(fields.get("epoch") or 0),
            int(fields["size"]),
            str(fields.get("digest") or ""),
            int(fields.get("retries") or 0),
            int(fields.get("maxFailed") or 0),
        )

    def to_wire(self) -> ShardSetDefinition:
        """What `parse` reads."""
        return {
            "name": self.name,
            "epoch": self.epoch,
            "size": self.size,
            "digest": self.digest,
            "retries": self.retries,
            "maxFailed": self.max_failed,
        }

    @property
    def content(self) -> tuple[object, ...]:
        """What all workers have to say alike."""
        return self.size, self.digest, self.retries, self.max_failed

    def failure(self, failed: Intervals, reason: str, places: str = "") -> str:
        """That more has failed than may, in one sentence.

        Args:
            failed: the elements that did, for good.
            reason: of the first; may be empty.
            places: the elements as they are to be named; empty: only how many they are.
        """
        elements = "1 element" if count(failed) == 1 else f"{count(failed)} elements"
        named = f"{elements} ({places})" if places else elements
        return (
            f"shard set {self.name!r} has failed: {named} failed more than {self.retries} times, and "
            f"max_failed is {self.max_failed}; the first: {reason or 'no reason was given'}"
        )
