"""What a training process asks its saver for."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from agent.memory.slot import Mark


@dataclass(frozen=True)
class Request:
    """What is to be written."""

    slot: str
    """Its path."""
    step: int
    round: int
    rank: int
    world_size: int
    path: str
    attempt: str
    job: str
    keep: int | None
    writer: str = ""
    """Pickle of the user's own writer, in hexadecimal; empty for torch's."""

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @property
    def mark(self) -> Mark:
        return Mark(self.round, self.step, self.rank, self.world_size)
