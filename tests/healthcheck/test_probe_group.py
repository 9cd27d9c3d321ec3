"""Allgathers of real processes over Gloo: what they measure, and who is named when one does not come."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed import TCPStore

from crds.protocol import ProbeEnding
from healthcheck.measurements import Metric
from healthcheck.probes.allgather import AllGather
from healthcheck.probes.runner import Probe, run, run_together
from tests.ports import free_port

PAIR_METRICS = {Metric.PAIR_ALGORITHM_GBPS, Metric.PAIR_BUS_GBPS, Metric.PAIR_LATENCY_US}


def member(rank: int, port: int, *arguments: str) -> Probe:
    meeting = ("--members=node-a,node-b", "--master-address=127.0.0.1", f"--master-port={port}")
    return Probe("pair", (*meeting, "--device=cpu", f"--rank={rank}", *arguments), timeout_seconds=60)


@pytest.fixture
def port() -> int:
    return free_port()


def test_a_pair_agrees_on_its_figures(port: int) -> None:
    a, b = run_together([member(0, port), member(1, port)])
    assert (a.ending, b.ending) == (ProbeEnding.PASSED, ProbeEnding.PASSED), (a, b)
    assert set(a.report.figures) == PAIR_METRICS
    assert a.report.figures == b.report.figures
    bus, algorithm = (a.report.figures[m] for m in (Metric.PAIR_BUS_GBPS, Metric.PAIR_ALGORITHM_GBPS))
    assert bus == pytest.approx(algorithm / 2)


@pytest.mark.parametrize(
    ("rank", "reason"),
    [(0, "no word from node-b within 1 s"), (1, "node-a, where the group meets, cannot be reached")],
)
def test_who_does_not_come_is_named(port: int, rank: int, reason: str) -> None:
    report = run(member(rank, port, "--join-seconds=1")).report
    assert report.ending is ProbeEnding.FAILED
    assert reason in report.reason


def member_elsewhere(rank: int, store: TCPStore, prefix: str, *arguments: str) -> Probe:
    """Of a group that meets in a store which none of its probes hosts."""
    return member(rank, store.port, f"--store-prefix={prefix}", f"--address=127.0.0.{rank + 2}", *arguments)


def test_groups_meet_in_a_store_that_is_there_already() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for prefix, ranks in (("check/uid/1", 1), ("check/uid/2", 2)):  # the second finds the keys of the first
        pair = [member_elsewhere(rank, store, prefix, f"--cpu-ranks={ranks}") for rank in (0, 1)]
        results = run_together(pair)
        assert [result.ending for result in results] == [ProbeEnding.PASSED, ProbeEnding.PASSED], results


def test_who_does_not_come_to_a_store_that_is_there_is_named() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    report = run(member_elsewhere(1, store, "check/uid/1", "--join-seconds=1")).report
    assert (report.ending, report.reason) == (ProbeEnding.FAILED, "no word from node-a within 1 s")


def test_a_store_that_was_to_be_there_is_missed(port: int) -> None:
    report = run(member(0, port, "--store-prefix=check/uid/1", "--join-seconds=1")).report
    assert report.ending is ProbeEnding.FAILED
    assert "node-a, where the group meets, cannot be reached" in report.reason


def test_the_devices_of_one_node_gather_in_a_process_each() -> None:
    result = run(Probe("intra_node", ("--device=cpu", "--cpu-ranks=2"), timeout_seconds=60))
    assert result.ending is ProbeEnding.PASSED, result
    assert set(result.report.figures) == {Metric.INTRA_NODE_BUS_GBPS}


def test_a_node_with_one_device_has_nobody_to_gather_from() -> None:
    assert run(Probe("intra_node", ("--device=cpu",), timeout_seconds=60)).ending is ProbeEnding.SKIPPED


def test_content_that_changed_on_its_way_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    gathered = AllGather(4, torch.device("cpu"))
    gathered._out[:] = torch.cat([gathered._expected(0), gathered._expected(1)])
    assert gathered.wrong_blocks() == 0
    gathered._out[5] ^= 1
    assert gathered.wrong_blocks() == 1
