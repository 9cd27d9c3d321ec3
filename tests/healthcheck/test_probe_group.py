"""Allgathers of real processes over Gloo: what they measure, and who is named when one does not come."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from agent.connection.listener import Listener
from agent.connection.store_server import StoreServer
from crds.agent_report import ProbeEnding
from crds.names import ENV_JOB_KEY
from healthcheck.measurements import Metric
from healthcheck.probes.allgather import AllGather
from healthcheck.probes.meeting import ProbeMeeting
from healthcheck.probes.runner import Probe, run, run_together
from tests.ports import free_port

pytestmark = pytest.mark.real

PAIR_METRICS = {Metric.PAIR_ALGORITHM_GBPS, Metric.PAIR_BUS_GBPS, Metric.PAIR_LATENCY_US}


KEY = bytes(range(32))


@dataclass
class Agent:
    """What an agent offers to the probes of a group."""

    listener: Listener
    store: StoreServer


@pytest.fixture
def agent() -> Iterator[Agent]:
    listener = Listener("127.0.0.1", KEY)
    store = StoreServer(listener)
    yield Agent(listener, store)
    store.close()
    listener.close()


def member(rank: int, port: int, *arguments: str, prefix: str = "check/uid/1", key: bytes = KEY) -> Probe:
    meeting = (
        "--members=node-a,node-b",
        "--master-address=127.0.0.1",
        f"--master-port={port}",
        f"--store-prefix={prefix}",
        f"--address=127.0.0.{rank + 2}",
    )
    return Probe(
        "pair",
        (*meeting, "--device=cpu", f"--rank={rank}", "--join-seconds=300", *arguments),
        timeout_seconds=300,
        package="agent.node_check",
        variables=((ENV_JOB_KEY, key.hex()),),
    )


def test_who_does_not_come_is_named(agent: Agent) -> None:
    for seconds in (1, 16, 256):  # of which a busy machine takes some to connect
        report = run(member(0, agent.listener.port, f"--join-seconds={seconds}"))
        assert report.ending is ProbeEnding.FAILED
        if report.reason == f"no message from node-b within {seconds} s":
            return
    pytest.fail(report.reason)


def test_who_comes_at_the_last_moment_is_not_missed() -> None:
    store = dist.HashStore()

    def check(keys: list[str]) -> bool:
        is_there = store.check(keys)
        store.set("ranks/1", '"b"')
        return is_there

    late: Any = SimpleNamespace(set=store.set, get=store.get, check=check)
    assert ProbeMeeting(late, ["node-a", "node-b"], 0).exchange("ranks", "a", 0.0) == ["a", "b"]


def test_a_pair_agrees_on_its_figures_and_a_second_group_finds_none_of_the_keys_of_the_first(
    agent: Agent,
) -> None:
    for prefix, ranks in (("check/uid/1", 1), ("check/uid/2", 2)):
        pair = [member(rank, agent.listener.port, f"--cpu-ranks={ranks}", prefix=prefix) for rank in (0, 1)]
        a, b = run_together(pair)
        assert (a.ending, b.ending) == (ProbeEnding.PASSED, ProbeEnding.PASSED), (a, b)
        assert set(a.figures) == PAIR_METRICS
        assert a.figures == b.figures
        if ranks == 1:
            bus, algorithm = (a.figures[m] for m in (Metric.PAIR_BUS_GBPS, Metric.PAIR_ALGORITHM_GBPS))
            assert bus == pytest.approx(algorithm / 2)


def test_a_first_member_that_is_gone_is_missed() -> None:
    report = run(member(1, free_port(), "--join-seconds=1"))
    assert report.ending is ProbeEnding.FAILED
    assert "node-a, where the group meets, cannot be reached" in report.reason


def test_a_stranger_joins_no_group(agent: Agent) -> None:
    report = run(member(1, agent.listener.port, "--join-seconds=1", key=bytes(32)))
    assert report.ending is ProbeEnding.FAILED
    assert "node-a, where the group meets, cannot be reached" in report.reason
    assert not agent.store.values.has(b"check/uid/1/came/1")


def test_the_devices_of_one_node_gather_in_a_process_each() -> None:
    result = run(Probe("intra_node", ("--device=cpu", "--cpu-ranks=2"), timeout_seconds=300))
    assert result.ending is ProbeEnding.PASSED, result
    assert set(result.figures) == {Metric.INTRA_NODE_BUS_GBPS}


def test_a_node_with_one_device_has_nobody_to_gather_from() -> None:
    assert run(Probe("intra_node", ("--device=cpu",), timeout_seconds=300)).ending is ProbeEnding.SKIPPED


def test_content_that_changed_on_its_way_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    gathered = AllGather(4, torch.device("cpu"))
    gathered._out[:] = torch.cat([gathered._expected(0), gathered._expected(1)])
    assert gathered.wrong_blocks() == 0
    gathered._out[5] ^= 1
    assert gathered.wrong_blocks() == 1
