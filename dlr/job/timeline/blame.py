"""The failures of a job's life: of each worker when and why, and whether it only followed from another's.

Whose fault the end of a round was, the controller has judged: the job's status has its word on the last
failures. Of older ones there is what each worker keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.wording import first_line
from crds.elasticworker import ExitClass
from crds.job_status import JobState
from dlr.job.failures import SAME_MOMENT, worker_failures
from dlr.job.timeline.episodes import Clock, Episode
from dlr.job.wording import EPOCH, parse_time

JSON = dict[str, Any]


@dataclass(frozen=True)
class Failure:
    at: float
    what: str
    """The class, or a few words."""
    text: str
    follows: bool = False
    """Whether it follows from another failure."""


@dataclass(frozen=True)
class Culprit:
    """The worker whose failure ended a round."""

    worker: str
    failure: Failure


def culprits_of(job: JSON, episodes: Sequence[Episode], clock: Clock) -> dict[int, Culprit]:
    """Return the culprit of each round that is still known."""
    last = (job.get("status") or {}).get("lastFailure")
    told = [*(episode.failure for episode in episodes), last]
    return {
        each["round"]: Culprit(each["worker"], _failure(each, clock))
        for each in told
        if each and each.get("round") is not None and each["exitClass"] != ExitClass.UNKNOWN
    }


def _failure(told: JSON, clock: Clock) -> Failure:
    at = clock.at(parse_time(told["time"]) or EPOCH)
    return Failure(at, told["exitClass"], first_line(told.get("message")))


def failures_of(
    worker: JSON, culprits: Mapping[int, Culprit], episodes: Sequence[Episode], clock: Clock
) -> list[Failure]:
    """Each once, in the words of the account that knows most of it."""
    name = worker["metadata"]["name"]
    accounts = (
        [culprit.failure for culprit in culprits.values() if culprit.worker == name],
        [*_of_its_pods(worker, clock)],
        [*_of_its_own_words(worker, culprits, clock)],
    )
    kept: list[Failure] = []
    for account in accounts:
        kept += [failure for failure in account if not _is_known(failure, failure.at, kept)]
    of_worlds = _of_worlds(worker, culprits, episodes, clock)
    kept += [failure for failure, recovered in of_worlds if not _is_known(failure, recovered, kept)]
    return sorted(kept, key=lambda failure: failure.at)


def _is_known(failure: Failure, recovered: float, kept: Sequence[Failure]) -> bool:
    """Whether another account has it. A Pod with time to stop ends while its job recovers already."""
    leeway = SAME_MOMENT.total_seconds()
    return any(failure.at - leeway <= other.at <= recovered + leeway for other in kept)


def _of_its_pods(worker: JSON, clock: Clock) -> Iterator[Failure]:
    for life in (worker.get("status") or {}).get("history") or ():
        ended = clock.read(life.get("endedAt"))
        if ended is not None and life.get("exitClass") not in (None, ExitClass.SUCCEEDED):
            yield Failure(ended, life["exitClass"], life.get("reason") or "")


def _of_its_own_words(worker: JSON, culprits: Mapping[int, Culprit], clock: Clock) -> Iterator[Failure]:
    for told in worker_failures(worker):
        culprit = culprits.get(told.round) if told.round is not None else None
        blameless = told.waited if culprit is None else culprit.worker != worker["metadata"]["name"]
        follows = told.follows or blameless
        yield Failure(clock.at(told.time), told.what, told.said, follows)


def _of_worlds(
    worker: JSON, culprits: Mapping[int, Culprit], episodes: Sequence[Episode], clock: Clock
) -> Iterator[tuple[Failure, float]]:
    """Rounds of which no culprit is known, that ended when this worker failed.

    Each with the time at which training went on. A world that is formed meanwhile begins an episode of its
    own, with the same reason: that is no other failure.
    """
    trained, recovers = 0, False
    for number, episode in enumerate(episodes):
        if episode.span.state != JobState.RECOVERING:
            recovers = False
            if episode.span.state == JobState.TRAINING:
                trained = episode.round
            continue
        failed = episode.failure
        is_its = failed is not None and failed["worker"] == worker["metadata"]["name"]
        if failed is not None and is_its and not recovers and trained not in culprits:
            later = (each.span.begin for each in episodes[number:] if each.span.state == JobState.TRAINING)
            yield _failure(failed, clock), next(later, clock.end)
        recovers = True
