"""What Horovod's driver is told: the workers that can be used now, in rank order."""

from __future__ import annotations

from typing import Any

import pytest

from agent.hosts import hosts_of, main
from tests.agent.fake_cluster import FakeCluster

JSON = dict[str, Any]


def worker(index: int, *, incarnation: int = 1, of: str = "worker", **status: Any) -> JSON:
    uid = f"uid-{index}-{incarnation}"
    agent = {
        "incarnation": incarnation,
        "podUid": uid,
        "address": f"10.0.{incarnation}.{index}",
        "localWorldSize": 2,
        "state": "Ready",
    }
    return {
        "metadata": {"name": f"job-{of}-{index}"},
        "spec": {"type": of, "index": index, "incarnation": incarnation},
        "status": {"phase": "Running", "podUid": uid, "agent": agent} | status,
    }


def test_one_line_a_worker_in_rank_order_with_its_processes() -> None:
    assert hosts_of([worker(1), worker(0)]) == ["10.0.1.0:2", "10.0.1.1:2"]
    assert hosts_of([worker(1), worker(0)], slots=4) == ["10.0.1.0:4", "10.0.1.1:4"]


def test_an_ipv6_address_has_brackets_so_that_the_count_is_no_part_of_it() -> None:
    of = worker(0)
    of["status"]["agent"]["address"] = "fd00:10::7"
    assert hosts_of([of], slots=4) == ["[fd00:10::7]:4"]


def test_what_cannot_be_used_is_left_out() -> None:
    def with_agent(**said: Any) -> JSON:
        found = worker(0)
        found["status"]["agent"] |= said
        return found

    leaving = worker(0)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    useless = [
        leaving,
        worker(0, of="chief"),
        worker(0, phase="Pending"),
        worker(0, standby=True),
        worker(0, agent=None),
        worker(0, podUid="of the next Pod"),
        with_agent(incarnation=7),
        *(with_agent(state=state) for state in ("Failed", "Stopped", "Succeeded")),
    ]
    assert hosts_of(useless) == []
    assert hosts_of([{"metadata": {}, "spec": {"type": "worker", "index": 0, "incarnation": 1}}]) == []


@pytest.mark.real
@pytest.mark.usefixtures("patient")
def test_in_a_pod_it_reads_the_workers_of_its_job(
    cluster: FakeCluster, monkeypatch: Any, capsys: Any
) -> None:
    for name, value in cluster.environ(0).items():
        monkeypatch.setenv(name, value)
    cluster.workers["job-worker-0"] = worker(0)
    assert main(["--slots", "3"]) == 0
    assert capsys.readouterr().out == "10.0.1.0:3\n"
    cluster.stop()
    assert main([]) == 1
    assert capsys.readouterr().err.startswith("dlr hosts: the workers of this job cannot be read: ")


def test_outside_of_a_worker_one_sentence_says_what_to_do(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.delenv("DLR_JOB_NAME", raising=False)
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("dlr hosts: DLR_JOB_NAME is not set, so this is not a worker")
