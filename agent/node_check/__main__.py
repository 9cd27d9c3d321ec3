"""`python -m agent.node_check`: the main program of a Pod that tests a node for a NodeCheck.

For the controller it is an agent like those of a job: it renews its Lease, listens for others, carries out
its duties in the check, and reports. It leaves when the check is over.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from datetime import datetime, timezone
from typing import NoReturn

from agent.environment import Environment, InvalidEnvironmentError, listen
from agent.kube.api import ApiClient
from agent.logs import log_to_stderr
from agent.monitor import accelerators
from agent.node_check.duties import CheckDuties
from agent.report.elasticworker import last_report, section_of, sequence_after
from agent.report.heartbeat import LeaseRenewal
from agent.report.report import AgentFacts, ReportBody
from agent.report.reporter import Reporter
from crds.agent_report import AgentCheck, AgentState
from crds.names import ENV_CHECK_NAME

EXIT_USAGE = 2
FLUSH_SECONDS = 3.0
"""Time limit for the last report, within the Pod's grace period."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main() -> int:
    """Return the exit code: 0 when the check is over, with any findings; 143 when stopped."""
    try:
        me = Environment.take(os.environ, owner=ENV_CHECK_NAME)
        api = ApiClient.in_cluster(os.environ)
    except InvalidEnvironmentError as error:
        print(f"agent.node_check: {error}", file=sys.stderr)
        return EXIT_USAGE
    log_to_stderr()
    for signum in _SIGNALS:
        signal.signal(signum, _leave)
    with contextlib.ExitStack() as cleanup:
        heartbeat = LeaseRenewal(api, me)
        heartbeat.start()
        cleanup.callback(heartbeat.stop)
        try:
            listener, _ = listen(me, cleanup)
        except InvalidEnvironmentError as error:
            print(f"agent.node_check: {error}", file=sys.stderr)
            return EXIT_USAGE
        reporter = _reporter(api, me, listener.port, heartbeat)
        reporter.start()
        cleanup.callback(_report_end, reporter)
        duties = CheckDuties(api, me, reporter, me.owner_name)
        cleanup.enter_context(duties.watcher.woken_by_signals())
        duties.run(until_over=True)
    return 0


def _reporter(api: ApiClient, me: Environment, port: int, heartbeat: LeaseRenewal) -> Reporter:
    facts = AgentFacts(port, local_world_size=1, accelerators=accelerators.detect())
    predecessor = last_report(api, me)
    first = ReportBody(
        AgentState.READY,
        since=datetime.now(timezone.utc),
        check=section_of(predecessor, "check", AgentCheck),
    )
    return Reporter(
        api,
        me,
        facts,
        first,
        progress_seconds=me.heartbeat_seconds,
        sequence=sequence_after(predecessor, me),
        on_final_refusal=heartbeat.stop,
    )


def _report_end(reporter: Reporter) -> None:
    for signum in _SIGNALS:
        signal.signal(signum, signal.SIG_IGN)  # it is leaving already
    reporter.report(AgentState.STOPPED)
    reporter.flush(FLUSH_SECONDS)
    reporter.stop()


def _leave(signum: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())
