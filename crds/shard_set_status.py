"""The shards that a job's workers pull, in its status (docs/shards.md)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from crds.intervals import LIMIT
from crds.model import Count, Model, agreed, cut
from crds.protocol import MAX_SHARD_REASON, MAX_SHARD_RETRIES, MAX_SHARD_SETS, ShardSetDefinition

ShardSetName = Annotated[
    str, Field(min_length=1, max_length=63, pattern="^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
]

MAX_LEASES_TEXT = 262_144
MAX_REST_TEXT = 131_072
MAX_SHARDS_DONE = 128


@agreed(ShardSetDefinition)
class DefinedShardSet(Model):
    """What all who pull from a set say alike."""

    name: ShardSetName
    epoch: Count = 0
    size: Annotated[int, Field(ge=1, lt=LIMIT)]
    digest: Annotated[str, Field(max_length=64)] = ""
    """Digest of the elements and their order, if they have a text of their own."""
    retries: Annotated[int, Field(ge=0, le=MAX_SHARD_RETRIES)] = 0
    max_failed: Annotated[int, Field(ge=0, lt=LIMIT)] = 0
    """Number of elements that may fail for good before the job fails."""


class ShardSetStatus(DefinedShardSet):
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
    tried: Annotated[str, Field(max_length=MAX_REST_TEXT)] = ""
    """Elements that failed and get another try, behind the workers that they failed on."""
    again: Annotated[str, Field(max_length=MAX_REST_TEXT)] = ""
    """The same of such elements that are leased."""
    failed_elements: Annotated[str, Field(max_length=MAX_REST_TEXT)] = ""
    """Elements that failed for good, as `rest`."""
    last_lease: Annotated[int, Field(ge=0)] = 0
    """The number of the newest lease."""
    restoration: Annotated[int, Field(ge=0)] = 0
    """The number of the last restoration: what is done was set by a checkpoint of the set."""
    reason: Annotated[str, cut(MAX_SHARD_REASON), Field(max_length=MAX_SHARD_REASON)] = ""
    """Why the first element failed."""
    started_at: datetime | None = None
    finished_at: datetime | None = None


ShardSets = Annotated[
    list[ShardSetStatus],
    Field(
        max_length=MAX_SHARD_SETS,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    ),
]
