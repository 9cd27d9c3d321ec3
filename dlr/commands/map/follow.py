"""Shows the progress of a `dlr map` until its end, and the outcome of its lines."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from agent.shards.job_sets import undone_of
from controller.wording import counted
from crds.intervals import NONE, Intervals, count, from_text, numbers_of, union, whole
from dlr.commands.errors import CommandError, Interrupted
from dlr.commands.map.submission import Submitted
from dlr.job import report
from dlr.job.lookup import NoSuchJob, get_job, list_workers, shard_sets_of
from dlr.job.progress import pace_parts, sets_of
from dlr.job.wording import in_command, percent_done, plain, utc_now
from dlr.kube.api import JSON, Api
from dlr.kube.following import until_finished
from dlr.kube.waiting import show_passing
from dlr.tasks.task import SET_NAME

QUIET_SECONDS = 10.0
"""Interval between lines of progress without a terminal."""


@dataclass(frozen=True)
class LinesOutcome:
    """Outcome of a list, by indices of its lines."""

    size: int
    failed: Intervals
    """Lines that failed for good."""
    left: Intervals
    """Failed lines, and lines that were not begun or not finished before the end of the job."""
    reason: str
    """Error of the first failed line."""


def follow(api: Api, made: Submitted, folder: Path) -> tuple[JSON, list[JSON]]:
    """Show the progress until the job ends, and return the job with its ShardSets.

    Raises:
        CommandError: the job was deleted.
    """
    job, sets = made.job, list[JSON]()
    display = _Display(made.name)
    uid = made.job["metadata"]["uid"]

    def fetch() -> tuple[JSON, list[JSON], list[JSON]]:
        job = get_job(api, made.name)
        if job["metadata"]["uid"] != uid:
            raise NoSuchJob(f"The job {made.name!r} was deleted, and another has its name now.")
        return job, shard_sets_of(api, job), list_workers(api, made.name)

    try:
        for job, sets, workers in until_finished(fetch, lambda seen: report.is_finished(seen[0])):
            display.show(progress_line(job, sets, workers, made.task.size))
    except NoSuchJob:
        raise _left_behind(made, sets, folder) from None
    finally:
        show_passing("")
    return job, sets


def progress_line(job: JSON, sets: list[JSON], workers: list[JSON], size: int) -> str:
    found = sets_of(job, sets, workers, utc_now())
    progress = next((each for each in found if each.name == SET_NAME), None)
    if progress is None:
        parts = [f"0 of {counted(size, 'line')}" if size else "waiting"]
    else:
        done = f"{progress.done} of {counted(progress.size, 'line')}"
        parts = [percent_done(progress.done, progress.size), done, *pace_parts(progress)]
    if not report.is_finished(job):
        counts = report.workers_line(job)
        parts.append(f"{counts} {'worker' if counts == '1' else 'workers'}")
        if progress is None and (why := report.why_line(job)):
            parts.append(plain(why))
    return ", ".join(parts)


def outcome_of(sets: list[JSON], size: int) -> LinesOutcome:
    """Return the outcome, from the job's ShardSets."""
    for wire in (each.get("status") or {} for each in sets):
        if wire.get("name") == SET_NAME:
            failed = from_text(wire.get("failedElements") or "")
            return LinesOutcome(
                wire["size"], failed, union(failed, undone_of(wire)), wire.get("reason") or ""
            )
    return LinesOutcome(size, NONE, whole(size) if size else NONE, "")


def conclude(made: Submitted, job: JSON, sets: list[JSON], folder: Path) -> None:
    """Print the outcome, and write the lines that are not done into a file.

    Raises:
        CommandError: some lines are not done.
    """
    found = outcome_of(sets, made.task.size)
    ended_well = report.phase(job) == "Succeeded"
    if ended_well and not found.left:
        lines = "its line is" if found.size == 1 else f"all {found.size} lines are"
        print(f"dlr: {lines} done.", file=sys.stderr)
        return
    parts = []
    if found.failed:
        parts.append(
            f"{count(found.failed)} of {counted(found.size, 'line')} failed "
            f"({'number' if count(found.failed) == 1 else 'numbers'} {numbers_of(found.failed)})"
        )
        if found.reason:
            parts.append(f"the first: {plain(found.reason)}")
    if not ended_well:
        parts.append(f"the job {made.name!r} failed: {why_failed(job)}")
        if not found.size:  # only the Pods see the file, and none has read it
            raise CommandError("; ".join([*parts, "none of its lines was begun"]) + ".")
        parts.append(f"{count(found.left)} of {counted(found.size, 'line is', 'lines are')} not done")
    raise CommandError("; ".join([*parts, _saved(made, found, folder)]) + ".")


def _left_behind(made: Submitted, sets: list[JSON], folder: Path) -> CommandError:
    """Return the error for a job that was deleted meanwhile."""
    found = outcome_of(sets, made.task.size)
    many = f"{count(found.left)} of {found.size or 'its'} lines are not known to be done"
    return CommandError(f"The job {made.name!r} was deleted; {many}; {_saved(made, found, folder)}.")


def _saved(made: Submitted, found: LinesOutcome, folder: Path) -> str:
    """Write the lines that are not done into a file, and describe where they are."""
    lines = made.lines()
    if lines is None:
        return f"they are in {made.task.lines_path}, which cannot be read here"
    path = folder / f"{made.name}.left"
    try:
        with path.open("wb") as file:
            for start, end in found.left:
                stop = min(end, len(lines))
                file.writelines(lines[place] + b"\n" for place in range(start, stop))
    except OSError as error:
        return (
            f"they cannot be written into {path}: {error.strerror}; while the job is there, "
            f"`dlr map --attach {in_command(made.job['metadata'])}` in another folder writes them"
        )
    return f"they are in {path}, which `dlr map` takes"


def why_failed(job: JSON) -> str:
    return plain(report.message_of(report.condition_of(job, "Failed", "True"))) or "see its conditions"


def interrupted(made: Submitted) -> Interrupted:
    """Return the error after Ctrl-C, which leaves the job running."""
    one = in_command(made.job["metadata"])
    return Interrupted(
        f"The job {made.name!r} goes on; `dlr map --attach {one}` shows it again, and "
        f"`dlr job delete {one}` ends it."
    )


class _Display:
    """Progress display: one changing line on a terminal, occasional lines elsewhere."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last = ""
        self._printed_at = float("-inf")

    def show(self, line: str) -> None:
        now = time.monotonic()
        if line == self._last or (not sys.stderr.isatty() and now - self._printed_at < QUIET_SECONDS):
            return
        self._last, self._printed_at = line, now
        if not show_passing(f"{self._name}: {line}"):
            print(f"dlr: {self._name}: {line}", file=sys.stderr, flush=True)
