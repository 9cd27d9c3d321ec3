"""For all tests: neither time nor chance nor an earlier test decides one."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# A machine under load is no reason for a property to fail. `make test` draws the same examples each time; others,
# and twice as many, are drawn with `--hypothesis-profile=random`.
# Hypothesis would also draw from the constants of those of our modules that earlier tests have loaded.
providers._get_local_constants = lambda: providers._local_constants
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dlr", settings.get_profile("random"), derandomize=True, max_examples=50)
settings.load_profile("dlr")

LOGGERS = (logging.getLogger(), logging.getLogger("agent"))
"""Those that programs of ours set up."""


def pytest_collection_finish() -> None:
    """Freeze what all tests share: it has a million objects, which each full collection would look at."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _loggers_as_before() -> Iterator[None]:
    """Take back what a test has done to loggers: a handler of its stderr outlives that, which pytest closes."""
    before = [(logger, [*logger.handlers], logger.level, logger.propagate) for logger in LOGGERS]
    yield
    for logger, logger.handlers, level, logger.propagate in before:
        logger.setLevel(level)


@pytest.fixture(autouse=True)
def _no_cluster_of_this_machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test find the cluster of the person who runs it, such as one of `dlr up`; real ones name theirs."""
    if request.node.get_closest_marker("real") is None:
        for name in ("KUBECONFIG", "DLR_HOME"):
            monkeypatch.setenv(name, "/nonexistent")
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Without what threads of earlier tests, which run on for a while, still have to say."""
    earlier = {*threading.enumerate()} - {threading.current_thread()}

    def is_ours(_: object) -> bool:
        return threading.current_thread() not in earlier

    caplog.handler.addFilter(is_ours)
    yield caplog
    caplog.handler.removeFilter(is_ours)
