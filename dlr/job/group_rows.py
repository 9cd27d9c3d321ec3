"""The lines of a status that are about replica groups, one each; pure functions of plain objects."""

from __future__ import annotations

from collections.abc import Sequence

from dlr.job.groups import index_of, training
from dlr.job.report import Row, current_report
from dlr.job.timeline.life import JobTimeline
from dlr.job.wording import duration, loss
from dlr.kube.api import JSON

COLUMNS = ("GROUP", "PHASE", "TRAINS", "ROUND", "STEP", "RESTARTS", "LAST FAILURE", "WHY")
NARROW_COLUMNS = ("GROUP", "PHASE", "TRAINS", "STEP", "RESTARTS", "LAST FAILURE")


def rows(job: JSON, workers: Sequence[JSON], life: JobTimeline | None) -> list[Row]:
    """Return a row for COLUMNS of each group.

    Args:
        workers: of all groups.
        life: that of the job.
    """
    failures = last_failures(life) if life is not None else {}
    steps: dict[int, int] = {}
    for worker in workers:
        if (step := (current_report(worker).get("progress") or {}).get("step")) is not None:
            steps[index_of(worker)] = max(step, steps.get(index_of(worker), 0))
    together = set(training(job))
    return [
        (
            each["index"],
            each.get("phase"),
            "yes" if each["index"] in together else "no",
            each.get("round"),
            steps.get(each["index"]),
            each.get("restarts", 0),
            failures.get(each["index"]),
            each.get("message") or None,
        )
        for each in (job.get("status") or {}).get("groups") or ()
    ]


def last_failures(life: JobTimeline) -> dict[int, str]:
    """Return, by the index of a group, when it last failed, how, and after which time it trained again.

    Args:
        life: that of the whole job.
    """
    found = {}
    for lane in life.lanes:
        if lane.failures:
            failure = lane.failures[-1]
            back = ""  # it failed again before it trained: the time is that of its first failure
            if (outage := failure.outage) is not None:
                is_back = outage.end < life.seconds
                back = f", back after {loss(outage.seconds)}" if is_back else ", not back yet"
            ago = duration(life.seconds - failure.at)
            found[lane.index] = f"{ago} ago{back}: {failure.what}, {failure.text}"
    return found


def narrow(row: Row) -> Row:
    """Return the row for a narrow terminal."""
    cells = dict(zip(COLUMNS, row, strict=True))
    return tuple(cells[column] for column in NARROW_COLUMNS)


def most_telling(rows: Sequence[Row], most: int) -> list[Row]:
    """Choose rows for a screen: those of groups that do not train first, then those that restarted."""
    if len(rows) <= most:
        return [*rows]
    shown = sorted(rows, key=lambda row: (row[2] != "no", not row[5]))[:most]
    return [row for row in rows if row in shown]
