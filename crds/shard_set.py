"""Definition of a shard set, which all workers that pull from it must give alike.

Controller, agents and SDK share this module: it imports only the standard library and runs on Python 3.10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from crds.intervals import LIMIT, Intervals, count, numbers_of
from crds.wire import MAX_INTEGER, Limits, OnWire

ENV_SHARDS_SOCKET = "DLR_SHARDS_SOCKET"
"""Variable with the path of the agent's Unix socket, from which training processes pull shards."""
MAX_SHARD_SETS = 16
"""Shard sets of one job."""
MAX_SHARD_RETRIES = 16
MAX_SHARD_REASON = 256
"""Characters of the reason why an element failed."""
MAX_SHARD_RANGES = 4_000
"""Ranges of elements in one text of a report. A packed text of that length may have far more."""
MAX_SHARD_TEXT = 3_072
"""Characters of the elements that a restoration leaves undone."""


def object_name(job: str, number: int) -> str:
    """Return the name of the ShardSet with this number among those of a job, from 0 on."""
    return f"{job}-shards-{number}"


def names_of_sets(job: str) -> list[str]:
    """Return the names of all ShardSets that a job may have, each of which its agents may watch."""
    return [object_name(job, number) for number in range(MAX_SHARD_SETS)]


_NAME = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"


@dataclass(frozen=True)
class SetDefinition(OnWire):
    """Shard set, as every worker that pulls from it defines it."""

    name: Annotated[str, Limits(min_length=1, max_length=63, pattern=_NAME)]
    epoch: Annotated[int, Limits(at_least=0, at_most=MAX_INTEGER)]
    size: Annotated[int, Limits(at_least=1, at_most=LIMIT - 1)]
    digest: Annotated[str, Limits(max_length=64)]
    """Digest of the elements and their order, if the elements are given as text."""
    retries: Annotated[int, Limits(at_least=0, at_most=MAX_SHARD_RETRIES)]
    max_failed: Annotated[int, Limits(at_least=0, at_most=LIMIT - 1)]
    """Number of elements that may fail for good before the job fails."""

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> SetDefinition:
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

    @property
    def content(self) -> tuple[object, ...]:
        """Fields that must be equal for all workers."""
        return self.size, self.digest, self.retries, self.max_failed

    def failure(self, failed: Intervals, reason: str) -> str:
        """Return the message for too many failed elements, in one sentence.

        Args:
            failed: elements that failed for good.
            reason: why the first one failed; may be empty.
        """
        elements = "1 element" if count(failed) == 1 else f"{count(failed)} elements"
        return (
            f"shard set {self.name!r} has failed: {elements} ({numbers_of(failed)}) failed more than "
            f"{self.retries} times, and max_failed is {self.max_failed}; "
            f"the first: {reason or 'no reason was given'}"
        )
