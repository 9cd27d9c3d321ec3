"""World of a job: one list of members per round, to which the agents converge."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import Field, SerializerFunctionWrapHandler, WithJsonSchema, model_serializer, model_validator

from crds.checkpoint_files import Tier
from crds.intervals import PATTERN
from crds.model import Members, Model, cut
from crds.phases import RendezvousPhase
from crds.ranges import (
    MAX_INCARNATIONS_CHARACTERS,
    MAX_LISTED_INCARNATIONS,
    OTHERS,
    grouped,
    incarnations_of,
    ranked_from_text,
)

MAX_WORLD_REASON = 384
MAX_WAITS_FOR = 192
MAX_INCARNATION = 99_999

INCARNATIONS_PATTERN = rf"{PATTERN}|^\{OTHERS}$"


class Resume(Model):
    """Checkpoint that a world resumed from, as rank 0's agent reports once all processes have loaded it."""

    step: Annotated[int, Field(ge=0)] | None = None
    """Step of the checkpoint; older agents do not report it for storage."""
    tier: Tier


class World(Model):
    """List of members per round, to which the agents converge."""

    round: Annotated[int, Field(ge=0)] = 0
    """Rises with every world formed; 0 before the first."""
    phase: RendezvousPhase = RendezvousPhase.FORMING
    members: Members = Field(default_factory=list)
    """Worker indices as ranges, such as `0-41,43-9998`; scattered ones are packed (`z…`, `r…`). The position
    is the rank: indices ascend, or are sorted by domain if the job has `elasticPolicy.domain`."""
    incarnations: Annotated[
        list[Annotated[int, Field(ge=1, le=MAX_INCARNATION)]],
        WithJsonSchema(
            {
                "type": "object",
                "maxProperties": MAX_LISTED_INCARNATIONS,
                "additionalProperties": {
                    "type": "string",
                    "pattern": INCARNATIONS_PATTERN,
                    "maxLength": MAX_INCARNATIONS_CHARACTERS,
                },
            }
        ),
    ] = Field(default_factory=list)
    """Members of each incarnation; `*` means all others, and members that are not listed have incarnation 1.
    Where that would be long, `each` has the incarnations of all members, packed (`z…`)."""
    world_size: Annotated[int, Field(ge=0)] = 0
    """Total number of processes."""
    master_address: Annotated[str, Field(max_length=253)] = ""
    """Address of the store at rank 0's agent."""
    master_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    broken_round: Annotated[int, Field(ge=0)] = 0
    """Newest round in which training processes died; 0 before the first. Members of this or an older round
    wait for dead peers. A planned change or an orderly deletion of a Pod leaves none."""

    @model_validator(mode="before")
    @classmethod
    def _parallel(cls, data: Any) -> Any:
        """Read the wire form. In Python, `incarnations` has one entry per member."""
        if not isinstance(data, dict) or isinstance(data.get("incarnations"), list | tuple):
            return data
        members, groups = data.get("members") or [], data.get("incarnations") or {}
        texts = groups.values() if isinstance(groups, dict) else [None]
        if not (isinstance(members, str | list | tuple) and all(isinstance(each, str) for each in texts)):
            return data
        members = ranked_from_text(members) if isinstance(members, str) else members
        incarnations = incarnations_of(members, groups)
        return {**data, "members": members, "incarnations": incarnations}

    @model_validator(mode="after")
    def _one_each(self) -> Self:
        if len(self.members) != len(self.incarnations):
            raise ValueError(f"{len(self.members)} members have {len(self.incarnations)} incarnations")
        return self

    @model_serializer(mode="wrap")
    def _to_wire(self, serialized: SerializerFunctionWrapHandler) -> dict[str, Any]:
        wire: dict[str, Any] = serialized(self)
        wire["incarnations"] = grouped(self.members, self.incarnations)
        return wire

    def incarnation_by_index(self) -> dict[int, int]:
        """Return the incarnations by index, for many look-ups."""
        return dict(zip(self.members, self.incarnations, strict=True))


class Rendezvous(World):
    """Desired world, with its reasons and times. Agents read the world from the ElasticWorld."""

    reason: Annotated[str, cut(MAX_WORLD_REASON), Field(max_length=MAX_WORLD_REASON)] = ""
    """Why this world was formed, or why the last one is being given up."""
    waits_for: Annotated[str, cut(MAX_WAITS_FOR), Field(max_length=MAX_WAITS_FOR)] = ""
    """Event that the next world waits for at the moment; empty if there is none."""
    formed_at: datetime | None = None
    reforming_since: datetime | None = None
    """Time from which a broken world waits for a replacement."""
    hang_since: datetime | None = None
    """Time from which the members of a hung world are asked where their processes are; unset once the hang is
    judged."""
    checkpoint_awaited_since: datetime | None = None
    """Time from which ready workers wait for a checkpoint to join, so that the next one is reported at
    once."""
    resume: Resume | None = None
    """Checkpoint that this round resumed from, if the job keeps checkpoints in memory; for people only."""

    @property
    def why(self) -> str:
        """The reason, and what is waited for, in one line."""
        return "; ".join(text for text in (self.reason, self.waits_for) if text)
