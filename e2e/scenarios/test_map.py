"""`dlr map` through the death of a worker, and a Kaldi recipe on `dlr-queue.pl`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from e2e import jobs
from e2e.cluster import REPOSITORY, Capability, Cluster
from e2e.observation import Observation

NAME = "map"
WITHIN_SECONDS = 300

pytestmark = pytest.mark.needs(Capability.STORAGE)


def pod_file(cluster: Cluster, observation: Observation, folder: Path) -> str:
    """A Pod template that sees the storage."""
    storage = cluster.storage(observation.namespace)
    container = {"name": "main", "image": cluster.image, "volumeMounts": storage.mounts}
    path = folder / "pod.yaml"
    path.write_text(yaml.safe_dump({"spec": {"containers": [container], "volumes": storage.volumes}}))
    return str(path)


def program(name: str) -> list[str]:
    return [sys.executable, str(REPOSITORY / "bin" / name)]


@pytest.mark.named
def test_all_lines_are_done_through_the_death_of_a_worker_and_those_that_fail_are_listed(
    cluster: Cluster, observation: Observation, tmp_path: Path
) -> None:
    done = Path(cluster.storage(observation.namespace).path) / "done"
    died = tmp_path / "died"  # the lines behind the sixtieth wait for it
    waits = f"until [ {{#}} -le 60 ] || [ -e {died} ]; do sleep 0.1; done"
    command = f"{waits}; sleep 0.1; echo {{}} >> {done}; test {{#}} != 17"
    options = ["--workers", "2:3", "--slots", "4", "--retries", "1", "--name", NAME, "--idle-seconds", "5"]
    where = ["-n", observation.namespace, "--pod", pod_file(cluster, observation, tmp_path)]
    process = subprocess.Popen(
        [*program("dlr"), "map", *options, *where, command],
        env=cluster.environment(),
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines = [f"it's line {number}" for number in range(1, 121)]
    assert process.stdin is not None
    process.stdin.write("\n".join(lines))
    process.stdin.close()
    process.stdin = None

    def has_begun() -> bool:
        return done.exists() and len(done.read_text().splitlines()) >= 40

    observation.wait_for("40 lines", has_begun, WITHIN_SECONDS)
    pod = jobs.current_pods(observation, NAME)[0]["metadata"]["name"]
    cluster.delete_pod(observation.namespace, pod)
    died.touch()
    _, said = process.communicate(timeout=WITHIN_SECONDS)

    assert process.returncode == 1, said
    assert "1 of 120 lines failed (number 17); the first: line 17, exit code 1" in said
    assert (tmp_path / f"{NAME}.left").read_text() == "it's line 17\n"
    assert set(done.read_text().splitlines()) == set(lines)
    known = observation.shard_set(NAME)
    assert (known["done"], known["failed"], known["rest"], known["leases"]) == (119, 1, "", "")


def test_a_recipe_of_kaldis_kind_runs_unchanged(
    cluster: Cluster, observation: Observation, tmp_path: Path
) -> None:
    folder = Path(cluster.storage(observation.namespace).path)
    (folder / "data").mkdir()
    (folder / "data" / "wav.scp").write_text("".join(f"utt{n} /wav/{n}.wav\n" for n in range(403)))
    queue = tmp_path / "dlr-queue.pl"
    queue.write_text(f'#!/bin/sh\nexec {sys.executable} {REPOSITORY}/examples/map/dlr-queue.pl "$@"\n')
    queue.chmod(0o755)
    options = f"--workers 1:3 --slots 8 -n {observation.namespace}"
    env = cluster.environment() | {"DLR_QUEUE": f"{options} --pod {pod_file(cluster, observation, tmp_path)}"}

    def recipe(*words: str) -> subprocess.CompletedProcess[str]:
        script = str(REPOSITORY / "examples" / "map" / "recipe.sh")
        call = ["bash", script, "--cmd", f"{queue} --mem 100M --max-jobs-run 16 -l arch=*64", *words]
        return subprocess.run(
            call, env=env, cwd=folder, capture_output=True, text=True, check=False, timeout=WITHIN_SECONDS
        )

    done = recipe("data", "exp")
    assert done.returncode == 0, done.stderr
    assert "403 features in 40 jobs" in done.stdout
    assert (folder / "exp" / "feats.scp").read_text().splitlines()[390] == "utt390 12-39"
    log = (folder / "exp" / "log" / "make_mfcc.40.log").read_text()
    assert log.startswith("# Running on ") and log.rstrip().endswith(" with status 0")

    call = [str(queue), "JOB=1:3", "exp/log/bad.JOB.log", "test", "JOB", "-ne", "2"]
    done = subprocess.run(
        call, env=env, cwd=folder, capture_output=True, text=True, check=False, timeout=WITHIN_SECONDS
    )
    assert (done.returncode, done.stderr) == (
        1,
        "dlr-queue.pl: 1 / 3 failed, log is in exp/log/bad.*.log\n",
    )
    assert (folder / "exp" / "log" / "bad.2.log").read_text().rstrip().endswith(" with status 1")
