"""A job's world, as its status has it: one list of members a round, to which the agents converge."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import Field, SerializerFunctionWrapHandler, WithJsonSchema, model_serializer, model_validator

from crds.checkpoint_files import Tier
from crds.intervals import PATTERN
from crds.model import Members, Model, cut
from crds.phases import RendezvousPhase
from crds.ranges import (
    MAX_GROUPS,
    MAX_INCARNATIONS_CHARACTERS,
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
    """What a world has gone on from, as its rank 0's agent tells when its processes have loaded it."""

    step: Annotated[int, Field(ge=0)] | None = None
    """Unset where an older agent says it of storage."""
    tier: Tier


class World(Model):
    """One member list per round; agents converge to it."""

    round: Annotated[int, Field(ge=0)] = 0
    """Counts up with every world formed; 0 before the first."""
    phase: RendezvousPhase = RendezvousPhase.FORMING
    members: Members = Field(default_factory=list)
    """Worker indices as ranges, such as `0-41,43-9998`; scattered ones are packed (`z…`, `r…`). Rank is the
    place among them: they ascend, but by domain where the job has `elasticPolicy.domain`."""
    incarnations: Annotated[
        list[Annotated[int, Field(ge=1, le=MAX_INCARNATION)]],
        WithJsonSchema(
            {
                "type": "object",
                "maxProperties": MAX_GROUPS,
                "additionalProperties": {
                    "type": "string",
                    "pattern": INCARNATIONS_PATTERN,
                    "maxLength": MAX_INCARNATIONS_CHARACTERS,
                },
            }
        ),
    ] = Field(default_factory=list)
    """The members of each incarnation; `*` is all others, and members that are not named have 1.
    Where that would be long, `each` has the incarnations of all members, packed (`z…`)."""
    world_size: Annotated[int, Field(ge=0)] = 0
    """Processes in all."""
    master_address: Annotated[str, Field(max_length=253)] = ""
    """Rank 0's agent store."""
    master_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    broken_round: Annotated[int, Field(ge=0)] = 0
    """The newest round of which training processes died; 0 before the first. Whoever still runs it, or an
    older one, waits for the dead. A planned change and a Pod deleted in good order leave no dead."""

    @model_validator(mode="before")
    @classmethod
    def _parallel(cls, data: Any) -> Any:
        """Read the wire form. In Python, `incarnations` has one for each member."""
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
        """The members, for those who ask for many of them."""
        return dict(zip(self.members, self.incarnations, strict=True))


class Rendezvous(World):
    """The desired world, with its reasons and times. Agents read it from the ElasticWorld."""

    reason: Annotated[str, cut(MAX_WORLD_REASON), Field(max_length=MAX_WORLD_REASON)] = ""
    """Why this world was formed, or why the last one is being given up."""
    waits_for: Annotated[str, cut(MAX_WAITS_FOR), Field(max_length=MAX_WAITS_FOR)] = ""
    """What the next world waits for at the moment; empty if nothing."""
    formed_at: datetime | None = None
    reforming_since: datetime | None = None
    """Time from which a broken world waits for a replacement."""
    hang_since: datetime | None = None
    """Time from which the members of a world that hangs are asked where their processes are; unset when that
    is judged."""
    checkpoint_awaited_since: datetime | None = None
    """Time from which ready workers wait for a checkpoint to join: the next one is reported at once."""
    resume: Resume | None = None
    """What the processes of this round have gone on from, where the job keeps checkpoints in memory; for
    people."""

    @property
    def why(self) -> str:
        """The reason, and what is waited for, in one line."""
        return "; ".join(text for text in (self.reason, self.waits_for) if text)
