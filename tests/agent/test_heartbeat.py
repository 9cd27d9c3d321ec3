from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

import agent.report.heartbeat as heartbeat_module
from agent.environment import Environment
from agent.kube.api import ApiClient
from agent.report.heartbeat import Heartbeat, renewal
from tests.agent.fake_cluster import FakeCluster

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("patient")]


def beating(cluster: FakeCluster, period_seconds: float) -> Heartbeat:
    environ = {**cluster.environ(0), "DLR_HEARTBEAT_SECONDS": str(period_seconds)}
    heartbeat = Heartbeat(ApiClient.in_cluster(environ), Environment.read(environ))
    heartbeat.start()
    return heartbeat


@pytest.fixture
def heartbeat(cluster: FakeCluster) -> Iterator[Heartbeat]:
    heartbeat = beating(cluster, 0.3)
    yield heartbeat
    heartbeat.stop()


def test_first_renewal_does_not_wait_for_the_period(cluster: FakeCluster) -> None:
    heartbeat = beating(cluster, 3_600)
    cluster.wait(lambda: cluster.renewals, "a renewal")
    heartbeat.stop()
    spec = cluster.renewals[0][1]["spec"]
    assert spec.keys() == {"holderIdentity", "renewTime"}  # the rest is the controller's
    assert spec["holderIdentity"] == "job-worker-0-1"


def test_renewals_go_on_and_never_come_faster_than_agreed(cluster: FakeCluster) -> None:
    started_at = time.monotonic()
    heartbeat = beating(cluster, 0.3)
    cluster.wait(lambda: len(cluster.renewals) >= 5, "renewals")
    heartbeat.stop()
    assert cluster.renewals[4][0] - started_at > 3.9 * 0.3


def test_renews_soon_after_the_api_server_is_back(cluster: FakeCluster, heartbeat: Heartbeat) -> None:
    cluster.wait(lambda: cluster.renewals, "a renewal")
    cluster.stop()
    time.sleep(3)  # an outage of ten periods: time has to pass
    cluster.start()
    cluster.wait_renewal()


def test_a_server_that_names_a_wait_is_not_asked_sooner(cluster: FakeCluster) -> None:
    cluster.broken_status, cluster.retry_after = 429, "1"
    heartbeat = beating(cluster, 0.1)
    cluster.wait_refusals(3)
    heartbeat.stop()
    times = [at for at, _ in cluster.refusals]
    assert all(after - before >= 1.0 for before, after in pairwise(times))


def test_renew_time_is_a_microtime() -> None:
    time_ = renewal("p", datetime(2026, 1, 2, 3, 4, 5, 0, tzinfo=UTC))["spec"]["renewTime"]
    assert re.fullmatch(r"2026-01-02T03:04:05\.000000Z", time_)


def test_a_defect_ends_no_renewals(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    defects = iter([AttributeError("no such thing"), RuntimeError("can't start new thread")])

    def renew(holder: str, now: datetime) -> dict[str, Any]:
        if (defect := next(defects, None)) is not None:
            raise defect
        return renewal(holder, now)

    monkeypatch.setattr(heartbeat_module, "renewal", renew)
    heartbeat = beating(cluster, 0.1)
    cluster.wait(lambda: len(cluster.renewals) >= 2, "renewals")
    assert heartbeat.is_alive()
    heartbeat.stop()
