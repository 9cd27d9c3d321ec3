"""For all tests: neither time nor chance nor an earlier test decides one, and the longest modules begin first."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# A machine under load is no reason for a property to fail. `make test` draws the same examples each time; others
# are drawn with `--hypothesis-profile=random`.
# Hypothesis would also draw from the constants of those of our modules that earlier tests have loaded.
providers._get_local_constants = lambda: providers._local_constants
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dlr", settings.get_profile("random"), derandomize=True)
settings.load_profile("dlr")

LONGEST_FIRST = (
    *("agent/test_warm_start.py", "agent/test_checks.py", "localcluster/test_supervisor.py"),
    *("replicas/test_outer.py", "replicas/test_late.py", "replicas/test_checkpoints.py"),
    *("cli/test_install_against_api_server.py", "agent/test_agent.py", "agent/test_leaving.py"),
    *("localcluster/test_kubelet.py", "reconcilers/test_interleavings.py", "agent/test_hanging.py"),
    *("replicas/test_training.py", "reconcilers/capacity/test_growth.py", "replicas/test_data.py"),
    *("reconcilers/test_groups_interleavings.py", "reconcilers/test_node_check.py"),
    *("bundle/test_shipped.py", "healthcheck/test_probe_group.py", "checkpoint/test_worlds.py"),
    *("cli/test_interrupts.py", "cli/test_cli_entry.py", "agent/checkpoints/test_leaving.py"),
    *(
        "controller/test_against_localcluster.py",
        "conformance/test_restart.py",
        "conformance/test_clients.py",
    ),
    *("agent/checkpoints/test_resuming.py", "agent/test_distributed.py", "agent/test_device_fault.py"),
    *("agent/test_standalone.py", "agent/test_failed_start.py", "benchmarks/test_scale.py"),
    *("sdk/test_data_gradients.py", "agent/test_step_counter.py", "agent/test_profile.py"),
    *("checkpoint/test_torch_distributed_checkpoint.py", "checkpoint/test_background.py"),
    *("simulator/test_calibration.py", "hostile/test_objects.py"),
    *("reconcilers/test_scale.py", "deploy/test_namespaced_rights.py", "agent/test_report.py"),
    *("reconcilers/test_against_api_server.py", "reconcilers/test_failures_against_api_server.py"),
)
"""Modules in the order in which they begin: no process is left with a long one at the end."""

LOGGERS = (logging.getLogger(), logging.getLogger("agent"))
"""Those that programs of ours set up."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    rank = {config.rootpath / "tests" / name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


@pytest.fixture(autouse=True)
def _loggers_as_before() -> Iterator[None]:
    """Take back what a test has done to loggers: a handler of its stderr outlives that, which pytest closes."""
    before = [(logger, [*logger.handlers], logger.level, logger.propagate) for logger in LOGGERS]
    yield
    for logger, logger.handlers, level, logger.propagate in before:
        logger.setLevel(level)


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Without what threads of earlier tests, which run on for a while, still have to say."""
    earlier = {*threading.enumerate()} - {threading.current_thread()}

    def is_ours(_: object) -> bool:
        return threading.current_thread() not in earlier

    caplog.handler.addFilter(is_ours)
    yield caplog
    caplog.handler.removeFilter(is_ours)
