"""A job's life as data to be drawn: what each worker did when, rounds, failures, the share of training.

From `status.history` of the job and of its workers alone: Events are forgotten after an hour. Times are
seconds since the job's submission. Pure functions of plain objects and `now`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from crds import names
from crds.elasticjob import JobState
from dlr.commands.job.failures import SAME_MOMENT, first_line, worker_failures
from dlr.commands.job.report import phase, sort_workers
from dlr.commands.job.states import UP, WAITING

JSON = dict[str, Any]

MOST_LANES = 64
CURVE_POINTS = 240
NAMED_WORKER = re.compile(r"\bworker[ -](\d+)\b")
TOGETHER = (JobState.RECOVERING.value, JobState.FORMING.value, JobState.CHECKING.value)
"""States of a job that are those of all its workers that are up."""


@dataclass(frozen=True)
class Span:
    """A stretch of time in one state."""

    state: str
    begin: float
    end: float
    text: str

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True)
class Failure:
    at: float
    what: str
    """The class, or a few words."""
    text: str


@dataclass(frozen=True)
class Start:
    """A new Pod of the worker."""

    at: float
    incarnation: int


@dataclass(frozen=True)
class Lane:
    worker: str
    type: str
    index: int
    node: str
    """Where it is now, or was last."""
    spans: tuple[Span, ...]
    failures: tuple[Failure, ...]
    starts: tuple[Start, ...]
    """The second Pod and those after it."""

    @property
    def title(self) -> str:
        """The name that is enough within one job."""
        return f"{self.type}-{self.index}"


@dataclass(frozen=True)
class Round:
    number: int
    at: float
    members: str
    reason: str


@dataclass(frozen=True)
class Life:
    """All that a timeline shows."""

    name: str
    phase: str
    submitted: datetime
    seconds: float
    """Until now, or to the job's end."""
    known_since: float
    """Later than 0 when history has lost its beginning."""
    states: tuple[Span, ...]
    rounds: tuple[Round, ...]
    lanes: tuple[Lane, ...]
    lanes_left_out: int
    training_share: tuple[tuple[float, float], ...]
    """(time, share of the time until then that the job was training)"""
    goodput: float | None


@dataclass(frozen=True)
class _Episode:
    span: Span
    round: int
    members: frozenset[int]
    members_text: str
    reason: str


class NoHistory(ValueError):
    """Nothing was kept of the job's life (a controller of an earlier version)."""


def life_of(job: JSON, workers: Sequence[JSON], goodput: float | None, now: datetime) -> Life:
    """
    Raises:
        NoHistory: the job has none.
    """
    status = job.get("status") or {}
    submitted = datetime.fromisoformat(job["metadata"]["creationTimestamp"])
    clock = _Clock(submitted, _moment(status.get("completionTime")) or now)
    if not status.get("history"):
        raise NoHistory(job["metadata"]["name"])
    episodes = _episodes(status["history"], clock)
    shown = _most_telling(workers)
    return Life(
        name=f"{job['metadata']['namespace']}/{job['metadata']['name']}",
        phase=phase(job),
        submitted=submitted,
        seconds=clock.end,
        known_since=episodes[0].span.begin,
        states=tuple(episode.span for episode in episodes),
        rounds=_rounds(episodes),
        lanes=tuple(_lane(worker, status.get("lastFailure"), episodes, clock) for worker in shown),
        lanes_left_out=len(workers) - len(shown),
        training_share=training_share(
            [episode.span for episode in episodes],
            _trained_before(status.get("goodput"), episodes),
            clock.end,
        ),
        goodput=goodput,
    )


@dataclass(frozen=True)
class _Clock:
    submitted: datetime
    ended: datetime

    @property
    def end(self) -> float:
        return max(self.seconds(self.ended), 1e-3)

    def seconds(self, moment: datetime) -> float:
        return max(0.0, (moment - self.submitted).total_seconds())

    def at(self, moment: datetime) -> float:
        """Never after the end: what came later is not drawn."""
        return min(self.seconds(moment), self.end)

    def read(self, text: str | None) -> float | None:
        moment = _moment(text)
        return None if moment is None else self.at(moment)


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _episodes(history: Sequence[JSON], clock: _Clock) -> list[_Episode]:
    begins = [clock.read(entry["since"]) or 0.0 for entry in history]
    ends = [*begins[1:], clock.end]
    return [
        _Episode(
            Span(entry["state"], begin, max(begin, end), entry.get("reason") or ""),
            entry.get("round") or 0,
            members_of(entry.get("members") or ""),
            entry.get("members") or "",
            entry.get("reason") or "",
        )
        for entry, begin, end in zip(history, begins, ends, strict=True)
    ]


def members_of(ranges: str) -> frozenset[int]:
    """`0-2,5` as {0, 1, 2, 5}; a text that was cut off gives what is left of it."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", ranges):
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _rounds(episodes: Sequence[_Episode]) -> tuple[Round, ...]:
    """Each round where it first shows."""
    found: dict[int, Round] = {}
    for episode in episodes:
        if episode.round and episode.round not in found:
            found[episode.round] = Round(
                episode.round, episode.span.begin, episode.members_text, episode.reason
            )
    return tuple(found.values())


def _lane(worker: JSON, culprit: JSON | None, episodes: Sequence[_Episode], clock: _Clock) -> Lane:
    spec, status = worker["spec"], worker.get("status") or {}
    lives = status.get("history") or []
    spans: list[Span] = []
    starts = []
    for number, life in enumerate(lives):
        created = clock.read(life["createdAt"]) or 0.0
        follower = clock.read(lives[number + 1]["createdAt"]) if number + 1 < len(lives) else None
        ended = clock.read(life.get("endedAt"))
        end = min(at for at in (ended, follower, clock.end) if at is not None)
        spans += _spans_of_life(life, spec, episodes, created, max(created, end), clock)
        if life["incarnation"] > 1:
            starts.append(Start(created, life["incarnation"]))
    return Lane(
        worker=worker["metadata"]["name"],
        type=spec["type"],
        index=spec["index"],
        node=status.get("nodeName") or "",
        spans=tuple(_joined(spans)),
        failures=tuple(_failures(worker, culprit, episodes, clock)),
        starts=tuple(starts),
    )


def _spans_of_life(
    life: JSON, spec: JSON, episodes: Sequence[_Episode], created: float, end: float, clock: _Clock
) -> list[Span]:
    """Not up yet; then what its job did with it, and where that is not known only that it was up."""
    where = f"Pod {life['incarnation']}" + (f" on {life['nodeName']}" if life.get("nodeName") else "")
    up = clock.read(life.get("runningAt"))
    up = end if up is None else min(max(up, created), end)
    spans = [Span(JobState.PENDING.value, created, up, f"{where} is not up yet")]
    if spec["type"] != names.WORKER:
        return [*spans, Span(UP, up, end, where)]
    known_since = episodes[0].span.begin
    spans.append(Span(UP, up, min(end, known_since), where))
    for episode in episodes:
        begin, until = max(up, episode.span.begin), min(end, episode.span.end)
        state = _state_of(spec["index"], episode)
        in_round = f", round {episode.round}" if episode.round else ""
        spans.append(Span(state, begin, until, f"{where}{in_round}"))
    return spans


def _state_of(index: int, episode: _Episode) -> str:
    state = episode.span.state
    if state in TOGETHER or (state == JobState.TRAINING and index in episode.members):
        return state
    return WAITING


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Without empty ones, and neighbours that say the same as one."""
    joined: list[Span] = []
    for span in spans:
        if span.end <= span.begin:
            continue
        last = joined[-1] if joined else None
        if last and last.end == span.begin and (last.state, last.text) == (span.state, span.text):
            joined[-1] = Span(last.state, last.begin, span.end, last.text)
        else:
            joined.append(span)
    return joined


def _failures(
    worker: JSON, culprit: JSON | None, episodes: Sequence[_Episode], clock: _Clock
) -> list[Failure]:
    """Each failure once, in the words of the account that says most."""
    accounts = [
        *_of_the_job(worker, culprit, clock),
        *_of_its_pods(worker, clock),
        *(Failure(clock.at(told.time), told.what, told.said) for told in worker_failures(worker)),
        *_of_worlds(worker, episodes),
    ]
    kept: list[Failure] = []
    for failure in accounts:
        if all(abs(failure.at - other.at) > SAME_MOMENT.total_seconds() for other in kept):
            kept.append(failure)
    return sorted(kept, key=lambda failure: failure.at)


def _of_the_job(worker: JSON, culprit: JSON | None, clock: _Clock) -> Iterator[Failure]:
    if culprit and culprit["worker"] == worker["metadata"]["name"]:
        at = clock.at(datetime.fromisoformat(culprit["time"]))
        yield Failure(at, culprit["exitClass"], first_line(culprit.get("message")))


def _of_its_pods(worker: JSON, clock: _Clock) -> Iterator[Failure]:
    for life in (worker.get("status") or {}).get("history") or ():
        ended = clock.read(life.get("endedAt"))
        if ended is not None and life.get("exitClass") not in (None, "Succeeded"):
            yield Failure(ended, life["exitClass"], life.get("reason") or "")


def _of_worlds(worker: JSON, episodes: Sequence[_Episode]) -> Iterator[Failure]:
    """Worlds that broke by this worker, as the reasons have it."""
    for episode in episodes:
        if episode.span.state != JobState.RECOVERING or worker["spec"]["type"] != names.WORKER:
            continue
        named = NAMED_WORKER.search(episode.reason)
        if named and int(named[1]) == worker["spec"]["index"]:
            yield Failure(episode.span.begin, "failed", first_line(episode.reason))


def _most_telling(workers: Sequence[JSON]) -> list[JSON]:
    """As many as can be read, in order; those to which something happened are chosen first."""

    def happened(worker: JSON) -> int:
        status = worker.get("status") or {}
        return len(status.get("history") or ()) + len(worker_failures(worker))

    return sort_workers(sorted(sort_workers(workers), key=happened, reverse=True)[:MOST_LANES])


def _trained_before(goodput: JSON | None, episodes: Sequence[_Episode]) -> float:
    """Seconds of training before the first episode that history still has."""
    if not goodput or episodes[0].span.begin <= 0:
        return 0.0
    training = JobState.TRAINING.value
    known = sum(episode.span.seconds for episode in episodes[:-1] if episode.span.state == training)
    counted: float = (goodput.get("seconds") or {}).get(training, 0.0)
    return min(max(0.0, counted - known), episodes[0].span.begin)


def training_share(
    states: Sequence[Span], trained_before: float, end: float
) -> tuple[tuple[float, float], ...]:
    """How the share of training in all the time so far went, from the first known state to the end."""
    begin = states[0].begin
    times = {begin + (end - begin) * number / CURVE_POINTS for number in range(1, CURVE_POINTS + 1)}
    times |= {span.begin for span in states if span.begin > 0} | {end}
    training = [span for span in states if span.state == JobState.TRAINING]
    points = []
    for time in sorted(times):
        trained = trained_before + sum(max(0.0, min(span.end, time) - span.begin) for span in training)
        points.append((time, min(1.0, trained / time)))
    return tuple(points)
