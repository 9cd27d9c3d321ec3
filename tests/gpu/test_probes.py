"""The node check's probes and the agent's eyes on a real device, with its driver and NCCL."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

from agent.connection.listener import Listener
from agent.connection.store_server import StoreServer
from agent.monitor.accelerators import detect
from agent.monitor.xid import DeviceWatch
from crds.agent_report import ProbeEnding
from crds.names import ENV_JOB_KEY
from healthcheck.local import LocalHealth, judge
from healthcheck.measurements import Metric
from healthcheck.probes import nvml, suite
from healthcheck.probes.report import ProbeReport
from healthcheck.probes.runner import Probe, run
from tests.forks import forks

KEY = bytes(range(32))


def test_a_healthy_gpu_passes_all_local_probes() -> None:
    results = suite.run_local(require_gpu=True)
    for result in results:
        print(result)
    assert judge(results).health is LocalHealth.HEALTHY, judge(results)
    figures = {name: value for result in results for name, value in result.figures.items()}
    assert figures["gpu_count"] == torch.cuda.device_count()
    assert {Metric.GEMM_BF16_TFLOPS, Metric.GEMM_FP32_TFLOPS} <= set(figures)


def member(rank: int, port: int) -> ProbeReport:
    """NCCL refuses to have one GPU twice on a host, so each member says that it is on another."""
    os.environ["NCCL_HOSTID"] = str(rank)
    meeting = ("--members=node-a,node-b", "--master-address=127.0.0.1", f"--master-port={port}")
    arguments = (*meeting, "--store-prefix=check", "--device=cuda", f"--rank={rank}", "--address=127.0.0.1")
    variables = ((ENV_JOB_KEY, KEY.hex()),)
    probe = Probe("pair", arguments, timeout_seconds=300, package="agent.node_check", variables=variables)
    return run(probe)


def test_a_pair_gathers_over_nccl() -> None:
    if torch.cuda.device_count() != 1:
        pytest.skip("its members would have a rank for each GPU")
    listener = Listener("127.0.0.1", KEY)
    store = StoreServer(listener)
    with ProcessPoolExecutor(2, forks) as pool:
        a, b = (future.result() for future in [pool.submit(member, rank, listener.port) for rank in (0, 1)])
    store.close()
    listener.close()
    print(a, b)
    assert (a.ending, b.ending) == (ProbeEnding.PASSED, ProbeEnding.PASSED), (a, b)
    assert a.figures == b.figures


def test_the_agent_sees_the_devices() -> None:
    found = detect()
    print(found)
    assert (found.kind, found.count) == ("nvidia", torch.cuda.device_count())
    assert found.model == torch.cuda.get_device_name(0)


def test_the_driver_says_how_they_are() -> None:
    with nvml.opened() as opened:
        states = nvml.read_devices(opened)
    print(states)
    assert [state.unusable for state in states] == [""] * torch.cuda.device_count()


def test_the_driver_is_listened_to_for_faults(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    watch = DeviceWatch()
    watch.start()
    watch.stop()
    watch.join(300)
    assert not watch.is_alive()
    assert watch.take() is None
    print(caplog.text)
    assert "no longer watched" not in caplog.text
