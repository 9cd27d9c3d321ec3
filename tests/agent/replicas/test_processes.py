"""What training processes find in their environment, by `dlr run` and by stock torchrun."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousParameters

from agent.environment import Environment
from agent.monitor.progress import ProgressFiles
from agent.monitor.round_logs import RoundLogsSpecs
from agent.monitor.stacks import StackFiles
from agent.monitor.stepping import ProcessStart
from agent.rendezvous.handler import create_handler
from agent.standalone.cluster import LocalCluster
from agent.supervision.process_env import ProcessEnvironment
from agent.torch_compat import elastic
from crds.agent_report import ReplicasReport
from crds.names import ENV_REPLICAS_SOCKET
from crds.progress_record import ENV_ROUND
from tests.agent.replicas.test_desk import KEY, WITHIN_SECONDS, Agent, Process

pytestmark = pytest.mark.real


@pytest.fixture
def agent() -> Iterator[Agent]:
    made = Agent(0)
    yield made
    made.close()


def test_processes_of_a_start_find_the_desk_which_expects_them(agent: Agent) -> None:
    progress = ProgressFiles()
    environment = ProcessEnvironment(
        progress, StackFiles(progress.directory / "stacks"), None, "", agent.desk
    )
    logs = RoundLogsSpecs(DefaultLogsSpecs(log_dir=os.devnull), lambda: 7).reify({0: {}, 1: {}})
    envs = environment.of_start(ProcessStart(7), [2, 3], logs, None)
    for rank, env in zip((2, 3), envs, strict=True):
        assert agent.desk.to_status() is None
        Process(env[ENV_REPLICAS_SOCKET], rank, 4, int(env[ENV_ROUND]))
    assert agent.told.get(timeout=WITHIN_SECONDS) == ReplicasReport(7)
    progress.remove()


@pytest.mark.parametrize("grouped_job", ["", "job"])
def test_processes_of_stock_torchrun_find_the_desk_in_a_replica_group_alone(
    monkeypatch: pytest.MonkeyPatch, grouped_job: str
) -> None:
    for name in (ENV_REPLICAS_SOCKET, ENV_ROUND):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(elastic, "launched_processes", lambda: 1)
    me = Environment(
        "job", "space", "job-worker-0", 0, 1, "uid", "127.0.0.1", grouped_job=grouped_job, key=KEY
    )
    cluster = LocalCluster(me, 60.0)
    handler = create_handler(RendezvousParameters("dlr", "", "job", 1, 1), me, cluster)
    try:
        handler.next_rendezvous()
        assert bool(os.environ[ENV_REPLICAS_SOCKET]) == bool(grouped_job)
        if grouped_job:
            process = Process(os.environ[ENV_REPLICAS_SOCKET], 0, 1, int(os.environ[ENV_ROUND]))
            assert process.wait_for(0).me == (0, 1)
    finally:
        handler.shutdown()
