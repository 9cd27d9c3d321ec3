"""`dlr job diagnose`: one page for a ticket: how the job is, why, the evidence, and what to do."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import UTC

from controller.wording import counted
from crds.release import VERSION
from dlr.commands.options import Context, JobName, Kubeconfig, Namespace, Output
from dlr.commands.output import Format, print_json
from dlr.job.case import JSON, Case, Sentence, read_case
from dlr.job.evidence import Section, sections
from dlr.job.findings import Finding, findings
from dlr.job.wording import plain, printable_line
from dlr.kube.api import Api
from dlr.kube.connection import connect
from dlr.kube.waiting import waiting_for

WIDTH = 100


MOST_LINES = 12
"""Of a traceback or of stacks, the last ones; `dlr job logs --failed` shows the rest."""


def diagnose(
    name: JobName,
    namespace: Namespace = None,
    output: Output = Format.TABLE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Say on one page how a job is, why, and what to do."""
    api = Api(connect(kubeconfig, context, namespace))
    with waiting_for("what there is to know of the job"):
        case, unread = read_case(api, name)
    found = findings(case)
    made = sections(case, found)
    if output is Format.JSON:
        print_json(as_json(case, found, made, unread))
    else:
        print("\n".join(page(case, made, unread)))


def page(case: Case, made: Sequence[Section], unread: Sequence[str]) -> list[str]:
    metadata = case.job["metadata"]
    moment = f"{case.now.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    lines = [f"ElasticJob {metadata['namespace']}/{metadata['name']} at {moment}, by dlr {VERSION}"]
    for section in made:
        lines += ["", section.title]
        for each in section.sentences:
            lines += _sentence_lines(each)
    if unread:
        lines += ["", "Not read"]
        lines += [line for text in unread for line in _wrapped(plain(text))]
    return lines


def _sentence_lines(each: Sentence) -> list[str]:
    lines = _wrapped(f"{each.text} [{'; '.join(map(str, each.fields))}]")
    left_out = len(each.lines) - MOST_LINES
    lines += [f"      … {counted(left_out, 'line')} before"] if left_out > 0 else []
    return lines + [f"      {printable_line(line)}" for line in each.lines[-MOST_LINES:]]


def _wrapped(text: str) -> list[str]:
    """Wrap the text as an entry of a list; neither a path nor a name is broken."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent="  - ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def as_json(case: Case, found: Sequence[Finding], made: Sequence[Section], unread: Sequence[str]) -> JSON:
    metadata = case.job["metadata"]
    return {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "time": case.now.isoformat(),
        "cause": found[0].cause,
        "verdict": found[0].sentence.as_json(),
        "sections": [
            {"title": section.title, "sentences": [each.as_json() for each in section.sentences]}
            for section in made
        ],
        "notRead": list(unread),
    }
