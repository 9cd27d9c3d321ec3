"""`persistOnFailure`: after a failure, what the world goes on from is written to storage, too.

The savers of `dlr.checkpoint` do it, one for each rank of the checkpoint, on the agent that serves its slot.
They are this agent's own processes, so that they outlive training processes that fail again. Training goes on
beside them, and nobody waits for them.
"""

from __future__ import annotations

import json
import logging
import subprocess
import threading
from collections.abc import Mapping
from typing import Any

from agent.checkpoints.saving import ask, start_saver
from agent.slots.resume import Checkpoint
from agent.slots.slot import Slot
from crds.checkpoint_files import AFTER_FAILURE, StorageFile

logger = logging.getLogger(__name__)

DELAY_SECONDS = 5.0
"""From the start of the processes: the imports take CPU for seconds, and by then the restart is over."""
END_SECONDS = 5.0
"""For a saver that was killed."""


class Persisting:
    """The savers of one agent. A later failure ends those of an earlier one."""

    def __init__(self) -> None:
        self._saves: list[_Save] = []

    def begin(self, round_: int, checkpoint: Checkpoint, slots: Mapping[int, Slot], to: StorageFile) -> None:
        """Have the slots of a checkpoint written, each of which stays as it is until then.

        Args:
            round_: that goes on from it.
            slots: by rank, those that this agent is to have written. All agents together have all ranks.
            to: where the job's checkpoints are.
        """
        self.end()
        for rank, slot in slots.items():
            request = {
                "slot": slot.path,
                "step": checkpoint.step,
                "round": checkpoint.round,
                "rank": rank,
                "world_size": checkpoint.world_size,
                "attempt": f"{AFTER_FAILURE}{round_}",
                **to,
            }
            self._saves.append(_Save(slot, request))

    def end(self) -> None:
        """End the savers, whatever they have come to."""
        for save in self._saves:
            save.end()
        self._saves = []


class _Save:
    def __init__(self, slot: Slot, request: Mapping[str, Any]) -> None:
        self._slot = slot
        self._request = request
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        slot.lock(shared=True)  # so that the processes write into their other slots
        self._thread = threading.Thread(target=self._run, name="dlr-persist", daemon=True)
        self._thread.start()

    def end(self) -> None:
        with self._lock:
            self._ended.set()
            if self._process is not None:
                self._process.kill()
        self._thread.join(END_SECONDS)

    def _run(self) -> None:
        request = self._request
        what = f"step {request['step']} of rank {request['rank']}"
        try:
            if self._ended.wait(DELAY_SECONDS):
                return
            error = self._save()
        except (OSError, ValueError) as failure:
            error = str(failure)
        finally:
            self._slot.unlock()
        if error is None:
            logger.info("%s is in %s too, after the failure", what, request["path"])
        elif not self._ended.is_set():
            logger.warning("%s is not persisted to %s after the failure: %s", what, request["path"], error)

    def _save(self) -> str | None:
        """Have it written; why it was not, in one clause.

        Raises:
            OSError, ValueError: the saver does not work.
        """
        with self._lock:
            if self._ended.is_set():
                return "it was ended"
            self._process = process = start_saver()
        with process:  # which closes its input, and so ends it
            return ask(process, json.dumps(self._request))
