"""`dlr job diagnose`: one page for a ticket: how the job is, why, the evidence, and what to do."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from datetime import UTC
from importlib.metadata import version

from controller.wording import counted
from crds.further_nodes import whole
from dlr.commands.api import EVENTS, NODECHECKS, NODES, Api, ApiFailure
from dlr.commands.connection import connect
from dlr.commands.job import report
from dlr.commands.job.diagnose_case import JSON, Case, Sentence
from dlr.commands.job.diagnose_sections import Section, sections
from dlr.commands.job.diagnose_verdict import Finding, findings
from dlr.commands.job.diagnose_words import UNSCHEDULABLE
from dlr.commands.job.lookup import get_job, list_workers
from dlr.commands.options import Context, JobName, Kubeconfig, Namespace, Output
from dlr.commands.output import Format, plain, print_json, utc_now
from dlr.commands.waiting import waiting_for

WIDTH = 100
MOST_GETS = 20
MOST_LINES = 12
"""Of a traceback or of stacks, the last ones; `dlr job logs --failed` shows the rest."""


def diagnose(
    name: JobName,
    namespace: Namespace = None,
    output: Output = Format.TABLE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Say on one page how a job is, why, on what evidence, and what to do; for a ticket."""
    api = Api(connect(kubeconfig, context, namespace))
    with waiting_for("what there is to know of the job"):
        case, unread = read_case(api, name)
    found = findings(case)
    made = sections(case, found)
    if output is Format.JSON:
        print_json(as_json(case, found, made, unread))
    else:
        print("\n".join(page(case, made, unread)))


def read_case(api: Api, name: str) -> tuple[Case, list[str]]:
    """What there is to know, and what could not be read, a sentence each: nobody needs all rights for it."""
    job, workers = get_job(api, name), report.sort_workers(list_workers(api, name))
    unread: list[str] = []
    events = _readable(lambda: api.find(EVENTS), "Events", unread)
    checks = [whole(check) for check in _readable(lambda: api.find(NODECHECKS), "NodeChecks", unread)]
    hosts = {host for worker in workers if (host := (worker.get("status") or {}).get("nodeName"))}
    nodes = _readable(lambda: _nodes(api, hosts), "Nodes", unread)
    waits = (job.get("status") or {}).get("reason") == UNSCHEDULABLE
    every = _readable(lambda: api.find(NODES), "Nodes", unread) if waits else []
    case = Case(job, workers, report.job_events(events, job), checks, nodes, utc_now(), every)
    return case, list(dict.fromkeys(unread))


def _nodes(api: Api, hosts: set[str]) -> list[JSON]:
    """A few one by one, since a cluster may have thousands; of more, all at once."""
    if len(hosts) > MOST_GETS:
        return [node for node in api.find(NODES) if node["metadata"]["name"] in hosts]
    found = []
    for host in sorted(hosts):
        try:
            found.append(api.get(NODES, host))
        except ApiFailure as failure:
            if failure.reason != "NotFound":
                raise
    return found


def _readable(read: Callable[[], list[JSON]], what: str, unread: list[str]) -> list[JSON]:
    try:
        return read()
    except ApiFailure as failure:
        unread.append(f"{what} could not be read: {failure}")
        return []


def page(case: Case, made: Sequence[Section], unread: Sequence[str]) -> list[str]:
    """Lines of text."""
    metadata = case.job["metadata"]
    moment = f"{case.now.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    lines = [f"ElasticJob {metadata['namespace']}/{metadata['name']} at {moment}, by dlr {version('dlr')}"]
    for section in made:
        lines += ["", section.title]
        for each in section.sentences:
            lines += _sentence_lines(each)
    if unread:
        lines += ["", "Not read"]
        lines += [line for text in unread for line in _wrapped(plain(text))]
    return lines


def _sentence_lines(told: Sentence) -> list[str]:
    lines = _wrapped(f"{told.text} [{'; '.join(map(str, told.fields))}]")
    left_out = len(told.lines) - MOST_LINES
    lines += [f"      … {counted(left_out, 'line')} before"] if left_out > 0 else []
    return lines + [f"      {_indented(line)}" for line in told.lines[-MOST_LINES:]]


def _wrapped(text: str) -> list[str]:
    """As an entry of a list; neither a path nor a name is broken."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent="  - ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _indented(line: str) -> str:
    """Without control characters, and with the indentation that it had."""
    return line[: len(line) - len(line.lstrip())].expandtabs(4) + plain(line)


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
