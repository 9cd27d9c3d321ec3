"""One job as its page shows it: verdict, life, failures, what it waits for, ranks and nodes. Pure.

All lists are bounded, so the page has a size that does not grow with the job; how many entries were left out
is said beside them. Times are seconds since the job's submission, as in a timeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlr.dashboard.ranks import grid
from dlr.dashboard.series import NO_PAST, past_of, rounds_of
from dlr.dashboard.stacks import last_stacks
from dlr.job import report
from dlr.job.culprit import heading
from dlr.job.diagnose_case import Case
from dlr.job.diagnose_cost import (
    Outage,
    outages_of,
    own_failures,
    total_hours,
)
from dlr.job.diagnose_nodes import node_states
from dlr.job.diagnose_sections import Section, sections
from dlr.job.diagnose_verdict import findings
from dlr.job.failures import failures_line
from dlr.job.goodput import goodput_line, time_by_state
from dlr.job.progress import progress_line
from dlr.job.shards import shards_line
from dlr.job.states import COLORS
from dlr.job.timeline.episodes import Span
from dlr.job.timeline.life import Lane, Life
from dlr.job.timeline.verdict import LOST
from dlr.job.wording import parse_time

JSON = dict[str, Any]

MOST_FAILURES = 30
MOST_EVENTS = 20
MOST_NODES = 200
MOST_SPANS = 60
"""Of a lane, the newest: a worker has up to 16 Pods, and each up to 12 states."""
MOST_TEXT = 300
MOST_LINES = 60
EVIDENCE = ("Warnings", "Conditions", "Budgets", "Shards")
"""Sections of a diagnosis that the page has as they are."""


def job_page(case: Case, samples: Sequence[tuple[float, float]], unread: Sequence[str]) -> JSON:
    """
    Args:
        samples: of the job's step time, as the dashboard has seen it.
        unread: what could not be read, a sentence each.
    """
    found = findings(case)
    told = {section.title: section for section in sections(case, found)}
    metadata, life = case.job["metadata"], case.life
    outages = outages_of(life) if life else []
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "phase": report.phase(case.job),
        "finished": report.is_finished(case.job),
        "cause": found[0].cause,
        "verdict": found[0].sentence.as_json(),
        "also": _sentences(told, "Also"),
        "advice": _sentences(told, "What to do"),
        "facts": _facts(case),
        "share": case.progress.share if case.progress else None,
        "times": time_by_state(case.account, case.job, case.now) if case.account else {},
        "life": _life(life) if life else None,
        "failures": _failures(case, life, outages) if life else [],
        "lost": {
            "seconds": sum(outage.seconds for outage in outages),
            "workerHours": total_hours(outages),
            "states": list(LOST),
        },
        "culprit": _culprit(case),
        "stacks": last_stacks(case.job, case.workers),
        "evidence": [
            {"title": title, "sentences": each} for title in EVIDENCE if (each := _sentences(told, title))
        ],
        "shards": [shards_line(each) for each in case.shard_sets],
        "steps": {
            "rounds": rounds_of(life, case.reports) if life else [],
            "past": past_of(case.job, case.reports, life.submitted) if life else NO_PAST,
            "slowSince": _slow_since(case, life) if life else None,
            "samples": [list(sample) for sample in samples],
        },
        "ranks": grid(case.job, case.workers, case.now),
        "nodes": _nodes(case),
        "nodeEvidence": _sentences(told, "Nodes"),
        "events": _events(case),
        "unread": [text[:MOST_TEXT] for text in unread],
    }


def _sentences(told: dict[str, Section], title: str) -> list[JSON]:
    return [each.as_json() for each in told[title].sentences] if title in told else []


def _facts(case: Case) -> list[tuple[str, str]]:
    """(label, text): the lines of `dlr job status` that are not drawn."""
    job = case.job
    lines = [
        ("Phase", report.phase_line(job, case.now)),
        ("Workers", report.workers_line(job)),
        ("World", report.world_line(job, case.now)),
    ]
    if case.progress:
        line = progress_line(case.progress, is_finished=report.is_finished(job))
        lines.append(("Progress", line))
    if case.account and (line := goodput_line(case.account)):
        lines.append(("Goodput", line))
    if case.checkpoints:
        lines.append(("Checkpoints", case.checkpoints))
    if line := failures_line(job, case.workers):
        lines.append(("Failures", line))
    return [(label, line[:MOST_TEXT]) for label, line in lines]


def _slow_since(case: Case, life: Life) -> float | None:
    """Return since when the job is slow, in seconds since submission."""
    if case.warning("Slow") is None:
        return None
    told = [(report.get("slow") or {}).get("since") for _, report in case.reports]
    since = max((moment for each in told if (moment := parse_time(each))), default=None)
    return None if since is None else round((since - life.submitted).total_seconds(), 1)


def _life(life: Life) -> JSON:
    return {
        "submitted": life.submitted.timestamp(),
        "seconds": life.seconds,
        "knownSince": life.known_since,
        "goodput": life.goodput,
        "states": _spans(life.states),
        "rounds": [
            [each.number, each.at, each.members[:MOST_TEXT], each.reason[:MOST_TEXT]] for each in life.rounds
        ],
        "lanes": [_lane(lane) for lane in life.lanes],
        "lanesLeftOut": life.lanes_left_out,
        "share": [[round(at, 1), round(share, 4)] for at, share in life.training_share],
        "colors": COLORS,
    }


def _lane(lane: Lane) -> JSON:
    return {
        "title": lane.title,
        "node": lane.node,
        "spans": _spans(lane.spans),
        "failures": [[each.at, each.what, each.text[:MOST_TEXT], each.follows] for each in lane.failures],
        "starts": [[each.at, each.incarnation] for each in lane.starts],
    }


def _spans(spans: Sequence[Span]) -> list[list[Any]]:
    return [
        [span.state, round(span.begin, 2), round(span.end, 2), span.text[:MOST_TEXT]]
        for span in spans[-MOST_SPANS:]
    ]


def _failures(case: Case, life: Life, outages: Sequence[Outage]) -> list[JSON]:
    """The newest first; what each cost stands with the first of an outage."""
    by_failure = {outage.failures[0]: outage for outage in outages if outage.failures}
    found = []
    for failure, lane in reversed(own_failures(life)[-MOST_FAILURES:]):
        outage = by_failure.get((failure, lane))
        found.append(
            {
                "at": failure.at,
                "worker": lane.title,
                "node": lane.node,
                "class": failure.what,
                "text": failure.text[:MOST_TEXT],
                "seconds": outage.seconds if outage else None,
                "workerHours": outage.worker_hours if outage else None,
            }
        )
    return found


def _culprit(case: Case) -> JSON | None:
    """The last failure's rank: what it said with its traceback or stacks, and the end of its log."""
    culprit = case.culprit
    if culprit is None:
        return None
    return {
        "heading": [(label, text) for label, text in heading(culprit, case.now) if label != "Error"],
        "said": str(culprit.failure.get("message") or "").splitlines()[:MOST_LINES],
        "log": culprit.kept_log.splitlines()[-MOST_LINES:],
    }


def _nodes(case: Case) -> JSON:
    """Return the nodes, those with something against them first."""
    states = sorted(
        node_states(case),
        key=lambda state: (
            state.verdict in (None, "Healthy"),
            not state.cordon,
            state.ready is not False,
            state.name,
        ),
    )
    shown = [
        {"name": each.name, "verdict": each.verdict, "cordon": each.cordon, "ready": each.ready}
        for each in states[:MOST_NODES]
    ]
    return {"shown": shown, "leftOut": max(0, len(states) - MOST_NODES)}


def _events(case: Case) -> list[JSON]:
    """The newest first."""
    rows = [report.short_event_row(event, case.job, case.now) for event in case.events[-MOST_EVENTS:]]
    return [
        {"seen": seen, "type": type_, "reason": reason, "message": message[:MOST_TEXT]}
        for seen, type_, reason, message in reversed(rows)
    ]
