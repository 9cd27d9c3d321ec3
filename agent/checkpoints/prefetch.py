"""A replacement fetches what its predecessor's processes kept, before any round has this agent."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from agent.slots.fetch import FetchError
from agent.slots.slot import Mark
from agent.slots.wire import copies

logger = logging.getLogger(__name__)


class Prefetch(threading.Thread):
    """Fetches the newest copy of each rank, from the one agent that has them.

    Args:
        key: the job's.
        round_: in which the predecessor's processes ran.
        find_server: finds that agent's slot server; None if nobody is known.
        fetch: gets one from there; it raises FetchError.
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
            newest: dict[int, Mark] = {}
            for mark in copies(address, self._key, self._round):
                newest[mark.rank] = max(mark, newest.get(mark.rank, mark))
            for mark in newest.values():
                began_at = time.monotonic()
                self._fetch(mark, address)
                self.has_fetched = True
                seconds = time.monotonic() - began_at
                logger.info("fetched step %d of rank %d in %.2f s", mark.step, mark.rank, seconds)
        except (OSError, FetchError) as error:
            logger.info("what this worker kept before is fetched when the next round begins: %s", error)
