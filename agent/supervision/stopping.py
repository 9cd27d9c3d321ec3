"""How the processes of a round are stopped that the others have given up, or that hang."""

from __future__ import annotations

import select
import signal
import time

from agent.facts.world import Verb
from agent.processes.processes import TrainingProcesses
from agent.session import Session

HURRY_GRACE_SECONDS = 5.0
"""What processes get in all, once the next world is formed and its other members wait for this one; and while
they leave by vote, once a peer has been killed that had not left."""

JUDGEMENT_SECONDS = 15.0
"""So long hanging processes are kept, at most, until the job has judged which of all was first. It takes 10 s
itself, at most, and no longer where all answer."""


def stop_for_next_round(
    session: Session, processes: TrainingProcesses, stop_grace_seconds: float, failure_grace_seconds: float
) -> None:
    """Give time for a checkpoint, as long as a checkpoint is possible and nobody waits for us.

    | the next world | the processes get |
    |---|---|
    | is formed, and a failure ended ours | `failure_grace_seconds`: their peers are dead |
    | is formed, by plan | all of the grace: their peers are well |
    | is formed while they still stop | `HURRY_GRACE_SECONDS` in all: its other members wait |
    | is not formed yet, or is not ours | all of the grace |
    """
    formed_at_once = session.next_action().verb is Verb.START
    if formed_at_once and session.peers_are_dead():
        processes.stop(signal.SIGTERM, failure_grace_seconds)
        return

    def hurry_after_seconds() -> float | None:
        if session.next_action().verb is not Verb.START:
            return None
        planned = formed_at_once and not session.peers_are_dead()
        return None if planned else max(HURRY_GRACE_SECONDS, failure_grace_seconds)

    processes.stop(
        signal.SIGTERM,
        stop_grace_seconds,
        wake_fd=session.watcher.fileno(),
        hurry_after_seconds=hurry_after_seconds,
    )


def stop_when_judged(session: Session, processes: TrainingProcesses, failure_grace_seconds: float) -> None:
    """Stop hanging processes when all ranks have said where they are: the end of one moves its peers."""
    deadline = time.monotonic() + JUDGEMENT_SECONDS
    poll = select.poll()
    poll.register(session.watcher.fileno(), select.POLLIN)
    while session.awaits_judgement() and (left := deadline - time.monotonic()) > 0:
        poll.poll(left * 1000)
    processes.stop(signal.SIGTERM, failure_grace_seconds)
