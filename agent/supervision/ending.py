"""The end of a round's processes: how they are stopped, and how agents learn that others' have ended well."""

from __future__ import annotations

import logging
import select
import signal
import time

from torch.distributed import DistError, Store  # type: ignore[attr-defined]

from agent.facts.world import Verb, World
from agent.kube.api import Api
from agent.membership import Membership
from agent.processes.orphans import Orphans
from agent.processes.processes import TrainingProcesses

logger = logging.getLogger(__name__)

HURRY_GRACE_SECONDS = 5.0
"""What processes get in all, once the next world is formed and its other members wait for this one; and while
they leave by vote, once a peer has been killed that had not left."""

JUDGEMENT_SECONDS = 15.0
"""So long hanging processes are kept, at most, until the job has judged which of all was first. It takes 10 s
itself, at most, and no longer where all answer."""

EXIT_BARRIER_SECONDS = 300.0
"""How long a finished agent waits for the job's end while the API server is away. As torch's exit barrier."""

ENDED_KEY = "dlr/ended/{}"


def stop_for_next_round(
    membership: Membership,
    processes: TrainingProcesses,
    stop_grace_seconds: float,
    failure_grace_seconds: float,
) -> None:
    """Give time for a checkpoint, as long as a checkpoint is possible and nobody waits for us.

    | the next world | the processes get |
    |---|---|
    | is formed, and a failure ended ours | `failure_grace_seconds`: their peers are dead |
    | is formed, by plan | all of the grace: their peers are well |
    | is formed while they still stop | `HURRY_GRACE_SECONDS` in all: its other members wait |
    | is not formed yet, or is not ours | all of the grace |
    """
    formed_at_once = membership.next_action().verb is Verb.START
    if formed_at_once and membership.standing.peers_are_dead:
        processes.stop(signal.SIGTERM, failure_grace_seconds)
        return

    def hurry_after_seconds() -> float | None:
        if membership.next_action().verb is not Verb.START:
            return None
        planned = formed_at_once and not membership.standing.peers_are_dead
        return None if planned else max(HURRY_GRACE_SECONDS, failure_grace_seconds)

    processes.stop(
        signal.SIGTERM,
        stop_grace_seconds,
        wake_fd=membership.fileno(),
        hurry_after_seconds=hurry_after_seconds,
    )


def stop_when_judged(
    membership: Membership, processes: TrainingProcesses, failure_grace_seconds: float
) -> None:
    """Stop hanging processes when all ranks have said where they are: the end of one moves its peers."""
    deadline = time.monotonic() + JUDGEMENT_SECONDS
    poll = select.poll()
    poll.register(membership.fileno(), select.POLLIN)
    while (left_seconds := deadline - time.monotonic()) > 0:
        action, _ = membership.look()
        if not membership.standing.awaits_judgement(action):
            break
        poll.poll(left_seconds * 1000)
    processes.stop(signal.SIGTERM, failure_grace_seconds)


def await_job_end(membership: Membership, api: Api, orphans: Orphans) -> bool:
    """Wait after a success: True when the job has ended, False when a newer round wants this agent.

    This is torch's exit barrier.
    """
    poll = select.poll()
    poll.register(membership.fileno(), select.POLLIN)
    while True:
        action = membership.next_action()
        if action.verb is Verb.EXIT:
            return True
        if action.verb is Verb.START:
            orphans.kill()  # What the round left behind was let live until now.
            return False
        patience_seconds = EXIT_BARRIER_SECONDS - api.silent_seconds()
        if patience_seconds <= 0:
            logger.warning("the API server is away, and this agent has finished: leaving")
            return True
        poll.poll(patience_seconds * 1000 + 1)
        orphans.reap(spared=())


class GoodEnds:
    """The agents of a round whose processes have ended well: nobody waits any longer for one that is left.

    They say so in the round's store of the agents, one round after the other.
    """

    def __init__(self) -> None:
        self._store: Store | None = None
        self._rank = 0
        self._size = 1

    def meet(self, store: Store, rank: int, world: World) -> None:
        """Take note of a round whose members have met."""
        self._store, self._rank, self._size = store, rank, len(world.members)

    @property
    def is_alone(self) -> bool:
        """Whether this agent is the only one of the round."""
        return self._size == 1

    def note_own(self) -> None:
        """Tell the other agents that the processes of this one have ended well."""
        if self._store is None or self.is_alone:
            return
        try:
            self._store.set(ENDED_KEY.format(self._rank), "")
        except DistError as error:  # rank 0's agent is gone; a hang there is judged as any other
            logger.info("the other agents do not learn that the processes here have ended: %s", error)

    def are_all_others(self) -> bool:
        """Whether the processes of all other agents have ended well, as far as can be known."""
        others = [ENDED_KEY.format(rank) for rank in range(self._size) if rank != self._rank]
        if not others:
            return True
        try:
            return self._store is not None and self._store.check(others)
        except DistError:
            return False
