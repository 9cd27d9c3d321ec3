"""The report of an agent that ends before it has begun: its arguments are refused, or there is no torch.

A shell may go on behind it (`torchrun --bogus | tee log`), so that its exit code says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone

from agent.environment import Environment, InvalidEnvironmentError
from agent.facts.failure import Failure
from agent.kube.api import Api, ApiClient, ApiError
from agent.report.elasticworker import is_of_this_pod, path_of
from agent.report.report import Facts, Report
from agent.report.reporter import Reporter
from crds.protocol import AgentState

MOST_SECONDS = 10.0
"""Time for the API server to take the report; without it the exit code alone counts."""


def report_failed_start(
    environ: Mapping[str, str], message: str, exit_code: int, api: Api | None = None
) -> None:
    """Report a failed start; do nothing outside a job's Pod.

    Args:
        environ: the variables of the Pod.
        message: what was wrong, in one sentence.
        exit_code: that the agent will leave with.
        api: in place of the cluster that the environment names.
    """
    try:
        me = Environment.read(environ)
        api = api or ApiClient.in_cluster(environ)
    except InvalidEnvironmentError:
        return
    now = datetime.now(timezone.utc)
    round_, sequence = _past(api, me)
    failure = Failure(sequence + 1, round_, None, 0, exit_code, message, "", now)
    report = Report(AgentState.FAILED, now, round_, failure)
    facts = Facts(0, 1, {"kind": "", "count": 0, "model": ""})
    reporter = Reporter(api, me, facts, report, progress_seconds=MOST_SECONDS)
    reporter.start()
    reporter.flush(MOST_SECONDS)
    reporter.stop()


def _past(api: Api, me: Environment) -> tuple[int, int]:
    """Return the newest round and the failures that earlier agents of this Pod reported; 0 where unknown."""
    try:
        status = api.merge_patch(f"{path_of(me)}/status", {}).get("status") or {}
    except ApiError:
        return 0, 0
    last = status.get("agent") or {}
    if not is_of_this_pod(last, me):
        return 0, 0
    return int(last.get("observedRound") or 0), int((last.get("failure") or {}).get("sequence") or 0)
