"""ShardSet: the elements of one data set that the workers of a job pull, with their leases (docs/shards.md).

The agents of these workers watch it; their own reports have their requests and results.
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
    """Number of elements that are done. Work on a lease counts with the worker's next lease."""
    leased: Annotated[int, Field(ge=0)] = 0
    waiting: Annotated[int, Field(ge=0)] = 0
    """Number of waiting elements, including those that failed and get another try."""
    failed: Annotated[int, Field(ge=0)] = 0
    """Number of elements that failed for good."""
    rest: Annotated[str, Field(max_length=MAX_REST_TEXT)] = ""
    """Waiting elements: ranges such as `0-41,43`, or packed (crds/intervals.py)."""
    leases: Annotated[str, Field(max_length=MAX_LEASES_TEXT)] = ""
    """Leases of workers: `worker.incarnation.number=elements`, or packed (crds/leases.py)."""
    tried: Annotated[str, Field(max_length=MAX_FAILED_TEXT)] = ""
    """Elements that failed and get another try, each list after the workers that it failed on."""
    again: Annotated[str, Field(max_length=MAX_FAILED_TEXT)] = ""
    """The same for elements that are leased again."""
    failed_elements: Annotated[str, Field(max_length=MAX_FAILED_TEXT)] = ""
    """Elements that failed for good, in the format of `rest`."""
    last_lease: Annotated[int, Field(ge=0)] = 0
    """Number of the newest lease."""
    restoration: Annotated[int, Field(ge=0)] = 0
    """Number of the last restoration, in which a checkpoint of the set determined what is done."""
    reason: Annotated[str, cut(MAX_SHARD_REASON), Field(max_length=MAX_SHARD_REASON)] = ""
    """Why the first element failed."""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class ShardSetSpec(Model):
    """Identity of the shard set."""

    model_config = ConfigDict(
        json_schema_extra=rules(cel("self == oldSelf", "jobName and setName cannot be changed"))
    )

    job_name: Name
    set_name: Annotated[str, Field(min_length=1, max_length=63)]
    """Name by which scripts pull from the set."""


class ShardSet(Model):
    """A data set that the workers of an ElasticJob pull from. Written by the controller."""

    metadata: ObjectMeta
    spec: ShardSetSpec
    status: ShardSetStatus | None = None
