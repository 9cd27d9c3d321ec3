"""Chooses the backend (`pytest e2e --backend embedded|kind|kubeconfig`) and hands scenarios their cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from e2e import embedded, kind, kubeconfig
from e2e.cluster import Capability, Cluster, Unavailable, default_kubectl
from e2e.embedded import DEFAULT_NODES, EmbeddedCluster
from e2e.kind import KindCluster
from e2e.kubeconfig import KubeconfigCluster
from e2e.observation import Observation

HERE = Path(__file__).parent
POD_LOG_LINES = 60
MAX_POD_LOGS = 8
SCENARIO_TIMEOUT_SECONDS = 1_800
"""Limit for a machine a quarter as fast as ours. The conditions of a scenario have limits of their own."""
LONGEST_FIRST = (
    "tests/integrations/test_frameworks.py",
    "tests/release/test_chart_on_a_cluster.py",
    *(
        f"e2e/scenarios/test_{name}.py"
        for name in ("node_check", "leaving", "nodes", "control_plane", "training")
    ),
)
"""Modules of `make test` that begin, so that no process is left with a long one at the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--backend", choices=("embedded", "kind", "kubeconfig"), default="embedded")
    parser.addoption("--kubeconfig", type=Path, help="for --backend kubeconfig; the default is kubectl's")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(capability): left out where the backend lacks it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is below e2e/, and leave out what the backend cannot do."""
    there = _capabilities(config.getoption("--backend"))
    scenarios = [item for item in items if item.path.is_relative_to(HERE)]
    impossible = {item for item in scenarios if not _needs(item) <= there}
    for item in scenarios:
        item.add_marker(pytest.mark.real)
        if item.get_closest_marker("timeout") is None:  # a module's own would be further away than this one
            item.add_marker(pytest.mark.timeout(SCENARIO_TIMEOUT_SECONDS))
    if impossible:
        config.hook.pytest_deselected(items=[*impossible])
        items[:] = [item for item in items if item not in impossible]
    rank = {config.rootpath / name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


def _needs(item: pytest.Item) -> set[Capability]:
    return {capability for mark in item.iter_markers("needs") for capability in mark.args}


def _capabilities(backend: str) -> frozenset[Capability]:
    if backend == "embedded":
        return embedded.capabilities()
    return kind.CAPABILITIES if backend == "kind" else kubeconfig.capabilities()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A scenario that failed shows the logs of the cluster's own processes and of its Pods."""
    report = yield
    fixtures = getattr(item, "funcargs", {})
    cluster, observation = fixtures.get("cluster"), fixtures.get("observation")
    if report.when == "call" and report.failed and cluster is not None:
        report.sections += cluster.logs().items()
        if observation is not None:
            report.sections += pod_logs(cluster, observation).items()
    return report


def pod_logs(cluster: Cluster, observation: Observation) -> dict[str, str]:
    """Return the ends of the logs of a scenario's Pods, by name; those that the API server gives in time."""
    logs: dict[str, str] = {}
    tail = ("-n", observation.namespace, f"--tail={POD_LOG_LINES}")
    for name in sorted(observation.pods())[:MAX_POD_LOGS]:
        with suppress(subprocess.TimeoutExpired):
            answer = cluster.kubectl("logs", name, *tail, check=False)
            logs[f"Pod {name}"] = answer.stdout + answer.stderr
    return logs


def started(request: pytest.FixtureRequest, nodes: int) -> Iterator[Cluster]:
    backends: dict[str, Callable[[], Cluster]] = {
        "embedded": lambda: EmbeddedCluster(nodes),
        "kind": KindCluster,
        "kubeconfig": lambda: KubeconfigCluster(request.config.getoption("--kubeconfig")),
    }
    chosen = backends[request.config.getoption("--backend")]()
    with ExitStack() as ending:
        try:
            default_kubectl()
            ending.callback(chosen.stop)
            chosen.start()
        except Unavailable as reason:
            ending.pop_all()
            pytest.skip(str(reason))
        yield chosen


@pytest.fixture(scope="session")
def shared_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Share one cluster among modules that touch only their jobs: start and end cost six CPU seconds."""
    yield from started(request, DEFAULT_NODES)


@pytest.fixture(scope="module")
def own_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    yield from started(request, request.module.NODES)


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """One of its own for a module that says how many NODES it has: what it breaks stays with its own kind."""
    found: Cluster = request.getfixturevalue(
        "own_cluster" if hasattr(request.module, "NODES") else "shared_cluster"
    )
    return found


@pytest.fixture
def observation(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Observation]:
    """A namespace for this scenario alone, watched from its creation."""
    with cluster.namespace("e2e") as watched:
        yield watched
