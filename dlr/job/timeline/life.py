"""Data of a job's timeline: states of each worker, rounds, failures, the share of training.

From `status.history` of the job and of its workers. Times are seconds since the job's submission. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from controller.wording import counted
from crds import names
from crds.grouping import is_grouped, owner_of_group
from crds.job_status import JobState
from dlr.job.failures import failures_of
from dlr.job.report import by_job, phase, sort_workers
from dlr.job.timeline.changes import PlannedChange, planned_changes
from dlr.job.timeline.episodes import JobClock, PastFailure, Span, Stretch, episodes_of, failures_in
from dlr.job.tones import UP, WAITING
from dlr.job.wording import duration, parse_time, plain
from dlr.kube.api import JSON
from reconcilers.goodput.goodput import NOT_YET_TRAINING

MOST_LANES = 64
MOST_GROUPS = 128
CURVE_POINTS = 240
CLOCK_WITH_SECONDS, CLOCK_WITHOUT_DATE = 7_200, 86_400
"""Longest ages of a job, in seconds, for which its clock shows seconds, and shows no date."""
TOGETHER = (*(state.value for state in NOT_YET_TRAINING), JobState.CHECKING.value)
"""States of a job that also are the states of its workers that are up."""


@dataclass(frozen=True)
class PodStart:
    """A new Pod of the worker, or of a worker of the group."""

    at: float
    pod: str


@dataclass(frozen=True)
class Lane:
    """A worker, or a replica group."""

    worker: str
    """Name of the ElasticWorker, or of a replica group's ElasticJob."""
    type: str
    index: int
    node: str
    """Present or last node; empty for a replica group."""
    spans: tuple[Span, ...]
    failures: tuple[PastFailure, ...]
    starts: tuple[PodStart, ...]
    """Starts of the second Pod and later ones."""

    @property
    def title(self) -> str:
        """Name within the job."""
        return f"{self.type}-{self.index}"


@dataclass(frozen=True)
class TimelineRound:
    number: int
    at: float
    members: str
    reason: str


@dataclass(frozen=True)
class JobTimeline:
    """Contents of a timeline."""

    name: str
    phase: str
    submitted: datetime
    seconds: float
    """Age of the job, now or at its end."""
    known_since: float
    """Beginning of the history; later than 0 if it was truncated."""
    states: tuple[Span, ...]
    rounds: tuple[TimelineRound, ...]
    lanes: tuple[Lane, ...]
    lanes_left_out: int
    training_share: tuple[tuple[float, float], ...]
    """Points in time, each with the share of the time until then in which the job trained."""
    goodput: float | None
    failures: tuple[PastFailure, ...]
    """Last failures, the oldest first."""
    failure_count: int
    """Number of failures since submission."""
    changes: tuple[PlannedChange, ...] = ()
    """Planned changes in the history, the oldest first; none for replica groups, which have versions."""
    of_groups: bool = False
    """Whether the lanes are replica groups, and the rounds versions."""

    @property
    def round_word(self) -> str:
        return "version" if self.of_groups else "round"

    @property
    def member_word(self) -> str:
        return "group" if self.of_groups else "worker"


def title(life: JobTimeline) -> str:
    parts = [life.name, life.phase, f"{duration(life.seconds)} since {life.submitted:%Y-%m-%d %H:%M:%S} UTC"]
    if life.goodput is not None:
        parts.append(f"goodput {life.goodput:.1%}")
    if life.lanes_left_out:
        parts.append(counted(life.lanes_left_out, f"more {life.member_word}"))
    if life.known_since > 0:
        parts.append(f"the first {duration(life.known_since)} are forgotten")
    return plain(" · ".join(parts))


def clock_of(life: JobTimeline, at: float) -> str:
    """Return the wall-clock time at so many seconds, in UTC; its precision depends on the job's age."""
    moment = life.submitted.astimezone(UTC) + timedelta(seconds=at)
    if life.seconds < CLOCK_WITH_SECONDS:
        return f"{moment:%H:%M:%S}"
    return f"{moment:%H:%M}" if life.seconds < CLOCK_WITHOUT_DATE else f"{moment:%d %b %H:%M}"


class NoHistory(ValueError):
    """The job's status has no history (a controller of an earlier version)."""


def life_of(
    job: JSON,
    workers: Sequence[JSON],
    goodput: float | None,
    now: datetime,
    groups: Sequence[JSON] = (),
) -> JobTimeline:
    """Return the timeline of a job.

    Args:
        groups: the ElasticJobs of its replica groups, if it has any; they become the lanes.

    Raises:
        NoHistory: the job has no history.
    """
    status = job.get("status") or {}
    submitted = datetime.fromisoformat(job["metadata"]["creationTimestamp"])
    if not status.get("history"):
        raise NoHistory(job["metadata"]["name"])
    # This machine's clock may be behind the cluster's.
    ended = max(now, parse_time(status["history"][-1]["since"]) or now)
    clock = JobClock(submitted, parse_time(status.get("completionTime")) or ended)
    episodes = episodes_of(status["history"], clock)
    grouped = is_grouped(job)
    if grouped:
        lanes = _lanes_of_groups(groups, workers, episodes, clock)
        failures = sorted((each for lane in lanes for each in lane.failures), key=lambda each: each.at)
        lanes, left_out = _with_most_failures(lanes)
    else:
        failures = failures_in(job, episodes, clock)
        lanes, left_out = _lanes_of_workers(job, workers, episodes, failures, clock)
    begins = [lane.spans[0].begin for lane in lanes if grouped and lane.spans]
    return JobTimeline(
        name=f"{job['metadata']['namespace']}/{job['metadata']['name']}",
        phase=phase(job),
        submitted=submitted,
        seconds=clock.end,
        known_since=min(episodes[0].span.begin, *begins) if begins else episodes[0].span.begin,
        states=_states_of_groups(episodes) if grouped else tuple(episode.span for episode in episodes),
        rounds=_rounds(episodes),
        lanes=tuple(lanes),
        lanes_left_out=left_out,
        training_share=training_share(
            [episode.span for episode in episodes],
            _trained_before(status.get("goodput"), episodes),
            clock.end,
        ),
        goodput=goodput,
        failures=tuple(failures),
        failure_count=sum(failures_of(job).values()),
        changes=() if grouped else planned_changes(episodes),
        of_groups=grouped,
    )


def _lanes_of_workers(
    job: JSON,
    workers: Sequence[JSON],
    episodes: Sequence[Stretch],
    failures: Sequence[PastFailure],
    clock: JobClock,
) -> tuple[list[Lane], int]:
    """Return the lanes to show, and the number of the others."""
    shown, gone = _most_telling(workers, {failure.worker for failure in failures}), _gone(workers, episodes)
    lanes = [_lane(worker, failures, episodes, clock) for worker in shown]
    lanes += [_gone_lane(job, index, failures, episodes) for index in gone[: MOST_LANES - len(shown)]]
    return lanes, max(0, len(workers) + len(gone) - MOST_LANES)


def _lanes_of_groups(
    groups: Sequence[JSON], workers: Sequence[JSON], episodes: Sequence[Stretch], clock: JobClock
) -> list[Lane]:
    found = by_job(workers)
    return [_group_lane(each, found.get(each["metadata"]["name"], ()), episodes, clock) for each in groups]


def _with_most_failures(lanes: Sequence[Lane]) -> tuple[list[Lane], int]:
    """Return at most MOST_GROUPS lanes, in order, and the number of the others."""
    shown = sorted(lanes, key=lambda lane: -len(lane.failures))[:MOST_GROUPS]
    return sorted(shown, key=lambda lane: lane.index), len(lanes) - len(shown)


def _group_lane(group: JSON, workers: Sequence[JSON], of_job: Sequence[Stretch], clock: JobClock) -> Lane:
    """Return the lane of a group, which trains only while the job's world includes it."""
    status = group.get("status") or {}
    ended = parse_time(status.get("completionTime")) or clock.ended
    clock = replace(clock, ended=min(ended, clock.ended))
    own = episodes_of(status.get("history") or (), clock)
    owner = owner_of_group(group["metadata"])
    index = owner.index if owner is not None else 0
    failures = [
        replace(each, who=f"group-{index}", text=f"{each.who}: {each.text}" if each.text else each.who)
        for each in failures_in(group, own, clock)
    ]
    return Lane(
        worker=group["metadata"]["name"],
        type="group",
        index=index,
        node="",
        spans=tuple(_joined([each for episode in own for each in _spans_of_group(index, episode, of_job)])),
        failures=tuple(failures),
        starts=tuple(sorted((s for each in workers for s in _starts(each, clock)), key=lambda s: s.at)),
    )


def _states_of_groups(episodes: Sequence[Stretch]) -> tuple[Span, ...]:
    """Return the states of a job with groups, which trains on from version to version."""
    spans = [episode.span for episode in episodes]
    training = JobState.TRAINING
    return tuple(_joined([replace(span, text="") if span.state == training else span for span in spans]))


def _spans_of_group(index: int, own: Stretch, of_job: Sequence[Stretch]) -> Iterator[Span]:
    """Yield the spans of one episode of a group; before the job's history, its own state is taken."""
    span = own.span
    text = f"round {own.round}" if own.round else ""
    if span.state != JobState.TRAINING or not of_job:
        yield replace(span, text="; ".join(filter(None, (text, span.text))))
        return
    yield Span(span.state, span.begin, min(span.end, of_job[0].span.begin), text)
    for episode in of_job:
        begin, end = max(span.begin, episode.span.begin), min(span.end, episode.span.end)
        trains = episode.span.state == JobState.TRAINING and episode.has(index)
        version = f"version {episode.round}, {text}"
        yield Span(span.state, begin, end, version) if trains else Span(WAITING, begin, end, text)


def _rounds(episodes: Sequence[Stretch]) -> tuple[TimelineRound, ...]:
    """Return the rounds, each at its first episode."""
    found: dict[int, TimelineRound] = {}
    for episode in episodes:
        if episode.round and episode.round not in found:
            found[episode.round] = TimelineRound(
                episode.round, episode.span.begin, episode.members_text, episode.reason
            )
    return tuple(found.values())


def _lane(
    worker: JSON, failures: Sequence[PastFailure], episodes: Sequence[Stretch], clock: JobClock
) -> Lane:
    spec, status = worker["spec"], worker.get("status") or {}
    lives = status.get("history") or []
    spans: list[Span] = []
    for number, life in enumerate(lives):
        created = clock.read(life["createdAt"]) or 0.0
        follower = clock.read(lives[number + 1]["createdAt"]) if number + 1 < len(lives) else None
        ended = clock.read(life.get("endedAt"))
        end = min(at for at in (ended, follower, clock.end) if at is not None)
        spans += _spans_of_life(life, spec, episodes, created, max(created, end), clock)
    return Lane(
        worker=worker["metadata"]["name"],
        type=spec["type"],
        index=spec["index"],
        node=status.get("nodeName") or "",
        spans=tuple(_joined(spans)),
        failures=tuple(each for each in failures if each.worker == worker["metadata"]["name"]),
        starts=tuple(_starts(worker, clock)),
    )


def _starts(worker: JSON, clock: JobClock) -> Iterator[PodStart]:
    """Yield the starts of a worker's second Pod and later ones."""
    for life in (worker.get("status") or {}).get("history") or ():
        if life["incarnation"] > 1:
            pod = f"Pod {life['incarnation']} of {worker['metadata']['name']}"
            yield PodStart(clock.read(life["createdAt"]) or 0.0, pod)


def _gone(workers: Sequence[JSON], episodes: Sequence[Stretch]) -> list[int]:
    """Return the indices of workers that were in a world, and were removed when the job was scaled."""
    there = {worker["spec"]["index"] for worker in workers if worker["spec"]["type"] == names.WORKER}
    return sorted(frozenset().union(*(episode.members for episode in episodes)) - there)


def _gone_lane(job: JSON, index: int, failures: Sequence[PastFailure], episodes: Sequence[Stretch]) -> Lane:
    """Return the lane of a deleted ElasticWorker, from the worlds that it was in."""
    name = f"{job['metadata']['name']}-{names.WORKER}-{index}"
    spans = [
        Span(each.span.state, each.span.begin, each.span.end, f"round {each.round}; it was scaled away since")
        for each in episodes
        if index in each.members
    ]
    own = tuple(each for each in failures if each.worker == name)
    return Lane(name, names.WORKER, index, "", tuple(_joined(spans)), own, ())


def _spans_of_life(
    life: JSON, spec: JSON, episodes: Sequence[Stretch], created: float, end: float, clock: JobClock
) -> list[Span]:
    """Return the spans of one Pod: not up yet, and then the states of its job, from the history on."""
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
        if until <= begin:
            continue
        state = _state_of(spec["index"], episode)
        in_round = f", round {episode.round}" if episode.round else ""
        spans.append(Span(state, begin, until, f"{where}{in_round}"))
    return spans


def _state_of(index: int, episode: Stretch) -> str:
    state = episode.span.state
    if state in TOGETHER or (state == JobState.TRAINING and episode.has(index)):
        return state
    return WAITING


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Join equal neighbours, and drop empty spans."""
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


def _most_telling(workers: Sequence[JSON], failed: Collection[str]) -> list[JSON]:
    """Return at most MOST_LANES workers, in order; those with failures are preferred."""

    def event_count(worker: JSON) -> int:
        lives = (worker.get("status") or {}).get("history") or ()
        return len(lives) + (worker["metadata"]["name"] in failed)

    return sort_workers(sorted(sort_workers(workers), key=event_count, reverse=True)[:MOST_LANES])


def _trained_before(goodput: JSON | None, episodes: Sequence[Stretch]) -> float:
    """Return the seconds of training before the first episode of the history."""
    if not goodput or episodes[0].span.begin <= 0:
        return 0.0
    training = JobState.TRAINING.value
    later = sum(episode.span.seconds for episode in episodes[:-1] if episode.span.state == training)
    counted: float = (goodput.get("seconds") or {}).get(training, 0.0)
    return min(max(0.0, counted - later), episodes[0].span.begin)


def training_share(
    states: Sequence[Span], trained_before: float, end: float
) -> tuple[tuple[float, float], ...]:
    """Return the share of training in the time so far, at points from the first known state to the end."""
    begin = states[0].begin
    times = {begin + (end - begin) * number / CURVE_POINTS for number in range(1, CURVE_POINTS + 1)}
    times |= {span.begin for span in states if span.begin > 0} | {end}
    training = [span for span in states if span.state == JobState.TRAINING]
    points = []
    for time in sorted(times):
        trained = trained_before + sum(max(0.0, min(span.end, time) - span.begin) for span in training)
        points.append((time, min(1.0, trained / time)))
    return tuple(points)
