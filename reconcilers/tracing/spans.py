"""Spans of a job's life, from the histories in its objects and its agents' reports. Pure.

A recovery has up to eight parts, one after the other. Each ends when its last participant is done: `detect`
when the controller has recorded the failure, `publish` when there is a new world, `observe` when the last
agent has seen that its round is over, `stop` when that agent's processes have ended, `start` when the new
ones have started, `import` when they call `init_process_group`, `init` when that returns, `first step` when
the job trains. A part without a recorded end is included in the next one: agents record only their newest
start, and processes that were not forked record nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby

from controller.resources import Object
from crds.job_status import JobState
from crds.trace import JOB_SPAN, round_span
from crds.wire import parse_time
from reconcilers.goodput.goodput import AFTER_A_FAILURE

MOST_WORKERS = 64
"""Limit of workers whose Pods have spans."""
STATES, ROUNDS, RECOVERIES, SAVES = "states", "rounds", "recoveries", "saves"
"""Tracks; each worker has another one, with its name. On a track, spans are disjoint or nested."""
PARTS = ("detect", "publish", "observe", "stop", "start", "import", "init", "first step")
MARKS = ("seen", "joined", "started", "imported", "initialized")
"""Fields of an agent's report with the ends of the parts that agents see, in their order."""


@dataclass(frozen=True)
class TraceSpan:
    """A period of time; a moment if its end is its beginning."""

    key: str
    """Key of the span within its job, the same at every look."""
    name: str
    track: str
    begin: datetime
    end: datetime | None
    """End of the span; None while it goes on."""
    parent: str = JOB_SPAN
    """Key of the parent span; empty for the job's own."""
    attributes: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Episode:
    """An entry of `status.history`."""

    state: str
    begin: datetime
    end: datetime | None
    round: int
    entry: Object


def spans_of(job: Object, workers: Sequence[Object]) -> list[TraceSpan]:
    """Return the job's own span, and after each span its children."""
    metadata, status = job["metadata"], job.get("status") or {}
    submitted, completed = _time(metadata.get("creationTimestamp")), _time(status.get("completionTime"))
    if submitted is None:
        return []
    episodes = _episodes(status.get("history") or (), completed)
    whole = TraceSpan(
        JOB_SPAN,
        f"{metadata['namespace']}/{metadata['name']}",
        "job",
        submitted,
        completed,
        "",
        {"phase": str(status.get("phase") or "")},
    )
    spans = [whole, *_states(episodes), *_rounds(episodes, job), *_recoveries(episodes, job, workers)]
    spans += _saves(workers)
    for worker in workers[:MOST_WORKERS]:
        spans += _lives(worker, completed)
    return [_within(each, whole) for each in spans]


def _time(text: object) -> datetime | None:
    """Parse a time; None for any other text, since any process of a Pod may write a report."""
    try:
        return parse_time(str(text)) if text else None
    except (TypeError, ValueError, OverflowError):
        return None


def _within(span: TraceSpan, whole: TraceSpan) -> TraceSpan:
    """Return the span within its job, and with its end after its beginning, since nodes' clocks differ."""
    begin = max(span.begin, whole.begin)
    if whole.end is not None:
        begin = min(begin, max(whole.begin, whole.end))
    end = span.end
    if whole.end is not None and end is not None:
        end = min(end, whole.end)
    end = None if end is None else max(begin, end)
    return replace(span, begin=begin, end=end)


def _episodes(history: Iterable[Object], completed: datetime | None) -> list[_Episode]:
    found: list[tuple[datetime, Object]] = []
    for entry in history:
        if (since := _time(entry.get("since"))) is not None:
            found.append((max(since, found[-1][0]) if found else since, entry))
    ends = [*(since for since, _ in found[1:]), completed]
    return [
        _Episode(entry["state"], since, end, entry.get("round") or 0, entry)
        for (since, entry), end in zip(found, ends, strict=False)
    ]


def _states(episodes: Sequence[_Episode]) -> Iterator[TraceSpan]:
    for (state, _), stretch in groupby(episodes, key=lambda each: (each.state, each.round)):
        together = [*stretch]
        first, last = together[0], together[-1]
        yield TraceSpan(
            f"{_key('state', first.begin)} {state} {first.round}",
            state,
            STATES,
            first.begin,
            last.end,
            attributes=_present(round=first.round, reason=first.entry.get("reason")),
        )


def _rounds(episodes: Sequence[_Episode], job: Object) -> Iterator[TraceSpan]:
    """Yield each round, from its world to the next one; for a job with replica groups, each version."""
    world = (job.get("status") or {}).get("rendezvous") or {}
    for round_, stretch in groupby(episodes, key=lambda each: each.round):
        together = [*stretch]
        first, last = together[0], together[-1]
        if not round_:
            continue
        resume = (world.get("resume") or {}) if world.get("round") == round_ else {}
        yield TraceSpan(
            round_span(round_),
            f"round {round_}",
            ROUNDS,
            first.begin,
            last.end,
            attributes=_present(
                members=first.entry.get("members"),
                reason=first.entry.get("reason"),
                resumedFrom=resume.get("tier"),
                resumedStep=resume.get("step"),
            ),
        )


def _recoveries(episodes: Sequence[_Episode], job: Object, workers: Sequence[Object]) -> Iterator[TraceSpan]:
    """Yield each recovery with its parts."""
    for together, after in _outages(episodes):
        failure: Object = next((each.entry["failure"] for each in together if each.entry.get("failure")), {})
        key = f"{_key('recovery', together[0].begin)} of round {together[0].round}"
        whole = TraceSpan(
            key,
            f"recovery from {failure.get('exitClass') or 'a failure'}",
            RECOVERIES,
            together[0].begin,
            together[-1].end,
            attributes=_present(worker=failure.get("worker"), message=failure.get("message")),
        )
        yield whole
        yield from _parts(whole, _marks(together, after, failure, job, workers))


def _outages(episodes: Sequence[_Episode]) -> Iterator[tuple[list[_Episode], _Episode | None]]:
    """Yield the episodes of each recovery, which may include node checks, and the episode after it."""
    together: list[_Episode] = []
    for each in (*episodes, None):
        is_check = each is not None and each.state == JobState.CHECKING and bool(together)
        if each is not None and (each.state in AFTER_A_FAILURE or is_check):
            together.append(each)
        elif together:
            yield together, each
            together = []


def _marks(
    together: Sequence[_Episode],
    after: _Episode | None,
    failure: Object,
    job: Object,
    workers: Sequence[Object],
) -> list[datetime | None]:
    """Return the end of each of PARTS; None for one without a recorded end."""
    begin, round_ = together[0].begin, (after or together[-1]).round
    world = (job.get("status") or {}).get("rendezvous") or {}
    formed = _time(world.get("formedAt")) if world.get("round") == round_ else None
    marks = [
        _time(failure.get("time")),
        formed or next((each.begin for each in together if each.round == round_), None),
    ]
    reports = [((worker.get("status") or {}).get("agent") or {}).get("start") or {} for worker in workers]
    starts = [each for each in reports if each.get("round") == round_]
    for mark in MARKS:
        times = [time for each in starts if (time := _time(each.get(mark))) is not None]
        marks.append(max(times, default=None))
    # Times before the failure belong to the broken round.
    return [*(mark if mark is not None and mark > begin else None for mark in marks), together[-1].end]


def _parts(whole: TraceSpan, marks: Sequence[datetime | None]) -> Iterator[TraceSpan]:
    begin = whole.begin
    for name, mark in zip(PARTS, marks, strict=True):
        if mark is not None:
            end = max(begin, mark if whole.end is None else min(mark, whole.end))
            yield TraceSpan(f"{whole.key} {name}", name, RECOVERIES, begin, end, whole.key)
            begin = end


def _saves(workers: Sequence[Object]) -> Iterator[TraceSpan]:
    """Yield the newest save that the script has reported; earlier ones are not recorded."""
    reports = (((each.get("status") or {}).get("agent") or {}).get("progress") or {} for each in workers)
    saved = [(each["checkpointStep"], each) for each in reports if each.get("checkpointStep") is not None]
    step, progress = max(saved, key=lambda each: each[0], default=(0, {}))
    if (at := _time(progress.get("checkpointTime"))) is not None:
        yield TraceSpan(f"save {step}", f"save of step {step}", SAVES, at, at, attributes={"step": step})


def _lives(worker: Object, completed: datetime | None) -> Iterator[TraceSpan]:
    """Yield the Pods of a worker, each with its time to start."""
    name, lives = worker["metadata"]["name"], (worker.get("status") or {}).get("history") or ()
    begins = [_time(each.get("createdAt")) for each in lives]
    for number, (life, begin) in enumerate(zip(lives, begins, strict=True)):
        if begin is None:
            continue
        known = (_time(life.get("endedAt")), *begins[number + 1 : number + 2], completed)
        end = min((at for at in known if at is not None), default=None)
        end = None if end is None else max(begin, end)
        key = f"{name}-{life['incarnation']}"
        attributes = _present(
            node=life.get("nodeName"), exitClass=life.get("exitClass"), reason=life.get("reason")
        )
        yield TraceSpan(key, f"Pod {life['incarnation']}", name, begin, end, attributes=attributes)
        up = _time(life.get("runningAt"))
        if up is not None:
            up = max(begin, up if end is None else min(up, end))
            yield TraceSpan(f"{key} starting", "starting", name, begin, up, key)


def _key(kind: str, begin: datetime) -> str:
    return f"{kind} {begin.isoformat()}"


def _present(**values: str | int | None) -> dict[str, str | int]:
    return {name: value for name, value in values.items() if value}
