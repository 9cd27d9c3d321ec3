"""The shards that a job's workers pull, in its status (docs/shards.md)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from pydantic import Field

from crds.model import cut
from crds.shard_set import MAX_SHARD_REASON, MAX_SHARD_SETS, Definition

MAX_LEASES_TEXT = 262_144
MAX_REST_TEXT = 262_144
MAX_FAILED_TEXT = 131_072
MAX_SHARDS_DONE = 128


@dataclass(frozen=True, kw_only=True)
class ShardSetStatus(Definition):
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


ShardSets = Annotated[
    list[ShardSetStatus],
    Field(
        max_length=MAX_SHARD_SETS,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    ),
]
