"""The agent's slots, as far as this process may use them: they are for one Checkpointer of a start."""

from __future__ import annotations

import fcntl
import os

from agent.slots.slot import Slot
from dlr.checkpoint.surroundings import Surroundings


class GivenSlots:
    """The slots that the agent has for this process. Two processes in one slot would overwrite each other.

    Raises:
        RuntimeError: a Checkpointer uses them, of this process or of another one that has its environment.
    """

    def __init__(self, here: Surroundings) -> None:
        self.slots: list[Slot] = []
        self.refusal: str | None = None
        """Why there are none, though the agent has some."""
        self.holds_another = False
        """Whether an earlier Checkpointer of this start has saved into them."""
        self._claim = -1
        if not here.slots:
            return
        try:
            self._claim = _claim(here.file)
            slots = [Slot.open(path) for path in here.slots]
        except (OSError, ValueError) as error:
            self.refusal = f"there are no checkpoints in memory, since the agent's cannot be opened: {error}"
            self.release()
            return
        if any(slot.mark is not None and slot.mark.round == here.round for slot in slots):
            self.holds_another = True
            self.refusal = (
                "there are no checkpoints in memory, since an earlier Checkpointer saved its own there"
            )
            self.release()
            return
        self.slots = slots

    def release(self) -> None:
        """Let another Checkpointer use them."""
        if self._claim >= 0:
            fcntl.flock(self._claim, fcntl.LOCK_UN)  # forks of this process have the file open, too
            os.close(self._claim)
            self._claim = -1


def _claim(file: str) -> int:
    """Lock the file in which the agent names the slots, and return its descriptor. A start has its own file.

    Raises:
        OSError: it cannot be opened.
        RuntimeError: it is locked.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise RuntimeError(
            "there is a Checkpointer in this process, or in another one that was started from it, and the "
            "agent's memory is for one: give it all of the state, or close() it first"
        ) from None
    return descriptor
