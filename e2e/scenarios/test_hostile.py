"""Objects that nobody would write, by a tenant of one namespace: nobody else's job or check notices.

Fifty are drawn; the others were found by an attack.
"""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator

import pykube
import pytest
import requests

from crds.names import GROUP
from e2e import checks, jobs
from e2e.api import Kind, Object
from e2e.cluster import MAY_CORDON_LABEL, Capability, Cluster
from e2e.embedded import EmbeddedCluster
from e2e.observation import Observation

NODES = 3
REPLACED_SECONDS = 120.0
"""From the death of a Pod to the next one; some tenths of a second on a quiet machine."""
CALL_SECONDS = 120.0
TENANT_HOLDS_SECONDS = 290.0
"""Less than the time after which the tenant's check would give its nodes back by itself."""
VICTIM = "victim"

pytestmark = [pytest.mark.needs(Capability.CONTROL_PLANE)]

DEEP = '{"a":' * 9_000 + "1" + "}" * 9_000


def job_text(name: str, container: Object, more: str = "") -> str:
    """The JSON of an ElasticJob of one worker; `more` is put into its Pod template as it is."""
    manifest = jobs.job(name, {"spec": {"containers": [{"name": "main", "image": "x", **container}]}}, 1)
    text = json.dumps(manifest)
    return text.replace('"containers"', f'{more}"containers"', 1)


FOUND: dict[str, Callable[[str], tuple[Kind, str]]] = {
    "a field of 9,000 levels": lambda name: (Kind.JOB, job_text(name, {}, f'"x":{DEEP},')),
    "references without an end": lambda name: (
        Kind.JOB,
        job_text(name, {"command": ["dlrover-run", "${a:-" * 25_000]}),
    ),
    "a million small dictionaries": lambda name: (
        Kind.JOB,
        job_text(name, {}, f'"x":[{",".join(["{}"] * 400_000)}],'),
    ),
    "a check of all nodes whose image does not exist": lambda name: (
        Kind.CHECK,
        json.dumps(
            {
                "apiVersion": Kind.CHECK.value.api_version,
                "kind": "NodeCheck",
                "metadata": {"name": name},
                "spec": {
                    "nodeSelector": {},
                    "accelerator": "none",
                    "timeoutSeconds": 3_600,
                    "template": {
                        "spec": {"nodeSelector": {"no": "node"}, "containers": [{"name": "c", "image": "x"}]}
                    },
                },
            }
        ),
    ),
    "a plan for a job that is not there": lambda name: (
        Kind.PLAN,
        json.dumps(
            {
                "apiVersion": Kind.PLAN.value.api_version,
                "kind": "ScalePlan",
                "metadata": {"name": name},
                "spec": {"ownerJob": "x" * 63, "replicaResourceSpecs": {"worker": {"replicas": 3}}},
            }
        ),
    ),
}


TENANT_ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "Role",
    "metadata": {"name": "tenant"},
    "rules": [
        {
            "apiGroups": [GROUP],
            "resources": ["elasticjobs", "nodechecks", "scaleplans"],
            "verbs": ["get", "list", "create", "update", "patch", "delete"],
        }
    ],
}


class Tenant:
    """An account that may write jobs, checks and plans in its namespace, and nothing else."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.namespace = namespace
        cluster.kubectl(
            "label", "namespace", namespace, f"{MAY_CORDON_LABEL}-"
        )  # scenarios are administrators
        cluster.kubectl("create", "serviceaccount", "tenant", "-n", namespace)
        cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(TENANT_ROLE))
        account = f"--serviceaccount={namespace}:tenant"
        cluster.kubectl("create", "rolebinding", "tenant", "-n", namespace, "--role=tenant", account)
        token = cluster.kubectl("create", "token", "tenant", "-n", namespace).stdout.strip()
        config = pykube.KubeConfig.from_file(str(cluster.kubeconfig))
        self._server = config.cluster["server"]
        self._session = requests.Session()
        self._session.trust_env = False  # else requests would look for authorities of the environment's own
        self._authority = config.cluster["certificate-authority"].filename()
        self._session.headers["Authorization"] = f"Bearer {token}"

    def store(self, kind: Kind, text: str) -> bool:
        """Whether the API server takes an object."""
        headers = {"Content-Type": "application/json"}
        answer = self._session.post(
            self._path(kind), data=text, headers=headers, timeout=CALL_SECONDS, verify=self._authority
        )
        assert answer.status_code < 500, answer.text
        return answer.ok

    def delete(self, kind: Kind, name: str) -> None:
        answer = self._session.delete(
            f"{self._path(kind)}/{name}", timeout=CALL_SECONDS, verify=self._authority
        )
        assert answer.ok, answer.text

    def _path(self, kind: Kind) -> str:
        resource = kind.value
        return f"{self._server}/apis/{resource.api_version}/namespaces/{self.namespace}/{resource.plural}"


class Victim:
    """Another tenant's job of one worker, and whether the controller looks after it."""

    def __init__(self, cluster: EmbeddedCluster, observation: Observation) -> None:
        self._cluster, self._observation = cluster, observation
        cluster.apply(jobs.shell(cluster, "sleep 3600", name=VICTIM), observation.namespace)
        self._pod = self._next_pod("")
        self.slowest = 0.0

    def check(self) -> None:
        """Have its Pod die, and see the next one come, with the controller ready and no fault on the job."""
        began_at = time.monotonic()
        dead = self._pod
        self._cluster.delete_pod(self._observation.namespace, dead)
        self._pod = self._next_pod(dead)
        self.slowest = max(self.slowest, time.monotonic() - began_at)
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


@pytest.fixture(scope="module")
def tenant(cluster: Cluster) -> Iterator[Tenant]:
    with cluster.namespace("tenant") as watched:
        yield Tenant(cluster, watched.namespace)


@pytest.fixture
def victim(cluster: Cluster, observation: Observation) -> Victim:
    assert isinstance(cluster, EmbeddedCluster)
    return Victim(cluster, observation)


@pytest.mark.parametrize("what", FOUND)
def test_an_object_that_was_found_by_an_attack_stops_nobody_else(
    tenant: Tenant, victim: Victim, what: str
) -> None:
    name = f"found-{list(FOUND).index(what)}"
    kind, text = FOUND[what](name)
    taken = tenant.store(kind, text)
    victim.check()
    victim.check()
    if taken:
        tenant.delete(kind, name)


def test_an_administrators_check_ends_beside_a_tenants_that_never_begins(
    cluster: Cluster, observation: Observation, tenant: Tenant
) -> None:
    kind, text = FOUND["a check of all nodes whose image does not exist"]("hold")
    assert tenant.store(kind, text)
    check = {
        "apiVersion": Kind.CHECK.value.api_version,
        "kind": "NodeCheck",
        "metadata": {"name": "nightly"},
        "spec": {"nodes": ["node-0", "node-1"], "accelerator": "none", "stragglerRatio": checks.RATIO},
    }
    cluster.apply(check, observation.namespace)
    done = observation.wait_for(
        "the check's end",
        lambda: next(
            (c for c in observation.checks() if c.get("status", {}).get("phase") == "Succeeded"), None
        ),
        TENANT_HOLDS_SECONDS,
    )
    assert done["status"].get("faultyNodes") in (None, [])
    tenant.delete(kind, "hold")
