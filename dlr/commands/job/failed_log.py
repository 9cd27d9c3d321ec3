"""`dlr job logs --failed`: who failed first, why, and the log that led there.

The Pod's log is shown up to the failure: processes that started again in place write on in the same log. Once
the Pod is gone, the end that status kept is what there is.
"""

from __future__ import annotations

import sys
from collections import deque
from datetime import timedelta
from typing import Any

from rich.table import Table
from rich.text import Text

from controller.wording import counted
from crds.log_parts import is_log_part
from dlr.commands.output import show
from dlr.job.culprit import Culprit, find_culprit, heading
from dlr.job.lookup import get_job, list_workers
from dlr.job.merged_stacks import merge, stack_lines
from dlr.job.pod_log import Wanted, named_once
from dlr.job.wording import parse_time, printable_line, utc_now
from dlr.kube.api import PODS, Api, ApiFailure

LINES = 100
"""So many without --tail."""
LOOK_BACK = timedelta(minutes=15)
"""Where to look first, so that the log of a week need not be read for its end."""
CLOSE_BEHIND = timedelta(seconds=1)
"""A dying process's last words reach the log a little after its end was seen."""


def print_failed_log(api: Api, name: str, wanted: Wanted) -> None:
    job = get_job(api, name)
    culprit = find_culprit(job, list_workers(api, name))
    if culprit is None:
        print(_without_culprit(job), file=sys.stderr)
        return
    _print_heading(culprit)
    if culprit.stacks:
        _print_section("Stacks, the innermost frame first", stack_lines(merge(culprit.stacks)))
    lines = _pod_log(api, culprit, wanted)
    if lines:
        _print_section(f"Log of Pod {culprit.pod} up to the failure, {counted(len(lines), 'line')}", lines)
    elif culprit.kept_log:
        _print_section("End of the process's log, as status kept it", culprit.kept_log.splitlines())
    else:
        whose = f" of Pod {culprit.pod}" if culprit.pod else ""
        print(f"The log{whose} is gone, and status kept nothing of it.", file=sys.stderr)


def _without_culprit(job: dict[str, Any]) -> str:
    """A job may fail though no process and no Pod of it has: by elements of its shard sets, or a deadline."""
    name, status = job["metadata"]["name"], job.get("status") or {}
    if status.get("phase") != "Failed":
        return f"Nothing has failed in ElasticJob {name!r}."
    why = ": ".join(status[each] for each in ("reason", "message") if status.get(each))
    return f"No worker failed first in ElasticJob {name!r}; it failed by {why}. Its logs: dlr job logs {name}"


def _print_heading(culprit: Culprit) -> None:
    head = Table.grid(padding=(0, 2))
    for label, text in heading(culprit, utc_now()):
        head.add_row(Text(label, style="bold"), Text("\n".join(map(printable_line, text.splitlines()))))
    show(head)


def _print_section(title: str, lines: list[str]) -> None:
    show(Text(f"\n{title}:", style="bold"))
    for line in lines:
        print(printable_line(line))


def _pod_log(api: Api, culprit: Culprit, wanted: Wanted) -> list[str]:
    """The lines before the failure; none if the Pod or its log is gone."""
    if culprit.pod is None:
        return []
    try:
        parameters = wanted.parameters(api.get(PODS, culprit.pod))
        parameters.pop("tailLines", None)
        since = (culprit.time - LOOK_BACK).strftime("%Y-%m-%dT%H:%M:%SZ")
        return _read(api, culprit, parameters | {"sinceTime": since}, wanted) or _read(
            api, culprit, parameters, wanted
        )
    except ApiFailure as failure:
        if failure.reason in ("NotFound", "BadRequest"):  # the Pod, or its container's log, is gone
            return []
        raise


def _read(api: Api, culprit: Culprit, parameters: dict[str, str | int], wanted: Wanted) -> list[str]:
    most = LINES if wanted.tail_lines is None else wanted.tail_lines
    kept: deque[str] = deque(maxlen=most)
    until = culprit.time + CLOSE_BEHIND
    with api.log(str(culprit.pod), parameters, follow=False) as lines:
        for line in lines:
            stamp, _, text = line.partition(" ")
            moment = parse_time(stamp)
            if moment and moment > until:
                break
            if not is_log_part(text):
                kept.append(named_once(text))
    return list(kept)
