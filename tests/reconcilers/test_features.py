"""An optional feature is a folder: nothing but its two lines in setup.py stands on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.reconcilers.without import life_without, without

ROOT = Path(__file__).parents[2]
PRODUCT = ("agent", "controller", "crds", "dlr", "healthcheck", "localcluster", "reconcilers", "simulator")
OPTIONAL = (
    "autoscaling",
    "cordon",
    "evictions",
    "gang",
    "groups",
    "kueue",
    "nodecheck",
    "recheck",
    "roles",
    "scaleplan",
    "shards",
)
"""Folders of reconcilers/. e2e/scenarios/test_without.py builds the product without each."""
SIMULATED = {"groups": {"simulator/groups.py"}, "nodecheck": {"simulator/planned.py"}}
"""Modules of the simulator that play a feature by its own decisions, and go with it."""


@pytest.fixture(scope="module")
def sources() -> dict[Path, str]:
    found = (path for package in PRODUCT for path in (ROOT / package).rglob("*.py"))
    return {path.relative_to(ROOT): path.read_text() for path in found}


@pytest.mark.parametrize("feature", OPTIONAL)
def test_nothing_imports_an_optional_feature(feature: str, sources: dict[Path, str]) -> None:
    named = re.compile(rf"^\s*(from|import) reconcilers\.{feature}\b", re.MULTILINE)
    folder = Path("reconcilers", feature)
    found = {
        str(path) for path, text in sources.items() if not path.is_relative_to(folder) and named.search(text)
    }
    assert found == {"reconcilers/setup.py"} | SIMULATED.get(feature, set())
    setup = sources[Path("reconcilers/setup.py")]
    assert len(setup.splitlines()) - len(without(feature, setup)) == 2


def test_the_verdicts_for_nvsentinel_and_nvrx_leave_with_their_command(sources: dict[Path, str]) -> None:
    """`healthcheck/nvsentinel` with `dlr/commands/node_health.py`, and its line in the application."""
    command = Path("dlr", "commands", "node_health.py")
    folder = Path("healthcheck", "nvsentinel")
    named = re.compile(r"(from|import) healthcheck\.nvsentinel\b")
    rest = {path: text for path, text in sources.items() if not path.is_relative_to(folder)}
    assert {path for path, text in rest.items() if named.search(text)} == {command}
    lines = [line for path, text in rest.items() if path != command for line in text.splitlines()]
    (line,) = (line for line in lines if re.search(r"\bnode_health\b", line))
    assert line.strip().startswith('"node-health": Lazy(')


@pytest.mark.parametrize("feature", OPTIONAL)
async def test_a_job_trains_to_its_end_without(feature: str) -> None:
    with life_without(feature) as life:
        api = life.beginning()
        life.submit(api, nodeCheck={"enabled": feature == "nodecheck"})  # nobody tests nodes then
        phases = []
        for script in (life.Script(), life.Script(process_failures={1: 1}), life.Script(done=True)):
            await life.Run(api, script).settle()
            (job,) = api.list(life.ELASTICJOBS)
            phases.append((job["status"]["phase"], job["status"]["rendezvous"]["round"]))
    assert phases == [("Running", 1), ("Running", 2), ("Succeeded", 2)]
