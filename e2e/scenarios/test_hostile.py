"""Objects that nobody would write, which were found by an attack: nobody else's job notices."""

from __future__ import annotations

import json
import re
import urllib.request

import pytest

from e2e import jobs
from e2e.api import Kind
from e2e.cluster import Capability, Cluster
from e2e.embedded import EmbeddedCluster
from e2e.observation import Observation

NODES = 3
REPLACED_SECONDS = 120.0
"""From the death of a Pod to the next one; some tenths of a second on a quiet machine."""
VICTIM = "victim"
FOUND = {
    "a field of 9,000 levels": '{"a":' * 9_000 + "1" + "}" * 9_000,
    "a million small dictionaries": f"[{','.join(['{}'] * 400_000)}]",
}
"""Values of a field that is put into a Pod template as it is."""

pytestmark = [pytest.mark.needs(Capability.CONTROL_PLANE)]


def job_text(name: str, value: str) -> str:
    """The JSON of an ElasticJob of one worker."""
    manifest = jobs.job(name, {"spec": {"containers": [{"name": "main", "image": "x"}]}}, 1)
    return json.dumps(manifest).replace('"containers"', f'"x":{value},"containers"', 1)


class Victim:
    """Another tenant's job of one worker, and whether the controller looks after it."""

    def __init__(self, cluster: EmbeddedCluster, observation: Observation) -> None:
        self._cluster, self._observation = cluster, observation
        cluster.apply(jobs.shell(cluster, "sleep 3600", name=VICTIM), observation.namespace)
        self._pod = self._next_pod("")

    def check(self) -> None:
        """Have its Pod die, and see the next one come, with the controller ready and no fault on the job."""
        dead = self._pod
        self._cluster.delete_pod(self._observation.namespace, dead)
        self._pod = self._next_pod(dead)
        self._observation.wait_for("the controller to be ready", self._is_ready, REPLACED_SECONDS)
        job = self._observation.job(VICTIM)
        assert jobs.condition(job, "Reconciled").get("status") != "False", job["status"]
        assert self._observation.events(reason="ReconcileFailed") == []

    def _next_pod(self, dead: str) -> str:
        def found() -> str | None:
            names = [name for name in self._observation.pods() if name.startswith(VICTIM) and name != dead]
            return names[-1] if names else None

        return self._observation.wait_for("the victim's next Pod", found, REPLACED_SECONDS)

    def _is_ready(self) -> bool:
        log = (self._cluster.home.logs / "controller.log").read_text()
        port = re.findall(r"servers started .*health=(\d+)", log)[-1]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def test_objects_that_were_found_by_an_attack_stop_nobody_else(
    cluster: Cluster, observation: Observation
) -> None:
    assert isinstance(cluster, EmbeddedCluster)
    victim = Victim(cluster, observation)
    kind = Kind.JOB.value
    with cluster.namespace("tenant") as tenant:
        path = f"/apis/{kind.api_version}/namespaces/{tenant.namespace}/{kind.plural}"
        for number, value in enumerate(FOUND.values()):
            text = job_text(f"found-{number}", value)
            cluster.kubectl("create", "--raw", path, "-f", "-", stdin=text, check=False)  # or it is refused
            victim.check()
            victim.check()
