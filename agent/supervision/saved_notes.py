"""Hands notes of saved files (`agent.monitor.saved_steps`) on from start to start, and from agent to agent.

All ranks of a world have to count from the same step, though mostly rank 0 alone has saved what all load. So
an agent adds rank 0's notes to its own.
"""

from __future__ import annotations

import logging

from torch.distributed import DistError, Store  # type: ignore[attr-defined]

from agent.monitor.progress import ProgressFiles
from agent.monitor.saved_steps import NOTES_SHARED, Notes, common_file_in, gathered
from agent.session import Session

logger = logging.getLogger(__name__)

KEY = "dlr/saved-steps"


class SavedNotes:
    """The notes of one agent's processes. Of a script that tells its steps, nobody needs them."""

    def __init__(self, files: ProgressFiles, session: Session) -> None:
        self._files = files
        self._session = session
        self._rank0: Store | None = None
        """Where rank 0's notes are, for an agent that is not rank 0."""
        self._of_rank0 = Notes({})

    def meet(self, store: Store, rank: int) -> None:
        """Take note of a round whose members have met; as rank 0, say what is known."""
        self._rank0 = store if rank else None
        if rank == 0 and not self._files.told:
            own = gathered(self._files.directory)
            self._of_rank0 = Notes(own.files, new=not self._session.has_trained())
            store.set(KEY, str(self._of_rank0.newest(NOTES_SHARED)))

    def hand_on(self) -> None:
        """Give all notes to the processes that are about to start.

        By now, rank 0 has said what it knows: torch's agents have exchanged their ranks since.
        """
        if self._files.told:
            return
        if self._rank0 is not None:
            self._of_rank0 = _taken(self._rank0)
        own, file = gathered(self._files.directory), common_file_in(self._files.directory)
        try:
            Notes({**own.files, **self._of_rank0.files}, self._of_rank0.new).write(file)
        except OSError as error:  # training goes on without them
            logger.warning("at which steps files were saved cannot be handed on: %s", error)
            file.unlink(missing_ok=True)


def _taken(store: Store) -> Notes:
    """Rank 0's; none if it hands on none, as an older dlr."""
    try:
        return Notes.parse(store.get(KEY).decode()) if store.check([KEY]) else Notes({})
    except (DistError, ValueError) as error:
        logger.warning("rank 0's agent does not say at which steps files were saved: %s", error)
        return Notes({})
