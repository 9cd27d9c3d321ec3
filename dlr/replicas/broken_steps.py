"""Which errors of a step come of a peer's death, so that the step is made again. Pure."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from agent.survival.client import RoundOverError
from crds.failure_texts import PeerDeathTexts

_peer_deaths = PeerDeathTexts(re.compile)
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_COMMUNICATES = (f"{_TORCH}distributed{os.sep}", f"{_TORCH}nn{os.sep}parallel{os.sep}")
"""Folders of torch whose code communicates, or counts on what has been communicated: DDP's and FSDP's too."""
MOST_CAUSES = 20
"""Errors that are looked at behind one error."""


def is_made_again(error: Exception | None, *, is_over: bool) -> bool:
    """Tell whether a step is made again in the next round.

    In a round that is over, a step that was broken off half way may raise any RuntimeError from inside torch,
    and anything from inside torch.distributed, DDP and FSDP: those count as well as a peer's death, and an
    error of the script's own code counts nowhere.

    Args:
        error: by which the step has ended; None where it has ended well.
        is_over: its round is over.
    """
    if error is None:
        return is_over
    return any(_tells_of_peer(each) or (is_over and _is_broken_off(each)) for each in _with_causes(error))


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and those that it followed from."""
    for _ in range(MOST_CAUSES):
        if error is None:
            return
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _tells_of_peer(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and _peer_deaths.explain(f"{type(error).__name__}: {error}")


def _is_broken_off(error: BaseException) -> bool:
    """Whether an error may come of a collective that was broken off, by the place where it was raised."""
    place = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        place = frame.f_code.co_filename
    return (
        isinstance(error, dist.DistError | RoundOverError)
        or place.startswith(_COMMUNICATES)
        or (isinstance(error, RuntimeError) and place.startswith(_TORCH))
    )
