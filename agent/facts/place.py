"""The place of a training process in a world."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Place(NamedTuple):
    """Rank of a process, and number of ranks."""

    rank: int
    world_size: int

    @classmethod
    def in_round(cls, environ: Mapping[str, str]) -> Place:
        """Return the place in the round of the environment."""
        return cls(int(environ["RANK"]), int(environ["WORLD_SIZE"]))
