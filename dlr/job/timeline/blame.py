"""The failures of a job's life: of each worker when and why, and whether it only followed from another's.

Whose fault the end of a round was, the controller has judged: the job's status has its word on the last
failures. Of older ones there is what each worker keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from controller.wording import first_line
from crds.elasticworker import ExitClass
from crds.job_status import JobState
from dlr.job.failures import SAME_MOMENT, worker_failures
from dlr.job.timeline.episodes import Clock, Episode
from dlr.job.wording import EPOCH, parse_time
from dlr.kube.api import JSON


@dataclass(frozen=True)
class Failure:
    at: float
    what: str
    """The class, or a few words."""
    text: str
    follows: bool = False
    """Whether it follows from another failure."""


Culprits = Mapping[int, tuple[str, Failure]]
"""The worker whose failure ended a round, and that failure, by round."""


def culprits_of(job: JSON, episodes: Sequence[Episode], clock: Clock) -> Culprits:
    """Return the culprits that the job's status still has."""
    last = (job.get("status") or {}).get("lastFailure")
    return {
        each["round"]: (each["worker"], _failure(each, clock))
        for each in (*(episode.failure for episode in episodes), last)
        if each and each.get("round") is not None and each["exitClass"] != ExitClass.UNKNOWN
    }


def _failure(failure: JSON, clock: Clock) -> Failure:
    at = clock.at(parse_time(failure["time"]) or EPOCH)
    return Failure(at, failure["exitClass"], first_line(failure.get("message")))


def failures_of(worker: JSON, culprits: Culprits, episodes: Sequence[Episode], clock: Clock) -> list[Failure]:
    """Return each failure once, from the best account: the job, its Pods, the agent, the job's episodes."""
    name = worker["metadata"]["name"]
    found = [(failure, failure.at) for blamed, failure in culprits.values() if blamed == name]
    accounts = [
        [(each, each.at) for each in _of_its_pods(worker, clock)],
        [(each, each.at) for each in _of_its_agent(worker, culprits, clock)],
        [*_of_worlds(name, culprits, episodes, clock)],
    ]
    kept = [failure for failure, _ in found]
    for account in accounts:
        kept += [failure for failure, recovered in account if not _is_in(failure, recovered, kept)]
    return sorted(kept, key=lambda failure: failure.at)


def _is_in(failure: Failure, recovered: float, kept: Sequence[Failure]) -> bool:
    """Whether another account has it. A Pod with time to stop ends while its job recovers already."""
    leeway = SAME_MOMENT.total_seconds()
    return any(failure.at - leeway <= other.at <= recovered + leeway for other in kept)


def _of_its_pods(worker: JSON, clock: Clock) -> Iterator[Failure]:
    for life in (worker.get("status") or {}).get("history") or ():
        ended = clock.read(life.get("endedAt"))
        failed = life.get("exitClass") not in (None, ExitClass.SUCCEEDED) and not life.get("planned")
        if ended is not None and failed:
            yield Failure(ended, life["exitClass"], life.get("reason") or "")


def _of_its_agent(worker: JSON, culprits: Culprits, clock: Clock) -> Iterator[Failure]:
    for each in worker_failures(worker):
        blamed, _ = culprits.get(each.round, ("", None)) if each.round is not None else ("", None)
        if blamed == worker["metadata"]["name"]:
            continue  # the job has it, by the controller's clock, which may have been without an API server
        if each.finished_early:
            continue  # a lost Pod broke its world, or a planned change ended it
        blameless = bool(blamed) or each.waited
        yield Failure(clock.at(each.time), each.what, each.text, each.follows or blameless)


def _of_worlds(
    name: str, culprits: Culprits, episodes: Sequence[Episode], clock: Clock
) -> Iterator[tuple[Failure, float]]:
    """Yield failures of this worker that ended rounds without a culprit, and when training went on.

    A world that is formed meanwhile begins an episode of its own, with the same reason: that is no other
    failure.
    """
    trained, recovers = 0, False
    for number, episode in enumerate(episodes):
        if episode.span.state != JobState.RECOVERING:
            recovers = False
            if episode.span.state == JobState.TRAINING:
                trained = episode.round
            continue
        failed = episode.failure
        if failed and failed["worker"] == name and not recovers and trained not in culprits:
            later = (each.span.begin for each in episodes[number:] if each.span.state == JobState.TRAINING)
            yield _failure(failed, clock), next(later, clock.end)
        recovers = True
