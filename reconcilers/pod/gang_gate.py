"""Where a gang's Pods wait for their PodGroup: a Pod that comes before it is refused, or scheduled alone.

The API server is asked, since a cluster need not know PodGroups, and what is not known cannot be watched. All
Pods of a job that wait at once are told the same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from controller.client import Client
from controller.errors import NotFound
from controller.store import Memory, Store
from reconcilers.observations import Observations
from reconcilers.pod.gang import PodGroup

ANSWER_SECONDS = 0.2
RETRY_SECONDS = 0.25
PATIENCE_SECONDS = 2.0
"""A PodGroup is made as its job's ElasticWorkers are; so much later, its absence is worth telling."""
LATER_SECONDS = 5.0
UNAVAILABLE_RETRY_SECONDS = 30.0

UNAVAILABLE = "GangUnavailable"
TAKEN = "PodGroupTaken"
WAITING = "WaitingForPodGroup"

Answer = tuple[str, str] | None
"""Why not yet: reason and message."""


@dataclass(frozen=True)
class Obstacle:
    """Why a Pod is not made now."""

    reason: str
    message: str
    retry_seconds: float
    worth_telling: bool = True


class GangGate:
    def __init__(self, client: Client, jobs: Store, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._monotonic = monotonic
        self._answers: Memory[tuple[float, int, Answer]] = jobs.memory()
        self._waiting = Observations(jobs, monotonic)

    async def obstacle(self, group: PodGroup) -> Obstacle | None:
        """None: the Pods may come."""
        answer = await self._answer(group)
        waited_seconds = self._waiting.age_seconds(group.owner_uid, answer)
        if answer is None:
            return None
        reason, message = answer
        if reason != WAITING:
            return Obstacle(reason, message, UNAVAILABLE_RETRY_SECONDS)
        if waited_seconds < PATIENCE_SECONDS:
            return Obstacle(reason, message, RETRY_SECONDS, worth_telling=False)
        return Obstacle(reason, message, LATER_SECONDS)

    async def _answer(self, group: PodGroup) -> Answer:
        now, known = self._monotonic(), self._answers.get(group.owner_uid)
        if known is not None and known[1] == group.min_member and now - known[0] <= ANSWER_SECONDS:
            return known[2]
        answer = await self._ask(group)
        self._answers.put(group.owner_uid, (self._monotonic(), group.min_member, answer))
        return answer

    async def _ask(self, group: PodGroup) -> Answer:
        try:
            found = await self._client.get(group.resource, group.name, group.namespace)
        except NotFound as error:
            if not_served(error):
                return UNAVAILABLE, group.unavailable
            return WAITING, f"the PodGroup {group.name} is yet to be made"
        if not belongs_to(found, group.owner_uid):
            return TAKEN, f"the PodGroup {group.name} is not this job's: delete it, or name the job otherwise"
        if found["spec"].get("minMember") != group.min_member:
            return WAITING, f"the PodGroup {group.name} is yet to have minMember {group.min_member}"
        return None


def not_served(error: NotFound) -> bool:
    """Whether the kind is unknown to the server, rather than the object: then it names none."""
    return not error.details.get("name")


def belongs_to(obj: dict[str, Any], owner_uid: str) -> bool:
    return any(owner["uid"] == owner_uid for owner in obj["metadata"].get("ownerReferences", ()))
