"""examples/shards: each file is done, and its result is exact, whatever happens to the workers that pull."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from e2e import elasticity, jobs
from e2e.api import Object
from e2e.cluster import Capability, Cluster
from e2e.observation import Observation

NAME = "shards"
WORKERS = 4
WITHIN_SECONDS = 300

pytestmark = pytest.mark.needs(Capability.STORAGE)


FIXTURES = Path(__file__).parent.parent / "fixtures"
STRANGERS = FIXTURES / "strangers"
LEARNER = FIXTURES / "learner.py"


def submit(
    cluster: Cluster,
    observation: Observation,
    *command: str,
    workers: int = WORKERS,
    resizable: bool = False,
    policy: Object | None = None,
    **variables: str,
) -> Path:
    """
    Args:
        resizable: whether it may have half of its workers too; it has memory for checkpoints then.
        policy: further fields of its elastic policy.
    """
    storage = cluster.storage(observation.namespace)
    manifest = jobs.scripted(
        cluster,
        NAME,
        workers,
        command or ("dlr", "run", f"{cluster.examples}/shards/infer.py"),
        storage=storage,
        env={"OUT": storage.path, **variables},
        grace_seconds=1,
        worker={"restartCount": 100},
        elasticPolicy={**jobs.QUICK_REPORTS, "shrinkAfterSeconds": 60, **(policy or {})},
    )
    if resizable:
        worker = manifest["spec"]["replicaSpecs"]["worker"]
        worker["memoryCheckpoint"] = {"size": "16Mi", "replicas": 1}
        elasticity.bounded(manifest, workers // 2, workers)
    cluster.apply(manifest, observation.namespace)
    return Path(storage.path)


def submit_strangers(cluster: Cluster, observation: Observation, name: str) -> Path:
    """A script that was written for DLRover, by its own command."""
    script = Path(cluster.storage(observation.namespace).path, name)
    shutil.copy(STRANGERS / name, script)
    return submit(cluster, observation, "dlrover-run", str(script), workers=2)


def results_in(folder: Path) -> list[Path]:
    return sorted((folder / "results").glob("*.json"))


def tries_in(folder: Path) -> Counter[str]:
    """How often each file was begun."""
    lines = (folder / "work.log").read_text().splitlines()
    return Counter(line.split()[1] for line in lines)


def check_sum(folder: Path, files: int) -> None:
    found = [json.loads(result.read_text()) for result in results_in(folder)]
    samples = [
        int(line) for file in (folder / "data").glob("*.txt") for line in file.read_text().splitlines()
    ]
    assert len(found) == files
    assert sum(result["samples"] for result in found) == len(samples)
    assert sum(result["sum"] for result in found) == sum(samples)


def test_the_sum_over_all_samples_is_exact_through_kills_of_every_worker(
    cluster: Cluster, observation: Observation
) -> None:
    files, kills = 800, 6
    folder = submit(cluster, observation, FILES=str(files), FILE_SECONDS="0.3")

    def has_done(number: int) -> None:
        def done_or_over() -> bool:
            return len(results_in(folder)) >= number or jobs.phase(observation, NAME) == "Failed"

        observation.wait_for(f"{number} results", done_or_over, WITHIN_SECONDS)
        assert jobs.phase(observation, NAME) != "Failed", observation.describe()

    for kill in range(1, kills + 1):  # about one every eight seconds
        has_done(files * kill // (kills + 2))
        pod = jobs.current_pods(observation, NAME)[kill % WORKERS]
        if kill % 3:
            cluster.kill_process(observation.namespace, pod)
        else:
            cluster.delete_pod(observation.namespace, pod["metadata"]["name"])
    jobs.wait_until_succeeded(observation, NAME, WITHIN_SECONDS)

    check_sum(folder, files)
    again = sum(tries_in(folder).values()) - files
    assert again <= files // 5, "what workers had in hand is done again, and what a lost Pod did not report"
    known = observation.shard_set(NAME)
    assert (known["done"], known["failed"], known["rest"], known["leases"]) == (files, 0, "", "")
    assert jobs.condition(observation.job(NAME), "ShardsDone")["status"] == "True"


@pytest.mark.named
def test_a_file_that_cannot_be_done_is_named_and_the_others_are_done(
    cluster: Cluster, observation: Observation
) -> None:
    folder = submit(cluster, observation, FILES="40", FILE_SECONDS="0.01", BAD="0017", MAX_FAILED="1")
    jobs.wait_until_succeeded(observation, NAME, WITHIN_SECONDS)
    assert [result.stem for result in results_in(folder)] == [f"{n:04}" for n in range(40) if n != 17]
    assert tries_in(folder)["0017"] == 3
    told = jobs.condition(observation.job(NAME), "ShardsDone")
    assert (told["status"], told["reason"]) == ("False", "ElementsFailed")
    assert "element 18; the first: ValueError: 0017.txt is damaged" in told["message"]
    observation.wait_for(
        "the Event", lambda: observation.events(reason="ShardFailed", of=NAME), WITHIN_SECONDS
    )


def test_a_script_of_dlrovers_documentation_runs_unchanged_through_a_death(
    cluster: Cluster, observation: Observation
) -> None:
    folder = submit_strangers(cluster, observation, "dlrover_shards.py")

    def records() -> Counter[int]:
        file = folder / "records"
        return Counter(map(int, file.read_text().split())) if file.exists() else Counter()

    observation.wait_for("a third of the records", lambda: len(records()) >= 800, WITHIN_SECONDS)
    cluster.delete_pod(observation.namespace, jobs.current_pods(observation, NAME)[1]["metadata"]["name"])
    jobs.wait_until_succeeded(observation, NAME, WITHIN_SECONDS)

    assert set(records()) == set(range(2400))
    assert sum(records().values()) < 1.5 * 2400, "what was in hand is done again, and what was not reported"
    known = observation.shard_set(NAME)
    assert (known["done"], known["rest"], known["leases"]) == (150, "", "")


def test_each_element_is_in_the_final_state_once_an_epoch_through_kills_and_another_number_of_workers(
    cluster: Cluster, observation: Observation
) -> None:
    elements, epochs = 1_200, 2
    command = ("dlr", "run", str(LEARNER))
    folder = submit(
        cluster, observation, *command, resizable=True, ELEMENTS=str(elements), EPOCHS=str(epochs)
    )

    def train(steps: int = 12) -> None:
        """Until so many more are made than ever before: what is in memory alone may be lost with its Pods."""
        file = folder / "step"
        made = int(file.read_text() or 0) if file.exists() else 0

        def trained() -> bool:
            return (file.exists() and int(file.read_text() or 0) >= made + steps) or (
                jobs.phase(observation, NAME) in ("Failed", "Succeeded")
            )

        observation.wait_for(f"step {made + steps}", trained, WITHIN_SECONDS)
        assert jobs.phase(observation, NAME) not in ("Failed", "Succeeded"), observation.describe()

    train()
    for kill in range(3):
        cluster.kill_process(observation.namespace, jobs.current_pods(observation, NAME)[kill])
        train()
    cluster.delete_pod(observation.namespace, jobs.current_pods(observation, NAME)[0]["metadata"]["name"])
    train()
    elasticity.scale(cluster, observation, 2, NAME)
    train()
    cluster.kill_process(observation.namespace, jobs.current_pods(observation, NAME)[1])
    train()
    jobs.wait_until_succeeded(observation, NAME, WITHIN_SECONDS)

    assert json.loads((folder / "counts").read_text()) == [epochs] * elements
    known = observation.shard_set(NAME)
    assert (known["epoch"], known["done"], known["rest"], known["leases"]) == (1, elements, "", "")
    assert known["restoration"] >= 6, "each start goes back to its checkpoint"
