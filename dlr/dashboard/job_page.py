"""Content of a job's page: verdict, timeline, failures, waits, ranks and nodes. Pure.

All lists are bounded, so the size of the page does not grow with the job; the page names the number of
omitted entries. Times are seconds since the job's submission, as in a timeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from controller.wording import counted
from crds import names
from crds.grouping import group_name, is_grouped
from dlr.dashboard.curves import NO_PAST, past_of, usage_line
from dlr.dashboard.ranks import grid
from dlr.job import report
from dlr.job.case import Case
from dlr.job.evidence import EvidenceSection, sections
from dlr.job.facts import facts_of
from dlr.job.failures import heading
from dlr.job.findings import JobFinding
from dlr.job.goodput import goodput_line, time_by_state
from dlr.job.members import members_of, trouble
from dlr.job.nodes import node_states
from dlr.job.odd_ranks import HANGING, OddRanks
from dlr.job.stacks import asked_at, merge, read, stack_lines
from dlr.job.timeline.drawing import draw
from dlr.job.timeline.life import JobTimeline
from dlr.job.verdict import JobVerdict, people, verdict
from dlr.job.wording import duration, loss, parse_time, percent_done, significant
from dlr.kube.api import JSON

MOST_FAILURES = 30
MOST_EVENTS = 20
MOST_NODES = 200
MOST_GROUPS = 200
MOST_LANES = 16
"""Most workers in the timeline; of more, only eventful ones are drawn. The grid of ranks has all."""
MOST_SPANS = 60
"""Most stretches to draw for a worker, the newest; it has up to 16 Pods with up to 12 states each."""
MOST_TEXT = 300
MOST_LINES = 60
MOST_STACK_LINES = 120
MOST_FINDINGS = 6
FACTS = ("Phase", "World", "Groups", "Group", "Checkpoints", "Failures")
"""Facts that no other part of the page shows."""
EVIDENCE = ("Conditions", "Waiting", "Budgets", "Shards")
"""Sections of a diagnosis that the page shows unchanged."""
ROUTINE = frozenset({"Scheduled", "Pulling", "Pulled", "Created", "Started", "Killing"})
"""Reasons of Events that every Pod has."""


def job_page(case: Case) -> JSON:
    top = verdict(case)
    evidence = {section.title: section for section in sections(case, top)}
    metadata, life = case.job["metadata"], case.life
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "phase": report.phase(case.job),
        "finished": report.is_finished(case.job),
        "cause": top.cause,
        "next": top.next_start,
        "headline": {"text": top.text, "state": top.word},
        "odd": [{"what": each.what, "state": each.tone, "text": each.text} for each in top.odd],
        "findings": [_finding(each) for each in top.findings[:MOST_FINDINGS]],
        "figures": _figures(case, top),
        "facts": [(each.label, each.text[:MOST_TEXT]) for each in facts_of(case) if each.label in FACTS],
        "times": time_by_state(case.account, case.job, case.now) if case.account else {},
        "life": _life(life) if life else None,
        "failures": _failures(life) if life else [],
        "failureCount": top.failures,
        "changes": _changes(life) if life else [],
        "culprit": _culprit(case),
        "stacks": _stacks(case.job, case.workers),
        "evidence": [
            {"title": title, "sentences": shown}
            for title in EVIDENCE
            if (shown := _sentences(evidence, title))
        ],
        "steps": {
            "past": past_of(case.job, case.reports, life.submitted) if life else NO_PAST,
            "usage": usage_line(case),
            "slowSince": _slow_since(case, life) if life else None,
        },
        "groups": _groups(case),
        "ranks": grid(case, top.odd),
        "nodes": _nodes(case),
        "nodeEvidence": _sentences(evidence, "Nodes"),
        "events": _events(case),
        "logRank": _log_rank(case, top.odd),
        "unread": [text[:MOST_TEXT] for text in case.unread],
    }


def _finding(each: JobFinding) -> JSON:
    """Return a finding without its lines, which the failure has, too."""
    return {"text": each.sentence.text, "advice": [one.text for one in each.advice]}


def _sentences(evidence: dict[str, EvidenceSection], title: str) -> list[JSON]:
    return [each.as_json() for each in evidence[title].sentences] if title in evidence else []


def _slow_since(case: Case, life: JobTimeline) -> float | None:
    """Return the time at which the job became slow, in seconds since submission."""
    if case.warning("Slow") is None:
        return None
    times = [(each.get("slow") or {}).get("since") for _, each in case.reports]
    since = max((moment for each in times if (moment := parse_time(each))), default=None)
    return None if since is None else round((since - life.submitted).total_seconds(), 1)


def _life(life: JobTimeline) -> JSON:
    eventful = [lane for lane in life.lanes if lane.failures or lane.starts]
    is_small = len(life.lanes) + life.lanes_left_out <= MOST_LANES
    lanes = life.lanes if is_small else tuple(eventful[:MOST_LANES])
    return {
        "submitted": life.submitted.timestamp(),
        "seconds": life.seconds,
        "knownSince": life.known_since,
        "drawing": draw(replace(life, lanes=lanes), most_spans=MOST_SPANS),
        "isEventful": bool(eventful),
        "lanesLeftOut": life.lanes_left_out + len(life.lanes) - len(lanes),
    }


def _failures(life: JobTimeline) -> list[JSON]:
    """Return the failures, the newest first; the cost of an outage is at its first failure."""
    nodes = {lane.title: lane.node for lane in life.lanes}
    return [
        {
            "at": failure.at,
            "worker": failure.who,
            "node": nodes.get(failure.who, ""),
            "class": failure.what,
            "text": "; ".join(filter(None, (failure.survivors, failure.text[:MOST_TEXT]))),
            "seconds": failure.outage.seconds if failure.outage else None,
        }
        for failure in reversed(life.failures[-MOST_FAILURES:])
    ]


def _changes(life: JobTimeline) -> list[JSON]:
    """Return the planned changes, the newest first."""
    return [
        {"at": each.at, "state": each.state, "seconds": each.pause.seconds, "text": each.text[:MOST_TEXT]}
        for each in reversed(life.changes)
    ]


def _culprit(case: Case) -> JSON | None:
    """Return the last failure with its message, its traceback or stacks, and the end of its log."""
    culprit = case.culprit
    if culprit is None:
        return None
    return {
        "heading": [(label, text) for label, text in heading(culprit, case.now) if label != "Error"],
        "message": str(culprit.failure.get("message") or "").splitlines()[:MOST_LINES],
        "log": culprit.kept_log.splitlines()[-MOST_LINES:],
    }


def _stacks(job: JSON, workers: Sequence[JSON]) -> JSON | None:
    """Return the answers to the last request of `dlr job stacks`; the page itself requests none.

    Returns:
        None for a job that has ended. `processes` is 0 without a request, or before its first answer.
    """
    if report.is_finished(job):
        return None
    request = str(job["metadata"].get("annotations", {}).get(names.ANNOTATION_STACKS, ""))
    if not request:
        return {"asked": None, "processes": 0, "lines": [], "leftOut": 0, "silent": 0}
    answers, moment = read(request, workers), asked_at(request)
    lines = stack_lines(merge(answers.stacks), answers.where)
    return {
        "asked": None if moment is None else moment.timestamp(),
        "processes": len(answers.stacks),
        "lines": [line[:MOST_TEXT] for line in lines[:MOST_STACK_LINES]],
        "leftOut": max(0, len(lines) - MOST_STACK_LINES),
        "silent": len(answers.silent),
    }


def _groups(case: Case) -> JSON | None:
    """Return the replica groups; those that do not train come first, then those that restarted.

    None for a job without any.
    """
    if not is_grouped(case.job):
        return None
    members = members_of(case)
    shown = sorted(members.rows, key=trouble)[:MOST_GROUPS]
    return {
        "shown": [{**row, "job": group_name(case.name, row["GROUP"])} for row in shown],
        "leftOut": len(members.rows) - len(shown),
    }


def _nodes(case: Case) -> JSON:
    """Return the nodes, those in trouble first."""
    states = sorted(
        node_states(case),
        key=lambda each: (
            each.verdict in (None, "Healthy"),
            not each.cordon,
            each.ready is not False,
            each.name,
        ),
    )
    shown = [
        {"name": each.name, "verdict": each.verdict, "cordon": each.cordon, "ready": each.ready}
        for each in states[:MOST_NODES]
    ]
    unchecked = sum(each.verdict is None for each in states)
    return {"shown": shown, "leftOut": max(0, len(states) - MOST_NODES), "unchecked": unchecked}


def _events(case: Case) -> JSON:
    """Return the newest Events, and separately the routine ones that every Pod has."""
    telling, routine = list[JSON](), list[JSON]()
    for each in case.events:
        is_routine = each.get("reason") in ROUTINE and each.get("type") != "Warning"
        (routine if is_routine else telling).append(each)
    return {"shown": _event_rows(case, telling), "routine": _event_rows(case, routine)}


def _event_rows(case: Case, events: Sequence[JSON]) -> list[JSON]:
    rows = [report.event_row(event, case.job, case.now) for event in events[-MOST_EVENTS:]]
    return [
        {"seen": seen, "type": type_, "reason": reason, "message": message[:MOST_TEXT]}
        for seen, type_, reason, message in reversed(rows)
    ]


def _log_rank(case: Case, odd: Sequence[OddRanks]) -> int | None:
    """Return the rank whose log is open at first: a hanging rank, the culprit if none trains, or 0."""
    rank_of = report.ranks(case.job)
    if is_grouped(case.job) or not rank_of:
        return None
    hanging = next((rank_of.get(min(each.indices)) for each in odd if each.what == HANGING), None)
    if hanging is not None:
        return hanging
    rank = case.culprit.failure.get("rank") if case.culprit is not None and not case.trains else None
    return 0 if rank is None else int(rank)


def _figures(case: Case, top: JobVerdict) -> list[JSON]:
    """Return the figures, each with its label, value and note, and perhaps a share."""
    return [*_workers(case), *_progress(case), *_goodput(case), _lost(top)]


def _figure(label: str, value: str, note: str = "", share: float | None = None) -> JSON:
    return {"label": label, "value": value, "note": note, "share": share}


def _workers(case: Case) -> Iterator[JSON]:
    *value, what = people(case).split()
    note = f"{report.workers_line(case.job)} workers" if is_grouped(case.job) else ""
    yield _figure(what.capitalize(), " ".join(value), note)


def _progress(case: Case) -> Iterator[JSON]:
    progress = case.progress
    if progress is None:
        return
    if progress.total is None:
        note = "steps since its last start" if progress.since_start else "steps"
        yield _figure("Progress", f"{progress.step:,}", note)
    else:
        note = f"step {progress.step:,} of {progress.total:,}"
        yield _figure("Progress", percent_done(progress.step, progress.total), note, progress.share)
    if progress.seconds_per_step and not report.is_finished(case.job):
        left = f"about {duration(progress.seconds_left)} left" if progress.seconds_left else ""
        yield _figure("Step time", f"{significant(progress.seconds_per_step)} s", left)


def _goodput(case: Case) -> Iterator[JSON]:
    if case.account and (line := goodput_line(case.account)):
        value, _, repeats = line.partition(" of the time since submission")
        yield _figure("Goodput", value, repeats.removeprefix("; "), case.account.ratio)


def _lost(top: JobVerdict) -> JSON:
    note = counted(top.failures, "failure") if top.failures else ""
    return _figure("Lost to failures", loss(top.lost_seconds) if top.lost_seconds else "nothing", note)
