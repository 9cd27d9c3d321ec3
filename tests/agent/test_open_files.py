from __future__ import annotations

import logging
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.monitor import open_files
from tests.agent.conftest import Agents
from tests.agent.fake_cluster import FakeCluster

pytestmark = pytest.mark.real


@contextmanager
def limited(files: int) -> Iterator[None]:
    """This process, and those that it starts, may open no more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def low_limit() -> Iterator[int]:
    """It leaves room for what this process does, whatever earlier tests have left open."""
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    with limited(highest + 200):
        yield highest + 200


def test_agent_takes_the_hard_limit_and_training_processes_that_of_the_image(
    cluster: FakeCluster, agents: Agents, low_limit: int
) -> None:
    script = agents.script(
        "import resource, subprocess, time, dlr\n"
        f"while resource.getrlimit(resource.RLIMIT_NOFILE)[0] != {low_limit}: time.sleep(0.02)\n"
        "print('limit', resource.getrlimit(resource.RLIMIT_NOFILE), flush=True)\n"
        "dlr.report(1)\n"
        "time.sleep(600)\n"
    )
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    agent = agents.start(0, script, warm=True, forked=False)  # for its limit
    cluster.wait_state({0: "Ready"}, 0)
    assert resource.prlimit(agent.pid, resource.RLIMIT_NOFILE) == (min(hard, open_files.ENOUGH), hard)
    cluster.form([0])
    cluster.wait_step(0, 1)
    agents.wait_log(0, f"limit ({low_limit}, {hard})")


def test_a_world_that_is_too_large_is_said_to_be(caplog: pytest.LogCaptureFixture) -> None:
    with limited(256), caplog.at_level(logging.WARNING):
        open_files.warn_if_too_few(ranks=64, agents=8)
        assert not caplog.records
        open_files.warn_if_too_few(ranks=80, agents=10)
    assert caplog.records[0].message.startswith(
        "this container may open 256 files at a time, and rank 0 may need 290 to serve a world of 80 processes: "
    )
