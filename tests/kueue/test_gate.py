"""What a Pod gets of its queue, and why it has to wait."""

from __future__ import annotations

from typing import Any

import pytest

from controller.cache import Cache
from controller.errors import Forbidden
from controller.resources import PODS
from controller.shape import Shape
from crds import names
from crds.elasticjob import ElasticJob
from reconcilers.kueue.gate import QueueGate
from reconcilers.kueue.pods import PodsOfJobs
from reconcilers.kueue.workload import QUEUE_LABEL, WORKLOADS
from reconcilers.observed.ownership import BY_JOB, BY_OWNER, owner_uids
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.scale.writer import pods_job
from reconcilers.shapes import SHAPES
from reconcilers.worker.job_pod import build_job_pod
from tests.reconcilers.build import job, worker
from tests.reconcilers.caches import tools_of

JSON = dict[str, Any]
UID = "uid-digits"


class Flavors:
    """A client that reads flavors alone."""

    def __init__(self, spec: JSON | None) -> None:
        self._spec = spec

    async def get(self, _: Any, name: str) -> JSON:
        if self._spec is None:
            raise Forbidden(403, "Forbidden", f"{name} may not be read")
        return {"metadata": {"name": name}, "spec": self._spec}


def workload(count: int = 2, *, true: tuple[str, ...] = ("QuotaReserved", "Admitted"), **more: Any) -> JSON:
    assigned = {"name": names.WORKER, "count": count, "flavors": {"nvidia.com/gpu": "h200"}} | more.pop(
        "assigned", {}
    )
    conditions = [{"type": each, "status": "True", "reason": each} for each in true]
    status = {"conditions": conditions, "admission": {"podSetAssignments": [assigned]}} | more
    metadata = {"name": "w-1", "namespace": "default", "uid": "w", "resourceVersion": "1"}
    metadata |= {
        "ownerReferences": [{"kind": "ElasticJob", "name": "digits", "uid": UID, "controller": True}]
    }
    return {
        "metadata": metadata,
        "spec": {"podSets": [{"name": names.WORKER, "count": count}]},
        "status": status,
    }


def gate_of(owner: ElasticJob, found: JSON | None, flavor: JSON | None = None, pods: int = 0) -> QueueGate:
    cache = Cache(None, monotonic=lambda: 0.0)  # type: ignore[arg-type]
    cache.keep_only(SHAPES | {WORKLOADS: Shape({"spec": 1_000, "status": 1_000})})
    cache.add_index(WORKLOADS, BY_OWNER, owner_uids)
    cache.add_index(PODS, BY_JOB, pods_job)
    raw = {"metadata": owner.metadata.to_wire() | {"labels": {QUEUE_LABEL: "team"}}, "spec": {}}
    objects: list[tuple[Any, JSON]] = [(ELASTICJOBS, raw)] + ([(WORKLOADS, found)] if found else [])
    objects += [(ELASTICWORKERS, worker(index).to_wire()) for index in range(4)]
    for index in range(pods):
        labels = {names.LABEL_JOB: "digits", names.LABEL_TYPE: names.WORKER, names.LABEL_INDEX: str(index)}
        metadata = {"name": f"p{index}", "namespace": "default", "uid": f"p{index}", "labels": labels}
        objects.append((PODS, {"metadata": metadata, "status": {"phase": "Running"}}))
    for resource, obj in objects:
        cache.store(resource).apply(obj)
    return QueueGate(tools_of(cache, Flavors(flavor)), PodsOfJobs(cache, lambda: 0.0))


@pytest.mark.parametrize(
    ("found", "pods", "why"),
    [
        (workload(), 1, None),
        (workload(), 2, "its queue grants 2 Pods of type worker, which all exist"),
        (workload(true=("QuotaReserved",)), 0, "its queue does not grant it"),
        (workload(true=("QuotaReserved", "Admitted", "Evicted")), 0, "its queue does not grant it"),
        (None, 0, "its queue does not grant it"),
    ],
)
async def test_a_pod_is_made_while_it_is_granted(found: JSON | None, pods: int, why: str | None) -> None:
    owner = job(replicas=4)
    obstacle = await gate_of(owner, found, {}, pods).obstacle(worker(3), owner)
    assert (obstacle.message if obstacle else None) == why


async def test_many_workers_that_ask_at_once_get_no_more_than_is_granted() -> None:
    owner = job(replicas=4)
    gate = gate_of(owner, workload(), {})
    answers = [await gate.obstacle(worker(index), owner) for index in (0, 1, 2, 3, 0)]
    assert [each is None for each in answers] == [True, True, False, False, True]


async def test_a_flavor_that_cannot_be_read_is_named() -> None:
    owner = job()
    obstacle = await gate_of(owner, workload()).obstacle(worker(), owner)
    assert obstacle is not None and obstacle.reason == "FlavorUnreadable" and "h200" in obstacle.message


async def test_a_template_that_contradicts_its_flavor_is_told_where_and_what_to_do() -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "x"}], "nodeSelector": {"pool": "b"}}}
    owner = job(template=template)
    obstacle = await gate_of(owner, workload(), {"nodeLabels": {"pool": "a"}}).obstacle(worker(), owner)
    assert obstacle is not None and obstacle.message == (
        "its flavor requires nodes with pool=a, and spec.replicaSpecs.worker.template.spec.nodeSelector for "
        "pool=b: remove that from the template"
    )


async def test_a_pod_gets_what_flavor_checks_and_topology_ask_for() -> None:
    owner = job()
    update = {"name": names.WORKER, "labels": {"a": "b"}, "nodeSelector": {"rack": "7"}}
    found = workload(
        assigned={"topologyAssignment": {"levels": ["rack"]}},
        admissionChecks=[
            {"name": "c", "state": "Ready", "podSetUpdates": [update, {"name": "ps", "labels": {"x": "y"}}]}
        ],
    )
    gate = gate_of(owner, found, {"nodeLabels": {"pool": "a"}, "tolerations": [{"key": "gpu"}]})
    assert await gate.obstacle(worker(), owner) is None
    pod = build_job_pod(owner, worker())
    gate.enlist(pod, worker(), owner)
    assert pod["spec"]["nodeSelector"] == {"pool": "a", "rack": "7"} and pod["spec"]["tolerations"] == [
        {"key": "gpu"}
    ]
    assert pod["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/topology"}]
    labels, annotations = pod["metadata"]["labels"], pod["metadata"]["annotations"]
    assert (labels["a"], labels["kueue.x-k8s.io/podset"], labels.get("x")) == ("b", "worker", None)
    assert annotations["kueue.x-k8s.io/workload"] == "w-1"
    assert annotations["kueue.x-k8s.io/podset-unconstrained-topology"] == "true"
