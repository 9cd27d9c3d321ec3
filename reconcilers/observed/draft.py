"""The status of an ElasticJob that is about to be written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from crds.job_status import ElasticJobStatus
from reconcilers.observed.status_patch import merge_patch, validated_patch


@dataclass(frozen=True)
class Draft:
    """A status that may be written. Its wire form, which in a large job takes a while, is made once."""

    status: ElasticJobStatus
    stored: dict[str, Any]
    """The status as it is."""

    @cached_property
    def wire(self) -> dict[str, Any]:
        return self.status.to_wire()

    @cached_property
    def differs(self) -> bool:
        """Whether there is anything to write."""
        return bool(merge_patch(self.stored, self.wire))

    def of(self, status: ElasticJobStatus) -> Draft:
        """Returns a draft of another status; of the same one, what was computed is kept."""
        return self if status is self.status else replace(self, status=status)

    def having(self, **update: Any) -> Draft:
        return self.of(self.status.model_copy(update=update))

    def patch(self) -> dict[str, Any]:
        """To write; empty if that is nothing.

        Raises:
            StatusBeyondLimits: by `validated_patch`.
        """
        return validated_patch(self.stored, self.status, self.wire)
