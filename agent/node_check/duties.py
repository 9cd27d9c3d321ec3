"""Tests this node for a NodeCheck: one duty after the other, each in processes of its own.

A duty that the check withdraws is ended at once, with all its processes.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import select
import threading
from collections.abc import Callable

from torch.distributed import DistError

from agent.connection.store import PeerStore
from agent.environment import Environment
from agent.kube.api import AgentApi
from agent.kube.watcher import Watcher
from agent.monitor.oom import OomWatch
from agent.node_check.view import Duty, LocalTests, PairTest, WorkerCheck, next_duty, with_local, with_pair
from agent.report.reporter import Reporter
from crds.agent_report import AgentCheck, ProbeEnding
from crds.names import ENV_JOB_KEY
from crds.phases import Accelerator
from healthcheck.probes.child import AUTO, CPU, CUDA
from healthcheck.probes.meeting import adjourn
from healthcheck.probes.report import ProbeReport
from healthcheck.probes.runner import Cancellation, Cancelled, Probe, run
from healthcheck.probes.suite import AGAIN, measure_again, run_local

logger = logging.getLogger(__name__)

LOCAL_SHARE = 0.8
"""Share of the check's time-out for local tests, which leaves time to report."""
PAIR_SHARE, PAIR_LIMIT_SECONDS = 0.8, 120.0
"""Share of the check's time-out for the test of a group, and its limit."""
JOIN_SHARE, JOIN_LIMIT_SECONDS = 0.3, 30.0
"""Share for the members of a group to meet, and its limit. It is part of the time for their test."""

SILENT_ENDINGS = (ProbeEnding.CRASHED, ProbeEnding.TIMED_OUT, ProbeEnding.UNAVAILABLE)
"""Endings after which a probe has not informed the others of its group."""

WATCH_SECONDS = 60.0
"""Approximate length of one watch. A check takes minutes, and the watch of an abandoned one stays open until
it ends."""

PACKAGE = "agent.node_check"
"""Package with the probe of a group, whose members meet in an agent's store."""

LEAVE_SECONDS = 15.0
"""Time limit for a probe to end: it is killed in milliseconds, or, on a wedged device, not at all."""

_DEVICE: dict[str, str] = {Accelerator.NVIDIA_GPU: CUDA, Accelerator.NONE: CPU}


class CheckDuties:
    """Carries out and reports this worker's duties in one NodeCheck.

    Args:
        check_name: name of the NodeCheck, in the worker's namespace.
    """

    def __init__(self, api: AgentApi, me: Environment, reporter: Reporter, check_name: str) -> None:
        self._me = me
        self._reporter = reporter
        self._name = check_name
        self._oom = OomWatch.of_pod(me.pod_uid)
        self._stopped = threading.Event()
        self.watcher = Watcher(
            api,
            "nodechecks",
            me.namespace,
            check_name,
            parse=functools.partial(WorkerCheck.parse, me=me.member),
            missing=WorkerCheck(),
            watch_seconds=WATCH_SECONDS,
        )

    def run(self, *, until_over: bool = False) -> None:
        """Carry out duties until `stop`; with `until_over`, until the check is over or gone."""
        poll = select.poll()
        poll.register(self.watcher.fileno(), select.POLLIN)
        self.watcher.start()
        try:
            while True:
                view, duty = self._look()
                if self._stopped.is_set() or (until_over and view is not None and view.over):
                    return
                if view is None or duty is None:
                    poll.poll()
                    continue
                with contextlib.suppress(Cancelled):
                    self._carry_out(view, duty)
        finally:
            self.watcher.stop()

    def stop(self) -> None:
        """End `run`, from another thread. A running probe is ended, and not reported."""
        self._stopped.set()
        self.watcher.stop()

    def _look(self) -> tuple[WorkerCheck | None, Duty | None]:
        """Return the newest view of the check and the next duty; None for each that there is not."""
        view = self.watcher.take()
        if view is None or self._stopped.is_set():
            return view, None
        return view, next_duty(view, self._reporter.latest.check)

    def _carry_out(self, view: WorkerCheck, duty: Duty) -> None:
        """Carry out a duty, and report the result.

        Raises:
            Cancelled: the duty was withdrawn meanwhile.
        """
        report = self._reporter.latest.check
        if report is None or report.uid != view.uid:
            report = AgentCheck(view.uid)
        self._oom.reset()
        cancellation = Cancellation(self.watcher.fileno(), lambda: self._look()[1] != duty)
        if isinstance(duty, LocalTests):
            logger.info("testing this node: check=%s", self._name)
            results = [excused(result, self._oom) for result in self._local_tests(view, cancellation)]
            report = with_local(report, results)
        else:
            logger.info(
                "testing with others: check=%s round=%d members=%s",
                self._name,
                duty.round,
                ",".join(duty.members),
            )
            results = [excused(self._test(view, duty, cancellation), self._oom)]
            report = with_pair(report, duty.round, results[0])
        _log(results)
        self._reporter.check(report)
        if isinstance(duty, PairTest) and duty.others and results[0].ending in SILENT_ENDINGS:
            _adjourn(duty, results[0].reason, self._me.key)

    def _local_tests(self, view: WorkerCheck, cancellation: Cancellation) -> list[ProbeReport]:
        try:
            return run_local(
                view.accelerator == Accelerator.NVIDIA_GPU,
                cpu_only=view.accelerator == Accelerator.NONE,
                budget_seconds=LOCAL_SHARE * view.timeout_seconds,
                cancellation=cancellation,
            )
        except OSError as error:
            return [_not_started("local", error)]

    def _test(self, view: WorkerCheck, duty: PairTest, cancellation: Cancellation) -> ProbeReport:
        """Take part in the test of a group; in a group of one, measure this node again."""
        try:
            if duty.others:
                return run(pair_probe(view, duty, self._me), cancellation)
            return measure_again(
                view.accelerator == Accelerator.NVIDIA_GPU,
                cpu_only=view.accelerator == Accelerator.NONE,
                budget_seconds=LOCAL_SHARE * view.timeout_seconds,
                cancellation=cancellation,
            )
        except OSError as error:
            return _not_started("pair" if duty.others else AGAIN, error)


class NodeCheckFollower:
    """Follows the NodeCheck of an idle agent's job, in a thread of its own.

    Args:
        make_room: ends processes that wait for the next round, since no others may run on a node under test.
    """

    def __init__(
        self,
        api: AgentApi,
        me: Environment,
        reporter: Reporter,
        make_room: Callable[[], None] = lambda: None,
    ) -> None:
        self._api = api
        self._me = me
        self._reporter = reporter
        self._make_room = make_room
        self._name = ""
        self._duties: CheckDuties | None = None
        self._thread: threading.Thread | None = None

    def follow(self, name: str) -> None:
        """Carry out the duties of the check of that name, in place of any other; "" for none."""
        if name == self._name:
            return
        self.leave()
        if name:
            self._make_room()
            self._name = name
            self._duties = CheckDuties(self._api, self._me, self._reporter, name)
            self._thread = threading.Thread(target=self._duties.run, name="dlr-check", daemon=True)
            self._thread.start()

    def leave(self) -> None:
        """Follow no check any more, and end a running probe, with all its processes."""
        self._name = ""
        duties, thread = self._duties, self._thread
        self._duties = self._thread = None
        if duties is None or thread is None:
            return
        duties.stop()
        thread.join(LEAVE_SECONDS)
        if thread.is_alive():
            logger.error("a probe of the node check cannot be ended: giving it up")


def excused(result: ProbeReport, oom: OomWatch) -> ProbeReport:
    """Return the result; UNAVAILABLE if the kernel killed the probe for the container's memory limit."""
    if result.signal != "SIGKILL" or not oom.has_killed():
        return result
    reason = f"{result.probe} was killed: the container had no memory left{oom.limit_text()}"
    return ProbeReport(ProbeEnding.UNAVAILABLE, reason, probe=result.probe, seconds=result.seconds)


def pair_probe(view: WorkerCheck, duty: PairTest, me: Environment) -> Probe:
    """Return this node's part in the test of a group, which meets in its first member's store."""
    limit_seconds = min(PAIR_LIMIT_SECONDS, PAIR_SHARE * view.timeout_seconds)
    join_seconds = min(JOIN_LIMIT_SECONDS, JOIN_SHARE * view.timeout_seconds)
    arguments = (
        f"--members={','.join(duty.members)}",
        f"--rank={duty.rank}",
        f"--master-address={duty.master_address}",
        f"--master-port={duty.master_port}",
        f"--store-prefix={store_prefix(duty)}",
        f"--join-seconds={join_seconds:g}",
        f"--address={me.pod_ip}",
        f"--device={_DEVICE.get(view.accelerator, AUTO)}",
    )
    key = ((ENV_JOB_KEY, me.key.hex()),)
    return Probe("pair", arguments, limit_seconds, package=PACKAGE, variables=key)


def store_prefix(duty: PairTest) -> str:
    """Return the prefix of the keys of one round's group, in the store of its first member's agent."""
    return f"check/{duty.check_uid}/{duty.round}"


def _adjourn(duty: PairTest, reason: str, key: bytes) -> None:
    """Inform the group that this node's probe does not come, on behalf of a probe that cannot.

    If the store cannot be reached, the others time out.
    """
    with contextlib.suppress(OSError, DistError):
        store = PeerStore.connect(duty.master_address, duty.master_port, key)
        adjourn(store.under(f"{store_prefix(duty)}/"), f"{duty.members[duty.rank]} says: {reason}")


def _not_started(probe: str, error: OSError) -> ProbeReport:
    return ProbeReport(ProbeEnding.UNAVAILABLE, f"a probe cannot be started here: {error}", probe=probe)


def _log(results: list[ProbeReport]) -> None:
    for result in results:
        logger.info(
            "probe=%s ending=%s seconds=%.1f %s",
            result.probe,
            result.ending.value,
            result.seconds,
            result.reason,
        )
        if result.ending in (ProbeEnding.TIMED_OUT, ProbeEnding.CRASHED) and result.stderr_tail:
            logger.warning("the end of what %s printed:\n%s", result.probe, result.stderr_tail)
