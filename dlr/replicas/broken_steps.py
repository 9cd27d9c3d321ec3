"""Recognition of errors that follow from a peer's death, after which a step is made again. Pure."""

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
"""Folders of torch with code that communicates, or depends on communication, including DDP and FSDP."""
MOST_CAUSES = 20
"""Most errors in a chain of causes that are inspected."""


def is_made_again(error: Exception | None, *, is_over: bool) -> bool:
    """Return whether a step is made again in the next round.

    After the end of its round, an interrupted step may raise any RuntimeError inside torch, and any error
    inside torch.distributed, DDP and FSDP: those count like a peer's death. Errors of the script's own code
    never count.

    Args:
        error: error that ended the step; None if it ended well.
        is_over: whether its round is over.
    """
    if error is None:
        return is_over
    return any(_tells_of_peer(each) or (is_over and _is_broken_off(each)) for each in _with_causes(error))


def text_of(error: Exception) -> str:
    """Return class and message of an error, or of the cause in it that tells of a peer: torch wraps those."""
    cause = next(filter(_tells_of_peer, _with_causes(error)), error)
    return f"{type(cause).__name__}: {str(cause).strip()}"


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    for _ in range(MOST_CAUSES):
        if error is None:
            return
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _tells_of_peer(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and _peer_deaths.explain(f"{type(error).__name__}: {error}")


def _is_broken_off(error: BaseException) -> bool:
    """Whether an error may be due to an interrupted collective, by the place where it was raised."""
    place = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        place = frame.f_code.co_filename
    return (
        isinstance(error, dist.DistError | RoundOverError)
        or place.startswith(_COMMUNICATES)
        or (isinstance(error, RuntimeError) and place.startswith(_TORCH))
    )
