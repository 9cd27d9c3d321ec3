"""The few figures at the top of a job's page. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from controller.wording import counted
from crds.grouping import is_grouped
from dlr.job import report
from dlr.job.case import Case
from dlr.job.goodput import goodput_line
from dlr.job.headline import people
from dlr.job.timeline.outages import Outage, hours_line, total_hours
from dlr.job.wording import duration, loss, significant
from dlr.kube.api import JSON


def figures(case: Case, outages: Sequence[Outage]) -> list[JSON]:
    """Return each with its label, value and note; one of a whole has its share of it."""
    return [*_workers(case), *_progress(case), *_goodput(case), *_lost(case, outages)]


def _figure(label: str, value: str, note: str = "", share: float | None = None) -> JSON:
    return {"label": label, "value": value, "note": note, "share": share}


def _workers(case: Case) -> Iterator[JSON]:
    *value, what = people(case).split()
    round_ = (case.status.get("rendezvous") or {}).get("round")
    note = f"round {round_}" if round_ else "no round yet"
    if is_grouped(case.job):
        note = f"{report.workers_line(case.job)} workers"
    yield _figure(what.capitalize(), " ".join(value), note)


def _progress(case: Case) -> Iterator[JSON]:
    progress = case.progress
    if progress is None:
        return
    if progress.share is None:
        yield _figure("Progress", f"{progress.step:,}", "steps")
    else:
        note = f"step {progress.step:,} of {progress.total:,}"
        yield _figure("Progress", f"{progress.share:.0%}", note, progress.share)
    if progress.seconds_per_step and not report.is_finished(case.job):
        left = f"about {duration(progress.seconds_left)} left" if progress.seconds_left else ""
        yield _figure("Step time", f"{significant(progress.seconds_per_step)} s", left)


def _goodput(case: Case) -> Iterator[JSON]:
    if case.account and (line := goodput_line(case.account)):
        value, _, repeats = line.partition(" of the time since submission")
        yield _figure("Goodput", value, repeats.removeprefix("; "), case.account.ratio)


def _lost(case: Case, outages: Sequence[Outage]) -> Iterator[JSON]:
    if case.life is None:
        return
    if not outages:
        yield _figure("Lost to failures", "nothing")
        return
    hours = total_hours(outages)
    note = counted(len(outages), "outage") + (f", {hours_line(hours)}" if hours else "")
    yield _figure("Lost to failures", loss(sum(each.seconds for each in outages)), note)
