"""The report of an agent that ends before it has begun: its arguments are refused, or there is no torch.

A shell may go on behind it (`torchrun --bogus | tee log`), so that its exit code says nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import datetime, timezone

from agent.environment import Environment, InvalidEnvironmentError
from agent.facts.failure import Failure
from agent.flags import is_below_an_agent
from agent.kube.api import Api, ApiClient
from agent.report import launch_mark
from agent.report.elasticworker import is_of_this_pod, own_status
from agent.report.report import Facts, Report
from agent.report.reporter import Reporter
from controller.errors import ApiError
from crds.agent_report import Accelerators, AgentState

MOST_SECONDS = 10.0
"""Time for the API server to take the report; without it the exit code alone counts."""


def refuse_to_start(message: str, exit_code: int) -> int:
    """Say what keeps the agent from beginning, to people and to the job; return the exit code."""
    print(message, file=sys.stderr)
    launch_mark.explain(os.environ, message)
    report_failed_start(os.environ, message, exit_code)
    return exit_code


def report_failed_start(environ: Mapping[str, str], message: str, exit_code: int) -> None:
    """Report a failed start; do nothing outside a job's Pod, or below the agent that speaks for it.

    Args:
        message: what was wrong, in one sentence.
        exit_code: that the agent will leave with.
    """
    if is_below_an_agent(environ):
        return
    try:
        me = Environment.read(environ)
        api = ApiClient.in_cluster(environ)
    except InvalidEnvironmentError:
        return
    now = datetime.now(timezone.utc)
    round_, sequence = _past(api, me)
    failure = Failure(sequence=sequence + 1, round=round_, exit_code=exit_code, message=message, time=now)
    report = Report(AgentState.FAILED, now, round_, failure)
    facts = Facts(0, 1, Accelerators("", 0))
    reporter = Reporter(api, me, facts, report, progress_seconds=MOST_SECONDS)
    reporter.start()
    reporter.flush(MOST_SECONDS)
    reporter.stop()


def _past(api: Api, me: Environment) -> tuple[int, int]:
    """Return the newest round and the failures that earlier agents of this Pod reported; 0 where unknown."""
    try:
        last = own_status(api, me).get("agent") or {}
    except ApiError:
        return 0, 0
    if not is_of_this_pod(last, me):
        return 0, 0
    return int(last.get("observedRound") or 0), int((last.get("failure") or {}).get("sequence") or 0)
