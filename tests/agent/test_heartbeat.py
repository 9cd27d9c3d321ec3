from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from agent.api import ApiClient
from agent.environment import Environment
from agent.heartbeat import Heartbeat, renewal
from tests.agent.fake_cluster import FakeCluster


@pytest.fixture
def heartbeat(cluster: FakeCluster) -> Iterator[Heartbeat]:
    environ = {**cluster.environ(0), "DLR_HEARTBEAT_SECONDS": "0.3"}
    heartbeat = Heartbeat(ApiClient.in_cluster(environ), Environment.read(environ))
    yield heartbeat
    heartbeat.stop()


def test_first_renewal_is_at_once_and_the_others_are_in_time(
    cluster: FakeCluster, heartbeat: Heartbeat
) -> None:
    started_at = time.monotonic()
    heartbeat.start()
    cluster.wait(lambda: len(cluster.renewals) >= 5, "renewals", 5)
    times = [at - started_at for at, _ in cluster.renewals]
    assert times[0] < 0.2
    assert times[4] == pytest.approx(1.2, abs=0.25)
    spec = cluster.renewals[0][1]["spec"]
    assert spec.keys() == {"holderIdentity", "renewTime"}  # the rest is the controller's
    assert spec["holderIdentity"] == "job-worker-0-1"


def test_renews_soon_after_the_api_server_is_back(cluster: FakeCluster, heartbeat: Heartbeat) -> None:
    heartbeat.start()
    cluster.wait(lambda: cluster.renewals, "a renewal", 5)
    cluster.stop()
    time.sleep(3)
    back_at = time.monotonic()
    cluster.start()
    cluster.wait(lambda: cluster.renewals[-1][0] > back_at, "a renewal", 5)
    assert cluster.renewals[-1][0] - back_at < 2


def test_renew_time_is_a_microtime() -> None:
    time_ = renewal("p", datetime(2026, 1, 2, 3, 4, 5, 0, tzinfo=UTC))["spec"]["renewTime"]
    assert re.fullmatch(r"2026-01-02T03:04:05\.000000Z", time_)
