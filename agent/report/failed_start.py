"""Report of an agent that cannot start: its arguments are refused, or there is no torch.

Its exit code alone is not enough, since a shell may hide it (`torchrun --bogus | tee log`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from agent.environment import Environment, InvalidEnvironmentError
from agent.facts.failure import LocalFailure
from agent.flags import is_below_an_agent
from agent.kube.api import AgentApi, ApiClient
from agent.report import launch_mark
from agent.report.elasticworker import is_of_this_pod, own_status, sequence_after
from agent.report.report import AgentFacts, ReportBody
from agent.report.reporter import Reporter
from controller.errors import ApiError
from crds.agent_report import Accelerators, AgentState

MOST_SECONDS = 10.0
"""Time limit for the API server to accept the report; without it only the exit code counts."""


def refuse_to_start(message: str, exit_code: int) -> int:
    """Print and report the reason why the agent cannot start, and return the exit code."""
    print(message, file=sys.stderr)
    launch_mark.explain(os.environ, message)
    report_failed_start(os.environ, message, exit_code)
    return exit_code


def report_failed_start(environ: Mapping[str, str], message: str, exit_code: int) -> None:
    """Report a failed start; do nothing outside a job's Pod, or below the Pod's agent.

    Args:
        message: the reason, in one sentence.
        exit_code: exit code of the agent.
    """
    if is_below_an_agent(environ):
        return
    try:
        me = Environment.read(environ)
        api = ApiClient.in_cluster(environ)
    except InvalidEnvironmentError:
        return
    now = datetime.now(timezone.utc)
    last = _last(api, me)
    past = last if is_of_this_pod(last, me) else {}
    round_ = int(past.get("observedRound") or 0)
    failures = int((past.get("failure") or {}).get("sequence") or 0)
    failure = LocalFailure(
        sequence=failures + 1, round=round_, exit_code=exit_code, message=message, time=now
    )
    report = ReportBody(AgentState.FAILED, now, round_, failure)
    facts = AgentFacts(0, 1, Accelerators("", 0))
    sequence = sequence_after(last, me)
    reporter = Reporter(api, me, facts, report, progress_seconds=MOST_SECONDS, sequence=sequence)
    reporter.start()
    reporter.flush(MOST_SECONDS)
    reporter.stop()


def _last(api: AgentApi, me: Environment) -> dict[str, Any]:
    """Return the last report of this slot; {} if there is none, or the API server does not answer."""
    try:
        return own_status(api, me).get("agent") or {}
    except ApiError:
        return {}
