"""Plain kubectl is enough to see and steer jobs: with the newest release, and with an old one."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import jobs
from e2e.cluster import Cluster, every_kubectl
from e2e.observation import Observation

FINISHED_SECONDS = 300
FIXTURES = Path(__file__).parent.parent / "fixtures"


@dataclass(frozen=True)
class Kubectl:
    """One kubectl, in the namespace of the scenario."""

    cluster: Cluster
    executable: str
    namespace: str

    def __call__(self, *arguments: str, stdin: str | None = None, **more: Any) -> str:
        return self.cluster.kubectl(
            "-n", self.namespace, *arguments, stdin=stdin, executable=self.executable, **more
        ).stdout


@pytest.mark.named
def test_a_job_seen_and_steered_with_kubectl(cluster: Cluster, observation: Observation) -> None:
    """One job, in DLRover's words, trains for all of them; each makes and deletes one that is suspended."""
    namespace = observation.namespace
    kubectls = [Kubectl(cluster, executable, namespace) for executable in every_kubectl()]
    manifest = jobs.in_dlrovers_words(jobs.digits(cluster, namespace, paced=True))
    kubectls[0]("apply", "-f", "-", stdin=yaml.safe_dump(manifest))
    for kubectl in kubectls:
        held = jobs.shell(cluster, "exit 0", name="held", suspend=True)
        made = kubectl("apply", "-f", "-", stdin=yaml.safe_dump(held))
        assert "elasticjob.elastic.iml.github.io/held created" in made
        assert '"held" deleted' in kubectl("delete", "ej", "held")
        assert "unchanged" in kubectl("apply", "-f", "-", stdin=yaml.safe_dump(manifest))
    jobs.wait_until_training(observation, 2)
    following = [follow_log(kubectl, "digits-worker-0-1") for kubectl in kubectls]
    for kubectl in kubectls:
        table = kubectl("get", "ej,ew")
        for shown in ("digits", "digits-worker-0", "digits-worker-1", "RANK", "NODE", "PHASE", "STEP"):
            assert shown in table, table
        described = kubectl("describe", "ej", "digits")
        for shown in ("Rendezvous", "Members", "Conditions", "Events"):
            assert shown in described, described
        explained = kubectl("explain", "ej.spec.elasticPolicy")
        for shown in ("heartbeatTimeoutSeconds", "nodeUnit", "multiple of this"):
            assert shown in explained, explained

    jobs.hurry(cluster, observation)
    for kubectl, follow in zip(kubectls, following, strict=True):
        asked = ("wait", "--for=condition=Succeeded", "ej/digits", f"--timeout={FINISHED_SECONDS}s")
        assert "condition met" in kubectl(*asked, timeout_seconds=2 * FINISHED_SECONDS)
        followed, _ = follow.communicate(timeout=FINISHED_SECONDS)
        assert "test accuracy" in followed, "logs -f follows to the end of the container and stops"
        ignored = "--network-check: set the job's spec.nodeCheck.enabled: true"
        assert f"dlrover-run: not obeyed: {ignored}" in followed
        ended = json.loads(kubectl("get", "ej", "digits", "-o", "json"))
        assert jobs.condition(ended, "Succeeded")["status"] == "True"

    assert '"digits" deleted' in kubectls[-1]("delete", "ej", "digits")
    observation.wait_for("its Pods to go", lambda: not observation.pods())


def follow_log(kubectl: Kubectl, pod: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [kubectl.executable, "-n", kubectl.namespace, "logs", "-f", pod],
        env=kubectl.cluster.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.named
def test_dlrovers_own_yaml_is_accepted_unchanged(cluster: Cluster) -> None:
    manifest = FIXTURES / "dlrover-elasticjob.yaml"
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "dlrover"}})
    try:
        done = cluster.kubectl("apply", "-f", str(manifest))
        assert "elasticjob.elastic.iml.github.io/torch-nanogpt created" in done.stdout
        assert "Warning" not in done.stderr
        stored = json.loads(
            cluster.kubectl("get", "ej", "torch-nanogpt", "-n", "dlrover", "-o", "json").stdout
        )
        asked = yaml.safe_load(manifest.read_text())["spec"]
        assert (
            stored["spec"]["replicaSpecs"]["worker"]["template"]
            == asked["replicaSpecs"]["worker"]["template"]
        )
    finally:
        cluster.kubectl("delete", "namespace", "dlrover", "--wait=false")
