"""The failures of a job's life: of each worker when and why, and whether it only followed from another's.

Whose fault the end of a round was, the controller has judged: the job's status has its word on the last
failure, its Events on those of the last hour. Of older ones there is what each worker keeps, and the worlds'
reasons.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.wording import first_line
from crds import names
from crds.elasticworker import ExitClass
from crds.job_status import JobState
from dlr.job.failures import SAME_MOMENT, worker_failures
from dlr.job.report import event_time
from dlr.job.timeline.episodes import Clock, Episode
from dlr.job.wording import EPOCH, parse_time

JSON = dict[str, Any]

INCIDENT = re.compile(
    r"(?P<combined>\(combined from similar events\): )?"
    r"round (?P<round>\d+): (?P<worker>\S+)(?: rank \d+)?: (?P<text>.*) "
    r"\((?P<what>\w+)(?:, [^()]*)?\)(?P<late> was first, and not \S+)?"
)
"""An Event of a world that broke because of a process (`reconcilers/job/outcome.py`)."""
FAILED = "failed"
"""Instead of a class, where none is known."""
NAMED_WORKER = re.compile(r"\bworker[ -](\d+)\b")


@dataclass(frozen=True)
class Failure:
    at: float
    what: str
    """The class, or a few words."""
    text: str
    follows: bool = False
    """From another's."""


@dataclass(frozen=True)
class Culprit:
    """By whom a round ended."""

    worker: str
    failure: Failure


def culprits_of(
    job: JSON, events: Sequence[JSON], episodes: Sequence[Episode], clock: Clock
) -> dict[int, Culprit]:
    """By round, as far as it is still known."""
    told = [(match, event) for event in events if (match := INCIDENT.fullmatch(event.get("message") or ""))]
    found = {}
    for match, event in sorted(told, key=lambda pair: bool(pair[0]["late"])):  # the later word counts
        # A combined Event has the newest message, and the time of the oldest as its first.
        first = None if match["combined"] else event.get("firstTimestamp")
        at = clock.read(first or event_time(event))
        if at is not None and match["what"] != ExitClass.UNKNOWN:
            round_ = int(match["round"])
            failure = Failure(_made_exact(at, round_, episodes), match["what"], match["text"])
            found[round_] = Culprit(match["worker"], failure)
    last = (job.get("status") or {}).get("lastFailure") or {}
    if last.get("round") is not None and last["exitClass"] != ExitClass.UNKNOWN:
        at = clock.at(parse_time(last["time"]) or EPOCH)
        failure = Failure(at, last["exitClass"], first_line(last.get("message")))
        found[last["round"]] = Culprit(last["worker"], failure)
    return found


def _made_exact(at: float, round_: int, episodes: Sequence[Episode]) -> float:
    """Events know whole seconds: if the round's training ended within this one, then by what it tells of."""
    ends = [
        episode.span.end
        for episode in episodes
        if episode.round == round_ and episode.span.state == JobState.TRAINING
    ]
    return next((end for end in ends if at <= end < at + 1.0), at)


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
    """Rounds of which no culprit is known, that ended with a reason that names this worker.

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
        named = NAMED_WORKER.search(episode.reason)
        if (
            not recovers
            and trained not in culprits
            and named
            and int(named[1]) == worker["spec"]["index"]
            and worker["spec"]["type"] == names.WORKER
        ):
            later = (each.span.begin for each in episodes[number:] if each.span.state == JobState.TRAINING)
            failure = Failure(episode.span.begin, FAILED, first_line(episode.reason))
            yield failure, next(later, clock.end)
        recovers = True
