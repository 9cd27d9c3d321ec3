"""ShardSet: the elements of one data set that the workers of a job pull, with their leases (docs/shards.md).

The agents that pull watch it; what they ask for and what became of it is in their own reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from pydantic import ConfigDict, Field

from crds.model import Model, Name, ObjectMeta, cel, cut, rules
from crds.shard_set import MAX_SHARD_REASON, SetDefinition

MAX_LEASES_TEXT = 262_144
MAX_REST_TEXT = 262_144
MAX_FAILED_TEXT = 131_072


@dataclass(frozen=True, kw_only=True)
class ShardSetStatus(SetDefinition):
    """Elements that the job's workers pull, each done once or more (docs/shards.md)."""

    done: Annotated[int, Field(ge=0)] = 0
    """Elements that are done. What a worker does of a lease counts with its next lease."""
    leased: Annotated[int, Field(ge=0)] = 0
    waiting: Annotated[int, Field(ge=0)] = 0
    """Elements that wait, those that failed and get another try included."""
    failed: Annotated[int, Field(ge=0)] = 0
    """Elements that failed for good."""
    rest: Annotated[str, Field(max_length=MAX_REST_TEXT)] = ""
    """The elements that wait: ranges such as `0-41,43`, or packed (crds/intervals.py)."""
    leases: Annotated[str, Field(max_length=MAX_LEASES_TEXT)] = ""
    """Leases of workers: `worker.incarnation.number=elements`, or packed (crds/leases.py)."""
    tried: Annotated[str, Field(max_length=MAX_FAILED_TEXT)] = ""
    """Elements that failed and get another try, behind the workers that they failed on."""
    again: Annotated[str, Field(max_length=MAX_FAILED_TEXT)] = ""
    """The same of such elements that are leased."""
    failed_elements: Annotated[str, Field(max_length=MAX_FAILED_TEXT)] = ""
    """Elements that failed for good, as `rest`."""
    last_lease: Annotated[int, Field(ge=0)] = 0
    """The number of the newest lease."""
    restoration: Annotated[int, Field(ge=0)] = 0
    """The number of the last restoration: what is done was set by a checkpoint of the set."""
    reason: Annotated[str, cut(MAX_SHARD_REASON), Field(max_length=MAX_SHARD_REASON)] = ""
    """Why the first element failed."""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class ShardSetSpec(Model):
    """What it is of."""

    model_config = ConfigDict(
        json_schema_extra=rules(cel("self == oldSelf", "jobName and setName cannot be changed"))
    )

    job_name: Name
    set_name: Annotated[str, Field(min_length=1, max_length=63)]
    """The name by which scripts pull from it."""


class ShardSet(Model):
    """A data set that the workers of an ElasticJob pull from. Written by the controller."""

    metadata: ObjectMeta
    spec: ShardSetSpec
    status: ShardSetStatus | None = None
