"""The wait of an agent whose training is over, for the end of its job: torch's exit barrier."""

from __future__ import annotations

import logging
import select

from agent.facts.world import Verb
from agent.processes.orphans import Orphans
from agent.session import Session

logger = logging.getLogger(__name__)

EXIT_BARRIER_SECONDS = 300.0
"""How long a finished agent waits for the job's end while the API server is away. As torch's exit barrier."""


def await_job_end(session: Session, orphans: Orphans) -> bool:
    """Wait after a success. True when the job has ended; False when a newer round wants this agent."""
    poll = select.poll()
    poll.register(session.watcher.fileno(), select.POLLIN)
    while True:
        action = session.next_action()
        if action.verb is Verb.EXIT:
            return True
        if action.verb is Verb.START:
            orphans.kill()  # What the round left behind was let live until now.
            return False
        patience_seconds = EXIT_BARRIER_SECONDS - session.api_silent_seconds()
        if patience_seconds <= 0:
            logger.warning("the API server is away, and this agent has finished: leaving")
            return True
        poll.poll(patience_seconds * 1000 + 1)
        orphans.reap(spared=())
