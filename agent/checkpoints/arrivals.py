"""Copies that a meeting waits for: those of a leaving Pod, and those that a replacement fetches beforehand.

After a vote for memory, the agent of a leaving Pod stays until its peer has a copy of the last step, and the
peer joins the next meeting when it has it. Both wait for a Pod's grace period at most. If the copy does not
come, the meeting finds an older checkpoint that all have.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from agent.slots.format import Mark, newest_by_rank
from agent.slots.wire import LOOK_SECONDS, FetchError, copies, is_there

logger = logging.getLogger(__name__)


class Handover:
    """The handover of one agent, in both roles.

    Args:
        patience_seconds: time limit, from the departure of the processes.
    """

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._changed = threading.Condition()
        self._step: int | None = None
        self._begun_at = 0.0
        self.copied_step: int | None = None
        """Newest step that the peer has for all local ranks."""

    @property
    def is_under_way(self) -> bool:
        """Whether the processes have left with their last step in memory, and no next round has begun."""
        return self._step is not None

    def begin(self, step: int) -> None:
        """Note that all processes of the round have left after that step, which is in memory."""
        with self._changed:
            self._step, self._begun_at = step, time.monotonic()

    def end(self) -> None:
        """Note that the next round begins."""
        with self._changed:
            self._step = None

    def note_copied(self, step: int | None) -> None:
        """Note the step that the peer has."""
        with self._changed:
            self.copied_step = step
            self._changed.notify_all()

    def note_arrival(self) -> None:
        """Note that a copy has arrived here."""
        with self._changed:
            self._changed.notify_all()

    def hand_over(self, peer: str, seconds: float, is_here: Callable[[int], bool]) -> None:
        """Wait until the agent with that slot server has the step, or is gone.

        Args:
            is_here: returns whether the slots of all processes have that step.
        """
        if (step := self._step) is None:
            return
        if not is_here(step):
            logger.warning("step %d is not in memory, so it is not copied", step)
            return
        deadline = time.monotonic() + seconds
        while not self._wait(lambda: self.copied_step == step, deadline):
            if time.monotonic() >= deadline or not is_there(peer):
                logger.warning("step %d was not copied to the memory of another Pod", step)
                return
        logger.info("step %d has been copied to the memory of another Pod", step)

    def await_arrival(self, source: str, has_come: Callable[[int], bool], check: Callable[[], None]) -> None:
        """Wait until the step of the agent with that slot server is here, or that agent is gone.

        Args:
            has_come: returns whether that step is here.
            check: raises if the wait has to end.
        """
        if (step := self._step) is None:
            return
        deadline = self._begun_at + self._patience_seconds
        while not self._wait(lambda: has_come(step), deadline):
            check()
            if time.monotonic() >= deadline or not is_there(source):
                logger.warning("no copy of step %d came from the Pod that leaves, at %s", step, source)
                return

    def _wait(self, condition: Callable[[], bool], deadline: float) -> bool:
        with self._changed:
            seconds = min(max(deadline - time.monotonic(), 0.0), LOOK_SECONDS)
            return self._changed.wait_for(condition, seconds)


class Prefetch(threading.Thread):
    """Fetches the replicas of a replacement's predecessor, before this agent is in any round.

    It fetches the newest copy of each rank from the predecessor's peer.

    Args:
        round_: round of the predecessor's processes.
        find_server: returns the peer's slot server; None if it is unknown.
        fetch: fetches one copy, or raises FetchError.
    """

    def __init__(
        self,
        key: bytes,
        round_: int,
        find_server: Callable[[], str | None],
        fetch: Callable[[Mark, str], None],
    ) -> None:
        super().__init__(name="dlr-prefetch", daemon=True)
        self._key = key
        self._round = round_
        self._find_server = find_server
        self._fetch = fetch
        self.has_fetched = False

    def run(self) -> None:
        try:
            if (address := self._find_server()) is None:
                return
            for mark in newest_by_rank(copies(address, self._key, self._round)).values():
                began_at = time.monotonic()
                self._fetch(mark, address)
                self.has_fetched = True
                seconds = time.monotonic() - began_at
                logger.info("fetched step %d of rank %d in %.2f s", mark.step, mark.rank, seconds)
        except (OSError, FetchError) as error:
            logger.info("what this worker kept before is fetched when the next round begins: %s", error)
