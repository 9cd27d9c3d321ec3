"""`dlr job diagnose`: one page for a ticket: the job's state, the cause, the evidence, and what to do."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from datetime import UTC

from rich.text import Text

from controller.wording import counted
from crds.release import VERSION
from dlr.commands.options import JobName, Output, with_cluster
from dlr.commands.output import Format, console, print_json, show
from dlr.job.case import Case, Sentence, read_case
from dlr.job.evidence import EvidenceSection, sections
from dlr.job.unreadable import naming_what_cannot_be_read
from dlr.job.verdict import JobVerdict, verdict
from dlr.job.wording import plain, printable_line
from dlr.kube.api import JSON, Api
from dlr.kube.waiting import waiting_for

WIDTH = 100
LINES_BELOW = 2
"""The line with the number of omitted lines, and the cursor's."""
MOST_LINES = 12
"""Most lines of a traceback or of stacks, the last ones; `dlr job logs --failed` shows the rest."""


@with_cluster
def diagnose(
    api: Api,
    name: JobName,
    output: Output = Format.TABLE,
) -> None:
    """Say on one page how a job is, why, and what to do."""
    with naming_what_cannot_be_read(name):
        with waiting_for("what there is to know of the job"):
            case = read_case(api, name)
        top = verdict(case)
        made = sections(case, top)
    if output is Format.JSON:
        print_json(as_json(case, top, made))
    elif sys.stdout.isatty():
        screen = console()
        lines = page(case, made, width=min(screen.width, WIDTH), spaced=False)
        for line in one_screen(lines, screen.height, case.in_command):
            show(Text(line, "" if line.startswith(" ") else "bold"))
    else:
        print("\n".join(page(case, made)))


def page(
    case: Case,
    made: Sequence[EvidenceSection],
    width: int = WIDTH,
    *,
    spaced: bool = True,
) -> list[str]:
    """Return lines of text, the verdict first."""
    metadata = case.job["metadata"]
    moment = f"{case.now.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    not_read = EvidenceSection("Not read", tuple(Sentence(plain(text)) for text in case.unread))
    lines: list[str] = []
    for section in [*made, not_read] if case.unread else made:
        lines.append(section.title)
        for each in section.sentences:
            lines += _sentence_lines(each, width)
        lines += [""] if spaced else []
    return [*lines, f"ElasticJob {metadata['namespace']}/{metadata['name']} at {moment}, by dlr {VERSION}"]


def one_screen(lines: Sequence[str], height: int, job: str) -> list[str]:
    """Return the lines that fit a terminal.

    Args:
        job: arguments that name the job in a command.
    """
    room = max(1, height - LINES_BELOW)
    if len(lines) <= room:
        return [*lines]
    more = counted(len(lines) - room, "more line")
    return [*lines[:room], f"… and {more}: dlr job diagnose {job} | less"]


def _sentence_lines(each: Sentence, width: int) -> list[str]:
    """Return an entry of a list, wrapped without breaking names."""
    lines = textwrap.wrap(
        each.text,
        width,
        initial_indent="  - ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    left_out = len(each.lines) - MOST_LINES
    lines += [f"      … {counted(left_out, 'line')} before"] if left_out > 0 else []
    return lines + [f"      {printable_line(line)}" for line in each.lines[-MOST_LINES:]]


def as_json(case: Case, top: JobVerdict, made: Sequence[EvidenceSection]) -> JSON:
    metadata = case.job["metadata"]
    return {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "time": case.now.isoformat(),
        "cause": top.cause,
        "verdict": top.text,
        "next": top.next_start,
        "failures": top.failures,
        "lostSeconds": top.lost_seconds,
        "findings": [
            {"cause": each.cause, **each.sentence.as_json(), "advice": [one.text for one in each.advice]}
            for each in top.findings
        ],
        "sections": [
            {"title": section.title, "sentences": [each.as_json() for each in section.sentences]}
            for section in made
        ],
        "notRead": list(case.unread),
    }
