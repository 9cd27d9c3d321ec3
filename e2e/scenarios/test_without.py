"""The product without an optional feature, its folder and its lines in setup.py: a first job trains."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import jobs
from e2e.cluster import REPOSITORY, Capability, Cluster
from e2e.embedded import EmbeddedCluster
from e2e.observation import Observation
from tests.reconcilers.test_features import OPTIONAL
from tests.reconcilers.without import without

PACKAGES = (
    "agent",
    "controller",
    "crds",
    "deploy",
    "dlr",
    "healthcheck",
    "localcluster",
    "reconcilers",
    "simulator",
)

pytestmark = [pytest.mark.needs(Capability.CONTROL_PLANE)]


def source_without(feature: str, folder: Path) -> Path:
    """Copy what runs, but for the feature."""
    for package in PACKAGES:
        shutil.copytree(REPOSITORY / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(folder / "reconcilers" / feature)
    setup = folder / "reconcilers" / "setup.py"
    setup.write_text("".join(without(feature, setup.read_text())))
    return folder


class Without(EmbeddedCluster):
    """A cluster whose controller is built of a source without a feature."""

    def __init__(self, source: Path) -> None:
        super().__init__()
        self.source = source

    def environment(self) -> dict[str, str]:
        return super().environment() | {"PYTHONPATH": str(self.source)}


@pytest.fixture(params=OPTIONAL)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    if request.config.getoption("--backend") != "embedded":
        pytest.skip("a real cluster runs the controller of its image")
    made = Without(source_without(request.param, tmp_path))
    made.start()
    try:
        yield made
    finally:
        made.stop()


def test_a_first_job_trains_through_a_kill_and_ends(cluster: Cluster, observation: Observation) -> None:
    cluster.apply(jobs.digits(cluster, observation.namespace, workers=2), observation.namespace)
    first = jobs.wait_until_training(observation, 2)
    cluster.kill_process(observation.namespace, jobs.current_pods(observation)[1])
    jobs.wait_until_training(observation, 2, beyond_step=max(jobs.steps(observation)))
    assert jobs.rendezvous(observation)["round"] > first["round"]
    jobs.hurry(cluster, observation)
    jobs.wait_until_succeeded(observation)
