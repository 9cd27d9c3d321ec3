"""Public manifests of other operators, converted, train.

Contents of the images have stand-ins: a script for the one that trains, for a command that only prints, and
for an image's own entry point. Fields without effect on the embedded cluster are removed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import jobs
from e2e.cluster import REPOSITORY, Capability, Cluster
from e2e.observation import Observation

JSON = dict[str, Any]

FOLDER = REPOSITORY / "tests" / "convert" / "manifests"
NAMES = ("jobset-resnet", "dlrover-chaos")
STAND_IN = str(REPOSITORY / "e2e" / "fixtures" / "stand_in.py")
SCRIPT = re.compile(r"(?<![\w./-])[\w./-]+\.py\b")
EXIT_CODES = {0, 3}
pytestmark = pytest.mark.needs(Capability.SOURCE)

PROCESSES = {"dlrover-chaos": 8}
"""Where they are more than workers."""


@pytest.mark.parametrize("manifest", NAMES)
def test_it_trains(manifest: str, cluster: Cluster, observation: Observation, tmp_path: Path) -> None:
    job = converted(FOLDER / f"{manifest}.yaml", cluster, tmp_path)
    job["metadata"].pop("namespace", None)
    make_at_home(job, cluster)
    name, workers = job["metadata"]["name"], job["spec"]["replicaSpecs"]["worker"]["replicas"]
    cluster.apply(job, observation.namespace)
    jobs.wait_until_succeeded(observation, name)
    results = [(each["status"].get("agent") or {}).get("result") for each in observation.workers(name)]
    assert results[0] == f'{{"value":{{"processes":{PROCESSES.get(manifest, workers)}}}}}'


def converted(path: Path, cluster: Cluster, folder: Path) -> JSON:
    """Convert by the command, with a script in the manifest that is there."""
    text = path.read_text()
    copy = folder / path.name
    copy.write_text(SCRIPT.sub(STAND_IN, text.partition("\n")[2]))
    done = cluster.run_dlr("convert", "-f", str(copy))
    assert done.returncode in EXIT_CODES, done.stderr
    (job,) = yaml.safe_load_all(done.stdout)
    found: JSON = job
    return found


def make_at_home(job: JSON, cluster: Cluster) -> None:
    """Take out what this cluster has none of, and what has nothing to do but print."""
    spec = job["spec"]
    spec.pop("suspend", None)
    spec.pop("nodeCheck", None)
    pod = spec["replicaSpecs"]["worker"]["template"]["spec"]
    for key in ("nodeSelector", "serviceAccountName"):
        pod.pop(key, None)
    pod["terminationGracePeriodSeconds"] = 0
    container = pod["containers"][0]
    container["image"] = cluster.image
    container["resources"] = jobs.TRAINING_RESOURCES
    container.setdefault("env", []).append({"name": "OMP_NUM_THREADS", "value": "1"})
    command = container.get("command") or ["dlr", "run", "--no-python"]
    if "--no-python" in command:
        container["command"] = [*command[: command.index("--no-python")], STAND_IN]
        container.pop("args", None)
    if command[0] == "/bin/bash" and "start_chaos.sh" in command[-1]:
        command[-1] = command[-1].partition("&& ")[2]
